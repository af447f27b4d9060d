"""Compaction in one call, of any list of messages, without a run and without a bus (C.A)."""
