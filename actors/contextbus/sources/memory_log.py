"""Reading and appending for the memory store: each operation of the journal tried until it is answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import anyio

from contextbus.runtime.journal import Appended, Code, Journal, Record, Refused, Unanswered
from contextbus_protocol.errors import DeadlineExceededError, LimitError

T = TypeVar("T")

ATTEMPTS: Final = 8
FIRST_WAIT_SECONDS: Final = 0.02
LONGEST_WAIT_SECONDS: Final = 1.0
_CONFLICTS: Final = (Code.WRONG_LAST_SEQUENCE, Code.CONFLICT_IN_FLIGHT)


async def insist(ask: Callable[[], Awaitable[T | Unanswered]]) -> T:
    """Ask until there is an answer, waiting a little longer each time.

    Raises:
        DeadlineExceededError: nobody answered; the same request may be made again without a second effect.
    """
    wait = FIRST_WAIT_SECONDS
    for _ in range(ATTEMPTS):
        answer = await ask()
        if not isinstance(answer, Unanswered):
            return answer
        await anyio.sleep(wait)
        wait = min(wait * 2, LONGEST_WAIT_SECONDS)
    raise DeadlineExceededError("the memory stream did not answer; the request may be sent again")


async def append(
    journal: Journal, subject: str, data: bytes, *, expected: int, message_id: str, command: str
) -> int | None:
    """Append where the last message of the subject has the sequence ``expected``; None if it has not.

    After a lost answer it may be None although the message is stored: the caller finds it by its command.

    Raises:
        LimitError: the stream refuses, as it does when it is full.
        DeadlineExceededError: nobody answered.
    """
    answer: Appended | Refused = await insist(
        lambda: journal.append(subject, data, expected=expected, message_id=message_id, command=command)
    )
    if isinstance(answer, Appended):
        return None if answer.duplicate else answer.sequence
    if answer.code in _CONFLICTS:
        return None
    raise LimitError(f"the memory stream refuses with code {answer.code}: {answer.description}")


async def read_all(journal: Journal, subject: str, *, after: int = 0) -> AsyncGenerator[tuple[Record, ...]]:
    """The messages of a subject or pattern behind a sequence, page by page."""
    more = True
    while more:
        page = await insist(partial(journal.read, subject, after=after))
        if not page.records:
            return
        yield page.records
        after, more = page.records[-1].sequence, page.more


async def erase(journal: Journal, subject: str, sequence: int) -> bool:
    """Erase one message from the disk; False if it is gone already.

    Raises:
        LimitError: the stream refuses.
        DeadlineExceededError: nobody answered.
    """
    answer: bool | Refused = await insist(lambda: journal.erase(subject, sequence))
    if isinstance(answer, Refused):
        raise LimitError(f"the memory stream refuses to erase, code {answer.code}: {answer.description}")
    return answer


async def erase_all(journal: Journal, subject: str) -> int:
    """Erase every message of a subject from the disk, those included that come while it works; gives their number.

    Raises:
        LimitError: the stream refuses.
        DeadlineExceededError: nobody answered.
    """
    count = 0
    while sequences := await insist(partial(journal.sequences, subject)):
        for sequence in sequences:
            count += await erase(journal, subject, sequence)
    return count
