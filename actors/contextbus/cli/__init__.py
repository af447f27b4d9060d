"""The command ``contextbus``.

Exit codes: 0 all went well; 1 something differs or failed; 2 the command line or an input cannot be used; 3 no server
can be reached; 4 a conversation cannot be compacted as asked; 130 ended by Ctrl-C.  Results go to standard output,
everything else to standard error.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process; the entry point."""
    try:
        from contextbus.cli.commands import app  # noqa: PLC0415  # Ctrl-C may come in the second that this takes
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="contextbus")


__all__ = ["main"]
