"""What a source or summariser of the user's own raised, shown to its developer on request; it is in no log (D.W.2)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import contextbus
from contextbus.sources.interface import MalformedAnswerError
from contextbus.summarisers.interface import MalformedSummaryError
from contextbus_protocol.compaction import Summarise
from contextbus_protocol.questions import Query

VARIABLE: Final = "CONTEXTBUS_DEBUG"
_OURS: Final = Path(contextbus.__file__).parent


OnError = Callable[[Query | Summarise, BaseException], None]


def is_debugging() -> bool:
    """Whether the environment asks for what sources raise."""
    return bool(os.environ.get(VARIABLE))


def find_listener(*, asked: bool) -> OnError | None:
    """What is to be told of a source or summariser that failed, if that is asked for by option or environment."""
    return _print_failure if asked or is_debugging() else None


def _print_failure(question: Query | Summarise, error: BaseException) -> None:
    if isinstance(question, Query):
        print_failure(question.source, error)
    else:
        print_failure(question.summariser, error, word="summariser")


def print_failure(name: str, error: BaseException, word: str = "source") -> None:
    """Print on standard error what a source or summariser raised, from its own code on, or what its answer lacks."""
    if isinstance(error, MalformedAnswerError):
        sys.stderr.write(f"source {name!r} answered what is no list of candidates: {error}\n")
    elif isinstance(error, MalformedSummaryError):
        sys.stderr.write(f"summariser {name!r} answered what is no summary: {error}\n")
    else:
        sys.stderr.write(f"{word} {name!r} failed:\n")
        first = error.__traceback__
        while first is not None and Path(first.tb_frame.f_code.co_filename).is_relative_to(_OURS):
            first = first.tb_next
        traceback.print_exception(type(error), error, first or error.__traceback__, file=sys.stderr)
    sys.stderr.flush()
