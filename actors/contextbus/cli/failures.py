"""What can go wrong, as one sentence and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final, cast

import msgspec
from rich.text import Text

from contextbus.cli.output import called, stderr
from contextbus.core.run import ChainBrokenError
from contextbus.runtime.connection_errors import DisconnectedError, NoRespondersError
from contextbus.runtime.datafolder import DataFolderError
from contextbus.runtime.server_binary import ServerNotFoundError
from contextbus.runtime.server_process import ServerFailedError
from contextbus.runtime.streams import StreamError
from contextbus_protocol.errors import (
    BusyError,
    ContextBusError,
    DeadlineExceededError,
    EmptyHistoryError,
    InvalidTypeError,
    RangeError,
    ScopeConflictError,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
CANNOT_FIT: Final = 4
INTERRUPTED: Final = 130
TERMINATED: Final = 143

_UNREACHABLE: Final = (
    DisconnectedError,
    NoRespondersError,
    DataFolderError,
    ServerNotFoundError,
    ServerFailedError,
    StreamError,
    DeadlineExceededError,
    BusyError,
)
_USAGE: Final = (InvalidTypeError, RangeError, EmptyHistoryError, ScopeConflictError)


class UsageFault(Exception):  # noqa: N818  # it is the user's, and click has a UsageError
    """The command line or an input cannot be used; the message says what to change."""


class NoServerError(Exception):
    """There is no server to attach to; the message says how to start one."""


class CannotFitFault(Exception):  # noqa: N818  # nothing went wrong but the target
    """A conversation cannot be compacted as asked; the message says why, and what to change."""


class Failure(msgspec.Struct, frozen=True):
    """A failure as the user sees it: a stable code, one sentence, and the exit code of the process."""

    code: str
    message: str
    exit_code: int


def describe(error: BaseException) -> Failure:
    """The sentence and the exit code of an exception."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return describe(group.exceptions[0])
    match error:
        case UsageFault():
            return Failure("usage", str(error), USAGE)
        case CannotFitFault():
            return Failure("cannot_fit", str(error), CANNOT_FIT)
        case NoServerError():
            return Failure("no_server", str(error), UNREACHABLE)
        case _ if isinstance(error, _UNREACHABLE):
            code = error.code if isinstance(error, ContextBusError) else "unreachable"
            return Failure(code, _unreachable(error), UNREACHABLE)
        case ChainBrokenError():
            return Failure("chain_broken", f"{error.message}: the log was changed or is incomplete", FAILED)
        case ContextBusError():
            return Failure(error.code, error.message, USAGE if isinstance(error, _USAGE) else FAILED)
        case OSError():
            place = f": {error.filename}" if error.filename else ""
            return Failure("io", f"{error.strerror or type(error).__name__}{place}", FAILED)
        case _:
            return Failure(
                "internal",
                f"contextbus failed with {type(error).__name__}; set CONTEXTBUS_DEBUG=1 to see where, and report it",
                FAILED,
            )


def _unreachable(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, BusyError):
        return f"nobody serves this here: start the actors with `{called()} up`, or leave out --actors remote"
    if isinstance(error, DisconnectedError):
        return f"the server cannot be reached: {text}; check the URL and its user, or see `{called()} doctor`"
    return text


def report(error: BaseException, *, as_json: bool) -> int:
    """Print a failure on standard error; gives the exit code."""
    failure = describe(error)
    if as_json:
        sys.stderr.write(msgspec.json.encode({"error": failure}).decode() + "\n")
    else:
        stderr().print(Text.assemble(("error: ", "bold red"), failure.message), soft_wrap=True)
    if os.environ.get("CONTEXTBUS_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    return failure.exit_code
