"""Summarisers: they turn an older range of a conversation into the text of a summary."""
