"""What goes to the terminal: results on standard output, everything else on standard error."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

PIPE_COLUMNS: Final = 120
COMMAND: Final = "contextbus"


def called() -> str:
    """How this command was called, so that a hint can be pasted: by name if a shell would find it, else by path."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m contextbus"
    if program.stem != COMMAND or shutil.which(COMMAND) is not None:
        return COMMAND
    return shlex.quote(sys.argv[0])


def stdout() -> Console:
    """The console of results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """The console of progress, notes and errors."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    # A pipe has no width; 80 columns would fold what a file or a pager can show.
    width = None if file.isatty() or os.environ.get("COLUMNS") else PIPE_COLUMNS
    return Console(file=file, highlight=False, emoji=False, width=width)


def print_json(value: object) -> None:
    """Print a value as one line of JSON, at once: whoever reads may wait for the line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Tell the user something beside the result."""
    stderr().print(Text(text, style="dim"), soft_wrap=True)


def warn(text: str) -> None:
    """Tell the user what they should look at."""
    stderr().print(Text.assemble(("warning: ", "yellow"), text), soft_wrap=True)


@contextmanager
def show_progress() -> Generator[Progress]:
    """Progress on standard error, gone when done; nothing where that is no terminal."""
    console = stderr()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress
