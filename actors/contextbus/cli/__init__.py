"""The command ``contextbus``.

Exit codes: 0 all went well; 1 something differs or failed; 2 the command line or an input cannot be used; 3 no server
can be reached; 130 ended by Ctrl-C.  Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

from contextbus.cli.commands import app


def main() -> None:
    """Run the command line of this process; the entry point."""
    app(prog_name="contextbus")


__all__ = ["app", "main"]
