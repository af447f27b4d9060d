"""contextbus: decide what a model call of an LLM agent gets to see, and prove it afterwards."""

__version__ = "0.1.0"
