"""The append algorithm: blobs, then one commit, exactly once (design: section 3).

A pure state machine over the log's primitive operations, driven by the host and by the simulation alike.  One
operation is under way at a time.  The expectation alone makes a commit exactly-once: after a lost acknowledgement the
retry is refused, and the last message of the subject, read through the leader, tells whether it is ours.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from contextbus.actors.effects import Store
from contextbus_protocol import codec, digests, subjects
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.events import Commit, StepFailed
from contextbus_protocol.outcomes import Committed, Conflicted, Unstored

ATTEMPTS: Final = 12
WRONG_LAST_SEQUENCE: Final = (10071, 10164)
STORE_FULL: Final = (10023, 10047, 10077)
TOO_LARGE: Final = 10054
LOOK: Final = "`contextbus doctor` tells whether its server and streams are there"
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 1.0


class PutBlobs(msgspec.Struct, frozen=True):
    """Put blobs; "already there" is success.  Answered by ``BlobsPut``, ``Refused`` or ``Unanswered``."""

    run: str
    blobs: tuple[tuple[str, bytes], ...]


class AppendCommit(msgspec.Struct, frozen=True):
    """Append one message.  Answered by ``Appended``, ``Refused`` or ``Unanswered``."""

    subject: str
    data: bytes
    expected: int
    message_id: str
    command: str


class ReadLast(msgspec.Struct, frozen=True):
    """Read the last message of a subject through the leader.  Answered by ``LastRead`` or ``Unanswered``."""

    subject: str


class Wait(msgspec.Struct, frozen=True):
    """Wait before the next operation, in seconds.  Answered by ``Waited``."""

    seconds: float


class Finish(msgspec.Struct, frozen=True):
    """The algorithm is over; the result goes to the actor that asked."""

    result: Committed | Conflicted | Unstored


Operation = PutBlobs | AppendCommit | ReadLast | Wait | Finish


class BlobsPut(msgspec.Struct, frozen=True):
    """All blobs are stored."""


class Appended(msgspec.Struct, frozen=True):
    """The message is stored; ``duplicate`` means that an earlier one of the same id is."""

    sequence: int
    duplicate: bool = False


class Refused(msgspec.Struct, frozen=True):
    """The server refused with an error code of JetStream."""

    code: int
    reason: str = ""


class Unanswered(msgspec.Struct, frozen=True):
    """Nobody answered: a timeout, no responders, or a lost connection.  What happened is not known."""

    reason: str = ""


class LastRead(msgspec.Struct, frozen=True):
    """The last message of the subject, if any."""

    sequence: int = 0
    data: bytes | None = None
    command: str = ""


class Waited(msgspec.Struct, frozen=True):
    """The wait is over."""


Outcome = BlobsPut | Appended | Refused | Unanswered | LastRead | Waited


class Appending(msgspec.Struct, frozen=True):
    """Where the algorithm stands."""

    store: Store
    subject: str
    data: bytes
    digest: str
    phase: Literal["blobs", "commit", "last"]
    tries: int = 0


def begin(store: Store) -> tuple[Appending, Operation]:
    """Start: blobs first, so that no commit names a blob that is not there."""
    commit = store.commit
    data = codec.encode_commit(commit)
    subject = subjects.log(commit.tenant, commit.run, commit.part)
    state = Appending(store, subject, data, digests.digest_bytes(data), "blobs" if store.blobs else "commit")
    return state, _operation(state)


def advance(state: Appending, outcome: Outcome) -> tuple[Appending, Operation]:
    """Take the outcome of the operation under way and name the next one."""
    match outcome:
        case Waited():
            return state, _operation(state)
        case Unanswered():
            if state.tries + 1 >= ATTEMPTS:
                return state, _unstored(state, "deadline_exceeded", f"the log did not answer; {LOOK}")
            wait = min(_FIRST_WAIT * 2**state.tries, _LONGEST_WAIT)
            return msgspec.structs.replace(state, tries=state.tries + 1), Wait(wait)
        case BlobsPut():
            state = msgspec.structs.replace(state, phase="commit")
            return state, _operation(state)
        case Appended(sequence, duplicate):
            if duplicate:
                state = msgspec.structs.replace(state, phase="last")
                return state, _operation(state)
            return state, Finish(_committed(state, sequence, state.digest, state.store.commit))
        case Refused(code, reason):
            if code in WRONG_LAST_SEQUENCE and state.phase == "commit":
                state = msgspec.structs.replace(state, phase="last")
                return state, _operation(state)
            if code == TOO_LARGE:
                fix = "record messages in parts (append, then flush), or shorten the longest"
                return state, _unstored(state, "payload_too_large", f"{reason}; {fix}")
            fix = "; free disk space or raise the limit of its stream, then send it again" if code in STORE_FULL else ""
            return state, _unstored(state, "limit", f"the log refused with code {code}: {reason}{fix}")
        case LastRead():
            return state, _settle(state, outcome)


def _operation(state: Appending) -> Operation:
    commit = state.store.commit
    if state.phase == "blobs":
        return PutBlobs(commit.run, state.store.blobs)
    if state.phase == "last":
        return ReadLast(state.subject)
    return AppendCommit(state.subject, state.data, state.store.expected, message_id(commit), commit.command)


def message_id(commit: Commit) -> str:
    """An id that no other commit of the stream has: the window of ``Nats-Msg-Id`` is stream-wide."""
    key = (commit.tenant, commit.run, commit.part, commit.previous, commit.command, commit.attempt)
    return digests.digest_bytes(codec.encode_json(key))


def _settle(state: Appending, last: LastRead) -> Operation:
    ours = state.store.commit
    if last.data is None or last.sequence <= state.store.expected or last.command != ours.command:
        return Finish(Conflicted(run=ours.run, token=state.store.token, part=ours.part))
    digest = digests.digest_bytes(last.data)
    if digest == state.digest:
        return Finish(_committed(state, last.sequence, digest, ours))
    try:
        stored = codec.decode_commit(last.data)
    except ContextBusError as exc:
        return _unstored(state, exc.code, exc.message)
    if stored.command_digest != ours.command_digest or any(isinstance(e, StepFailed) for e in stored.events):
        # another command of this id, or an attempt that failed and left the command open: whoever asked decides again
        return Finish(Conflicted(run=ours.run, token=state.store.token, part=ours.part))
    return Finish(_committed(state, last.sequence, digest, stored))


def _committed(state: Appending, sequence: int, digest: str, commit: Commit) -> Committed:
    return Committed(
        run=commit.run,
        token=state.store.token,
        part=commit.part,
        sequence=sequence,
        digest=digest,
        commit=commit,
    )


def _unstored(state: Appending, code: str, message: str) -> Finish:
    commit = state.store.commit
    return Finish(Unstored(run=commit.run, token=state.store.token, part=commit.part, code=code, message=message))
