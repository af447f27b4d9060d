"""Who says it: actors and racing state machines as pure rules with effects.  REPLAYED."""
