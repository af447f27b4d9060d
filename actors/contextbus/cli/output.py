"""What goes to the terminal: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text


def stdout() -> Console:
    """The console of results."""
    return Console(file=sys.stdout, highlight=False, emoji=False)


def stderr() -> Console:
    """The console of progress, notes and errors."""
    return Console(file=sys.stderr, highlight=False, emoji=False)


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
