"""What crosses the bus: values, messages, events, subjects, codec, errors.  FROZEN: only grows."""
