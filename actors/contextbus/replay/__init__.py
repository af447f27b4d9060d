"""Fold a log, verify it, without a broker.  FREE."""
