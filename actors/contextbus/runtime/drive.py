"""Drive the pure machines of append and catch-up over the journal, one operation after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import assert_never

from contextbus.actors import append, catch_up
from contextbus.actors.effects import Fetch, Load, Store
from contextbus.runtime import connection_errors, journal
from contextbus.runtime.journal import Journal
from contextbus.runtime.package_store import PackageStore, name_command
from contextbus_protocol.outcomes import Committed, Conflicted, Fetched, Loaded, Unstored

FETCH_ATTEMPTS = 8
_FIRST_WAIT = 0.02
_LONGEST_WAIT = 1.0
_TOO_LARGE = 10054


class JournalDriver:
    """Carries out what rules ask of the log and of the package store.

    Args:
        journal: The log.
        packages: The package store over it.
        tenant: Whose log it is.
        sleep: Waits between attempts, in seconds.
    """

    def __init__(
        self,
        journal: Journal,
        packages: PackageStore,
        tenant: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._journal = journal
        self._packages = packages
        self._tenant = tenant
        self._sleep = sleep

    async def store(self, effect: Store) -> Committed | Conflicted | Unstored:
        """Put blobs, then commit, exactly once."""
        state, operation = append.begin(effect)
        while not isinstance(operation, append.Finish):
            state, operation = append.advance(state, await self._append(operation, effect.commit.command))
        return operation.result

    async def load(self, effect: Load) -> Loaded:
        """Read the commits of a part, whole and in order."""
        state, operation = catch_up.begin(effect, self._tenant)
        while not isinstance(operation, catch_up.Caught):
            state, operation = catch_up.advance(state, await self._catch_up(operation))
        return operation.result

    async def fetch(self, effect: Fetch) -> Fetched:
        """Read blobs of a run, again while nobody answers."""
        wait = _FIRST_WAIT
        for _ in range(FETCH_ATTEMPTS):
            found = await self._packages.get(effect.run, effect.digests)
            if not isinstance(found, journal.Unanswered):
                return Fetched(run=effect.run, token=effect.token, blobs=found)
            await self._sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
        return Fetched(run=effect.run, token=effect.token, code="deadline_exceeded")

    async def _append(
        self, operation: append.PutBlobs | append.AppendCommit | append.ReadLast | append.Wait, command: str
    ) -> append.Outcome:
        match operation:
            case append.PutBlobs(run, blobs):
                return _outcome(await self._packages.put(run, blobs, command))
            case append.AppendCommit(subject, data, expected, message_id, _):
                try:
                    sent = self._journal.append(
                        subject, data, expected=expected, message_id=message_id, command=name_command(command)
                    )
                except connection_errors.PayloadTooLargeError as error:
                    return append.Refused(_TOO_LARGE, str(error))
                return _outcome(await sent)
            case append.ReadLast(subject):
                return await self._last(subject, command)
            case append.Wait(seconds):
                await self._sleep(seconds)
                return append.Waited()
            case _:
                assert_never(operation)

    async def _catch_up(self, operation: catch_up.ReadPage | append.ReadLast | append.Wait) -> catch_up.Outcome:
        match operation:
            case catch_up.ReadPage(subject, after, limit):
                page = await self._journal.read(subject, after=after, limit=limit)
                if isinstance(page, journal.Unanswered):
                    return append.Unanswered(page.reason)
                return catch_up.PageRead(tuple((record.sequence, record.data) for record in page.records), page.more)
            case append.ReadLast(subject):
                return await self._last(subject, "")
            case append.Wait(seconds):
                await self._sleep(seconds)
                return append.Waited()
            case _:
                assert_never(operation)

    async def _last(self, subject: str, command: str) -> append.LastRead | append.Unanswered:
        record = await self._journal.last(subject)
        if isinstance(record, journal.Unanswered):
            return append.Unanswered(record.reason)
        if record is None:
            return append.LastRead()
        # A header holds the encoded id; whose else it is does not matter.
        ours = command != "" and record.command == name_command(command)
        return append.LastRead(record.sequence, record.data, command if ours else "")


def _outcome(
    outcome: append.BlobsPut | journal.Appended | journal.Refused | journal.Unanswered,
) -> append.BlobsPut | append.Appended | append.Refused | append.Unanswered:
    match outcome:
        case append.BlobsPut():
            return outcome
        case journal.Appended(sequence, duplicate):
            return append.Appended(sequence, duplicate)
        case journal.Refused(code, description):
            return append.Refused(code, description)
        case journal.Unanswered(reason):
            return append.Unanswered(reason)
        case _:
            assert_never(outcome)
