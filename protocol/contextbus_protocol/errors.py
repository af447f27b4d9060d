"""Errors with stable codes; a class has exactly one (D.W.9).

A failure crosses the bus as ``ErrorReply``; ``error_of`` makes the exception of its code on the other side (D.W.2).
Classes that stand for a wrong type or value also derive from the builtin of that meaning.
"""

from __future__ import annotations

from typing import ClassVar, Final

from contextbus_protocol.values import Value

LONGEST_WORD: Final = 64
_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class ErrorData(Value, frozen=True, kw_only=True):
    """What an error carries beside its message; no content."""

    required_tokens: int | None = None
    available_tokens: int | None = None
    phase: str | None = None
    origin: str | None = None
    origin_code: str | None = None
    origin_type: str | None = None
    field: str | None = None


class ContextBusError(Exception):
    """Base of every error that contextbus raises on purpose."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, data: ErrorData | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data or ErrorData()


class ContextBudgetExceededError(ContextBusError):
    """Mandatory content does not fit what the request leaves (D.B.15)."""

    code = "context_budget_exceeded"

    def __init__(self, message: str, data: ErrorData | None = None) -> None:
        super().__init__(message, data)
        self.required_tokens = self.data.required_tokens or 0
        self.available_tokens = self.data.available_tokens or 0
        self.phase = self.data.phase or "compile"


class InvalidRequestError(ContextBusError):
    """The request cannot be served as it is (D.T.2)."""

    code = "invalid_request"


class InvalidTypeError(ContextBusError, TypeError):
    """A value has the wrong type or shape (D.T.4)."""

    code = "invalid_type"


class RangeError(ContextBusError, ValueError):
    """A number is outside its range."""

    code = "invalid_range"


class EmptyHistoryError(ContextBusError, ValueError):
    """There is no message but system ones (P.E.15)."""

    code = "empty_history"


class ScopeConflictError(ContextBusError, TypeError):
    """A scope lies outside the pinned one (D.K.3)."""

    code = "scope_conflict"


class OriginError(ContextBusError):
    """Base of errors that somebody else's code caused; the log keeps code and type, no text (D.W.2)."""

    def __init__(self, message: str, data: ErrorData | None = None) -> None:
        super().__init__(message, data)
        self.origin = self.data.origin
        self.origin_code = self.data.origin_code
        self.origin_type = self.data.origin_type


class SourceFailedError(OriginError):
    """A required source failed (D.T.3)."""

    code = "source_failed"


class SummariserFailedError(OriginError):
    """A summariser failed."""

    code = "summariser_failed"


class HookFailedError(OriginError):
    """A function of the host failed."""

    code = "hook_failed"


class CallbackTimeoutError(OriginError):
    """A function of the host did not answer in time."""

    code = "callback_timeout"


class RevisionConflictError(ContextBusError):
    """The revision is not the expected one."""

    code = "revision_conflict"


class NotFoundError(ContextBusError):
    """What was asked for does not exist."""

    code = "not_found"


class ForbiddenError(ContextBusError):
    """The caller may not do this."""

    code = "forbidden"


class LimitError(ContextBusError):
    """A limit is reached."""

    code = "limit"


class RequestOverheadError(ContextBusError):
    """System layer and tools alone leave no room."""

    code = "request_overhead"


class DeadlineExceededError(ContextBusError):
    """No answer came in time; the same command id may be sent again without a second effect."""

    code = "deadline_exceeded"


class UnsupportedVersionError(ContextBusError):
    """The format or protocol version is not one of ours."""

    code = "unsupported_version"


class PayloadTooLargeError(ContextBusError):
    """A message is larger than the bus or the log takes."""

    code = "payload_too_large"


class StaleStepError(ContextBusError):
    """The run already has this step or a later one (D.G.3)."""

    code = "stale_step"


class CommandMismatchError(ContextBusError):
    """A command id was used again for another command."""

    code = "command_mismatch"


class ConflictError(ContextBusError):
    """Others changed the run faster than this command could be decided."""

    code = "conflict"


class BusyError(ContextBusError):
    """The actor or worker has no room for more work."""

    code = "busy"


class InternalError(ContextBusError):
    """A rule raised; the state is unchanged."""

    code = "internal"


def word_of(code: object) -> str | None:
    """A foreign exception's own code, if it is a word of at most 64 characters: content must not leak through it."""
    return code if isinstance(code, str) and 0 < len(code) <= LONGEST_WORD and _WORD.issuperset(code) else None


def origin_of(error: BaseException) -> tuple[str | None, str]:
    """What may be told of a foreign exception (D.W.2): its own code, if that is a word, and the name of its class.

    A class whose name is no word is called by the nearest of its bases that has one.
    """
    try:
        code = word_of(getattr(error, "code", None))
    except Exception:  # an attribute may be a property that raises
        code = None
    names = (word_of(cls.__name__[:LONGEST_WORD]) for cls in type(error).__mro__)
    return code, next(name for name in names if name is not None)


ERRORS: tuple[type[ContextBusError], ...] = (
    ContextBudgetExceededError,
    InvalidRequestError,
    InvalidTypeError,
    RangeError,
    EmptyHistoryError,
    ScopeConflictError,
    SourceFailedError,
    SummariserFailedError,
    HookFailedError,
    CallbackTimeoutError,
    RevisionConflictError,
    NotFoundError,
    ForbiddenError,
    LimitError,
    RequestOverheadError,
    DeadlineExceededError,
    UnsupportedVersionError,
    PayloadTooLargeError,
    StaleStepError,
    CommandMismatchError,
    ConflictError,
    BusyError,
    InternalError,
)
_BY_CODE = {cls.code: cls for cls in ERRORS}


def error_of(code: str, message: str, data: ErrorData | None = None) -> ContextBusError:
    """Make the exception of a code; an unknown code of a newer peer becomes ``InternalError``."""
    return _BY_CODE.get(code, InternalError)(message, data)
