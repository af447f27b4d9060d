"""Source workers: the built-in ones and the interface for the user's own.  FREE."""
