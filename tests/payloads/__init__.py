"""The acceptance test of payloads: every real conversation, cut everywhere, to every target, in every shape."""
