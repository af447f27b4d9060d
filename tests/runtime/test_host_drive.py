"""The machines of append and catch-up over a journal that loses requests and acknowledgements, by a seeded plan."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Mapping

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from contextbus.actors.effects import Fetch, Load, Store
from contextbus.runtime.connection_errors import PayloadTooLargeError
from contextbus.runtime.drive import JournalDriver
from contextbus.runtime.journal import Appended, Page, Record, Refused, Unanswered
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.package_store import PackageStore
from contextbus_protocol import codec, subjects
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.events import Commit, RefreshRequested
from contextbus_protocol.outcomes import Committed, Conflicted, Unstored

LOST = Unanswered("timeout")


class _Faulty(MemoryJournal):
    """Loses requests and answers with some probability; what was stored stays stored."""

    def __init__(self, seed: int, losses: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._losses = losses
        self.lost = 0

    def append(
        self, subject: str, data: bytes, *, expected: int, message_id: str, command: str
    ) -> Awaitable[Appended | Refused | Unanswered]:
        async def act() -> Appended | Refused | Unanswered:
            if await self._loses():
                return LOST
            done = await super(_Faulty, self).append(
                subject, data, expected=expected, message_id=message_id, command=command
            )
            return LOST if await self._loses() else done

        return act()

    def put(self, subject: str, data: bytes, *, headers: Mapping[str, str]) -> Awaitable[bool | Refused | Unanswered]:
        async def act() -> bool | Refused | Unanswered:
            if await self._loses():
                return LOST
            done = await super(_Faulty, self).put(subject, data, headers=headers)
            return LOST if await self._loses() else done

        return act()

    async def last(self, subject: str) -> Record | Unanswered | None:
        return LOST if await self._loses() else await super().last(subject)

    async def read(self, subject: str, *, after: int, limit: int = 3) -> Page | Unanswered:
        return LOST if await self._loses() else await super().read(subject, after=after, limit=min(limit, 3))

    async def get(self, subject: str) -> bytes | Unanswered | None:
        return LOST if await self._loses() else await super().get(subject)

    async def _loses(self) -> bool:
        for _ in range(self._random.randrange(3)):
            await asyncio.sleep(0)
        lost = self._random.random() < self._losses
        self.lost += lost
        return lost


async def no_wait(seconds: float) -> None:
    """Let others run, but not for long."""
    del seconds
    await asyncio.sleep(0)


def commit_of(command: str, previous: str = "", at: int = 0) -> Commit:
    return Commit(
        version=codec.COMMIT_VERSION,
        tenant="t",
        run="run",
        part="run",
        command=command,
        command_digest="",
        attempt=1,
        engine="test",
        policy=1,
        previous=previous,
        at=at,
        events=(RefreshRequested(),),
    )


def store_of(command: str, expected: int = 0, previous: str = "", at: int = 0) -> Store:
    data = f"blob of {command}".encode()
    return Store(commit_of(command, previous, at), expected, command, ((digest_bytes(data), data),))


def driver_of(journal: MemoryJournal) -> JournalDriver:
    return JournalDriver(journal, PackageStore(journal, "t"), "t", no_wait)


async def write(driver: JournalDriver, writer: str, count: int) -> list[tuple[str, int]]:
    """Commit some commands, each until it is stored, as an actor does that loads the tail after a conflict."""
    stored: list[tuple[str, int]] = []
    expected, previous = 0, ""
    for number in range(count):
        command = f"{writer} \r\n {number}"
        while True:
            result = await driver.store(store_of(command, expected, previous))
            if isinstance(result, Committed):
                assert result.commit.command == command
                stored.append((command, result.sequence))
                expected, previous = result.sequence, result.digest
                break
            loaded = await driver.load(Load("run", "run", 0, "load"))
            if loaded.code is None and loaded.commits:
                expected, previous = loaded.commits[-1][0], loaded.commits[-1][1]
                ours = next((seq for seq, _, commit in loaded.commits if commit.command == command), None)
                if ours is not None:
                    stored.append((command, ours))
                    break
    return stored


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 0.4), st.integers(1, 4))
def test_every_command_is_stored_exactly_once(seed: int, losses: float, writers: int) -> None:
    journal = _Faulty(seed, losses)

    async def all_write() -> list[list[tuple[str, int]]]:
        driver = driver_of(journal)
        return await asyncio.gather(*(write(driver, f"w{i}", 5) for i in range(writers)))

    told = sorted(seq_of for stored in asyncio.run(all_write()) for seq_of in stored)

    async def read_back() -> list[tuple[str, int]]:
        page = await MemoryJournal.read(journal, subjects.log("t", "run", "run"), after=0, limit=1000)
        assert isinstance(page, Page)
        commits = [(record.sequence, record.data, codec.decode_commit(record.data)) for record in page.records]
        previous = ""
        for _, data, commit in commits:
            assert commit.previous == previous
            previous = digest_bytes(data)
            blob = digest_bytes(f"blob of {commit.command}".encode())
            assert await MemoryJournal.get(journal, subjects.blob("t", "run", blob)) is not None
        return sorted((commit.command, sequence) for sequence, _, commit in commits)

    assert asyncio.run(read_back()) == told
    assert len(told) == 5 * writers


class _LosesAcks(MemoryJournal):
    """Stores, and loses the first acknowledgements."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self._lost = lost

    def append(
        self, subject: str, data: bytes, *, expected: int, message_id: str, command: str
    ) -> Awaitable[Appended | Refused | Unanswered]:
        done = super().append(subject, data, expected=expected, message_id=message_id, command=command)

        async def lose() -> Unanswered:
            return LOST

        self._lost -= 1
        return lose() if self._lost >= 0 else done


async def test_a_lost_acknowledgement_is_settled_by_the_last_message() -> None:
    driver = driver_of(_LosesAcks(2))
    result = await driver.store(store_of("c"))
    assert isinstance(result, Committed)
    assert result.sequence == 1


async def test_the_stored_commit_is_the_answer_to_a_retry() -> None:
    driver = driver_of(MemoryJournal())
    first = await driver.store(store_of("c", at=1))
    again = await driver.store(store_of("c", at=2))
    assert first == again
    assert isinstance(again, Committed)
    assert again.commit.at == 1


async def test_anothers_commit_is_a_conflict() -> None:
    driver = driver_of(MemoryJournal())
    await driver.store(store_of("theirs"))
    assert isinstance(await driver.store(store_of("ours")), Conflicted)


async def test_silence_ends() -> None:
    driver = driver_of(_Faulty(1, 1.0))
    result = await driver.store(store_of("c"))
    assert isinstance(result, Unstored)
    assert result.code == "deadline_exceeded"
    assert (await driver.load(Load("run", "run", 0, "t"))).code == "deadline_exceeded"
    assert (await driver.fetch(Fetch("run", (digest_bytes(b""),), "t"))).code == "deadline_exceeded"


class _Small(MemoryJournal):
    """Takes no commit: it is too large."""

    def append(
        self, subject: str, data: bytes, *, expected: int, message_id: str, command: str
    ) -> Awaitable[Appended | Refused | Unanswered]:
        raise PayloadTooLargeError("too large")


async def test_a_commit_that_is_too_large_is_refused() -> None:
    result = await driver_of(_Small()).store(store_of("c"))
    assert isinstance(result, Unstored)
    assert result.code == "payload_too_large"


async def test_load_gives_all_pages() -> None:
    driver = driver_of(_Faulty(3, 0.2))
    await write(driver, "w", 10)
    loaded = await driver.load(Load("run", "run", 4, "t"))
    assert [sequence for sequence, _, _ in loaded.commits] == [5, 6, 7, 8, 9, 10]
    assert msgspec.structs.asdict(loaded)["code"] is None
