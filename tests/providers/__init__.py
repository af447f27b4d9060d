"""Local servers that speak the providers' wire formats and refuse what the providers refuse.

``serve("anthropic", script)`` and ``serve("openai", script)`` answer what a script says; every request is checked
against the SDK's own request types and the ordering rules first.  ``python -m tests.providers anthropic`` starts one.
"""
