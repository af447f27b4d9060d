"""Fold a log and verify it: no broker, no clock, only commits and blobs.  FREE."""
