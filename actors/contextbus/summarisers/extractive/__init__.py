"""The built-in summariser: offline, deterministic, made of the conversation's own statements (C.X.9)."""

from contextbus.summarisers.extractive.summary import count_characters, extract_summary

__all__ = ["count_characters", "extract_summary"]
