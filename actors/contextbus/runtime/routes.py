"""Which messages an actor takes where, whom to tell when one is refused, and what is checked before it is let in.

A client may send to command subjects and inboxes whatever it likes; results of the log (``loaded``, ``fetched``,
``elapsed``) are therefore never taken from the bus.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from contextbus.actors.effects import Send
from contextbus.runtime.worker_answers import SOURCES, SUMMARISERS
from contextbus_protocol import subjects
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered
from contextbus_protocol.commands import (
    AppendMessages,
    CancelCommand,
    ClearHistory,
    CompileStep,
    CreateWorkingMemory,
    ErrorReply,
    OverflowStep,
    PatchWorkingMemory,
    ReadWorkingMemory,
    RedactPackages,
    ReportStep,
    RequestRefresh,
    ResetCompaction,
)
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.compaction import Compact, CompactionEnded, Summarise, Summarised, SummaryFailed
from contextbus_protocol.envelope import Command, ReplyEncoding
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.memory_records import AllowRecords, Forget, ListRecords, Remember
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Unstored
from contextbus_protocol.questions import AskItems, Failed, ItemsOffered, Offered, Query
from contextbus_protocol.subjects import ActorName

COMMANDS: Final[dict[ActorName, frozenset[type]]] = {
    "selection": frozenset(
        (
            CompileStep,
            OverflowStep,
            ReportStep,
            AppendMessages,
            RequestRefresh,
            RedactPackages,
            ResetCompaction,
            ClearHistory,
            CancelCommand,
        )
    ),
    "working-memory": frozenset((CreateWorkingMemory, PatchWorkingMemory, ReadWorkingMemory, AskItems, CancelCommand)),
    "placement": frozenset((Place, Record, CancelCommand)),
    "compaction": frozenset((Compact, CancelCommand)),
}
ANSWERS: Final[dict[ActorName, frozenset[type]]] = {
    "selection": frozenset(
        (ItemsOffered, Offered, Failed, CallbackAnswered, CompactionEnded, Committed, Conflicted, Unstored)
    ),
    "working-memory": frozenset(),
    "placement": frozenset(),
    "compaction": frozenset((Summarised, SummaryFailed, CallbackAnswered, Committed, Conflicted, Unstored)),
}

MOST_SECONDS = 86_400.0
"""The longest time that a command may take, in seconds."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a message is not let in."""

    code: str
    message: str


def fill_reply(message: AnyMessage, reply: str, encoding: ReplyEncoding) -> AnyMessage:
    """Answer a client where the frame says if it names no address, and in the encoding in which it asked."""
    if isinstance(message, Command | Remember | Forget | ListRecords | AllowRecords):
        reply_to = message.reply_to or reply
        if encoding != message.reply_as or reply_to is not message.reply_to:
            reply_as: ReplyEncoding = "json" if encoding == "json" else message.reply_as
            return msgspec.structs.replace(message, reply_to=reply_to, reply_as=reply_as)
    return message


def addresses(message: AnyMessage) -> tuple[str, ...]:
    """List the addresses at which a message asks to be answered."""
    if isinstance(message, Place | Record | Compact):
        return (message.head.reply_to, message.head.notify)
    if isinstance(message, Command | AskItems | AskCallback | Query | Summarise):
        return (message.reply_to,)
    if isinstance(message, Remember | Forget | ListRecords | AllowRecords):
        return (message.reply_to,)
    return ()


@lru_cache(maxsize=8192)
def is_address(subject: str, tenant: str) -> bool:
    """Whether answers of a tenant may go to a subject."""
    return subjects.is_reply_address(subject, tenant)


def check(message: AnyMessage, tenant: str) -> Refusal | None:
    """Check what every message must keep to: its tenant, names that fit a subject, and time left."""
    if isinstance(message, Place | Record | Compact):
        head = message.head
        if head.run != message.run:
            return Refusal("invalid_request", "the head names another run than the message")
        return _check(head.tenant, head.run, head.command, head.seconds_left, tenant)
    if isinstance(message, Command | Query | Summarise):
        return _check(message.tenant, message.run, message.command, message.seconds_left, tenant)
    if isinstance(message, AskItems | CancelCommand | Remember | Forget | ListRecords | AllowRecords):
        return _check(message.tenant, message.run, "-", 1.0, tenant)
    return None


def _check(theirs: str, run: str, command: str, seconds_left: float, tenant: str) -> Refusal | None:
    if theirs != tenant:
        return Refusal("invalid_request", "the message belongs to another tenant than this subject")
    for field, name in (("run", run), ("command", command)):
        wrong = _check_name(name)
        if wrong is not None:
            return Refusal("invalid_request", f"{field}: {wrong}")
    if seconds_left > MOST_SECONDS:
        text = (
            f"a command may take {MOST_SECONDS:.0f} seconds at most: one without an end would keep its run for itself"
        )
        return Refusal("invalid_request", text)
    if not seconds_left > 0:
        return Refusal("deadline_exceeded", "no time was left when the message arrived; send it again with more")
    return None


@lru_cache(maxsize=8192)
def _check_name(name: str) -> str | None:
    try:
        subjects.encode_name(name)
    except InvalidTypeError as error:
        return error.message
    return None


def refuse(message: AnyMessage, code: str, text: str) -> tuple[Send, ...]:
    """Tell who waits for a message that it came to nothing, in the form that it takes there.

    Of what placement was to store, who asked for it is told, and selection of a compaction: it has the command and
    answers the client.
    """
    match message:
        case Place() | Record():
            head = message.head
            unstored = Unstored(run=message.run, token=head.token, part="run", code=code, message=text)
            return (Send(head.notify, unstored),)
        case Compact():
            head = message.head
            ended = CompactionEnded(
                run=message.run,
                token=head.token,
                evaluation=message.started.evaluation,
                sequence=head.expected,
                status="failed",
                code=code,
                message=text,
            )
            return (Send(head.notify, ended),)
        case Command():
            error = ErrorReply(run=message.run, command=message.command, code=code, message=text)
            return (Send(message.reply_to, error, message.reply_as),)
        case AskItems():
            return (Send(message.reply_to, ItemsOffered(run=message.run, token=message.token, code=code)),)
        case Query():
            return (Send(message.reply_to, SOURCES.fail(message, _word(code))),)
        case Summarise():
            return (Send(message.reply_to, SUMMARISERS.fail(message, _word(code))),)
        case Remember() | Forget() | ListRecords() | AllowRecords():
            error = ErrorReply(run=message.run, command=message.message_id, code=code, message=text)
            return (Send(message.reply_to, error, message.reply_as),)
        case _:
            return ()


def _word(code: str) -> str:
    """The word for a failure among those that a worker may give."""
    return {"deadline_exceeded": "timeout", "busy": "busy", "invalid_request": "malformed"}.get(code, "error")
