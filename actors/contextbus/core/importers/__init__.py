"""From one provider's conversation to chat messages.  Pure."""
