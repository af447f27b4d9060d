"""contextbus: decide what a model call of an LLM agent gets to see, and prove it afterwards."""
