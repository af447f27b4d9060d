"""The pure heart of history compaction: what may be replaced, how it is cut, and what survives of it.  Pure."""
