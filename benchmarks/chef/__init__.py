"""The yardstick of compiles: a Node process with ``@context-chef/core``, asked line by line."""
