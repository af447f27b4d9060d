"""A forget from end to end: real files, real actors, and a text that only the record held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.client.scripted import MODEL, SCOPE, Scripted

import contextbus.client as contextbus
from contextbus.client.context_bus import ContextBus
from contextbus.client.memories import Memories
from contextbus.runtime.package_store import CHUNK_BYTES
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import ForbiddenError, InvalidRequestError, ScopeConflictError
from contextbus_protocol.events import PackageRedacted
from contextbus_protocol.memory_records import RedactedRun
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Candidate, Scope, SourceSpec

pytestmark = pytest.mark.broker

SECRET = "quuxanzibar"
ASKED = user("Which tea does she like?")
DONE = contextbus.Report(status="succeeded", messages=[assistant("I know.")])
SOURCES = ("memory", SourceSpec("rag", "rag"))


class Held(Scripted):
    """A source that answers when it is let."""

    def __init__(self) -> None:
        super().__init__([contextbus.candidate("0", "Tea grows on hills.", 0.9)])
        self.reached = asyncio.Event()
        self.let = asyncio.Event()

    async def query(self, query: Query) -> list[Candidate]:
        """Say that it was asked, and wait."""
        self.reached.set()
        await self.let.wait()
        return list(await super().query(query))


async def read_all(folder: Path) -> bytes:
    """The bytes of every file of the data folder: streams and indexes."""

    def read() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())

    return (await asyncio.to_thread(read)).lower()


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so, for half a minute at most."""
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.05)


async def redactions(bus: ContextBus, run: str) -> list[PackageRedacted]:
    """The redactions in the log of a run."""
    log = await bus.log(run)
    return [e for logged in log.commits for e in logged.commit.events if isinstance(e, PackageRedacted)]


@pytest.mark.rule("D.J.1", "D.J.2", "D.J.4", "D.J.6", "D.J.7", "D.K.24", "B63")
async def test_nothing_of_a_forgotten_record_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with contextbus.open(data=folder) as bus:
        gone = await bus.memories.remember(f"She likes {SECRET} tea.", scope=SCOPE)
        await bus.memories.remember(f"She likes {SECRET.upper()} tea twice.", scope=SCOPE, record_id=gone.record_id)
        kept = await bus.memories.remember("She drinks tea at four.", scope=SCOPE)
        run = await bus.run("one", scope=SCOPE, sources=["memory"])
        first = await run.before_model_call([ASKED], model=MODEL)
        assert SECRET in first.text.lower()
        await run.after_model_call(DONE)
        second = await run.before_model_call([user("And today?")], model=MODEL, refresh=True)
        await run.after_model_call(DONE)
        other = await bus.run("two", scope=SCOPE, sources=["memory"])
        await other.before_model_call([ASKED], model=MODEL)
        assert SECRET.encode() in await read_all(folder)

        forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert SECRET.encode() not in await read_all(folder)
        assert forgotten.redacted == (RedactedRun("one", (first.step, second.step)), RedactedRun("two", (0,)))
        assert (forgotten.revisions, forgotten.blobs) == (2, 3)
        assert (forgotten.messages, forgotten.items) == (0, 0)
        with pytest.raises(ForbiddenError):
            await bus.memories.remember(f"She likes {SECRET} tea.", scope=SCOPE)

        third = await run.before_model_call([user("And tomorrow?")], model=MODEL)
        manifest = third.manifest
        assert (manifest.refresh, manifest.redacted, manifest.cache_prefix_cause) == ("redacted", True, "redacted")
        assert [(e.record_id, e.reason) for e in third.manifest.entries] == [(kept.record_id, "restored")]
        assert SECRET.encode() not in b"".join(third.payload().chunks()).lower()
        assert b"at four" in b"".join(third.payload().chunks())
        again = await other.before_model_call(model=MODEL)
        assert SECRET not in again.text.lower()
        assert (again.step, again.manifest.redacted) == (0, True)
        assert SECRET.encode() not in await read_all(folder)
    assert SECRET.encode() not in await read_all(folder)


@pytest.mark.rule("D.J.4", "D.J.7", "D.K.1")
async def test_a_session_of_the_bus_forgets_as_the_bus_does(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with contextbus.open(data=folder) as bus:
        session = bus.memories.session(scope=SCOPE)
        gone = await session.remember(f"She likes {SECRET} tea.")
        run = await bus.run("one", scope=SCOPE, sources=["memory"])
        step = await run.before_model_call([ASKED], model=MODEL)
        assert SECRET in step.text
        forgotten = await session.forget(gone.record.record_id)
        assert forgotten.redacted == (RedactedRun("one", (0,)),)
        assert SECRET.encode() not in await read_all(folder)
        with pytest.raises(ScopeConflictError):
            bus.memories.session(scope=Scope())
        with pytest.raises(InvalidRequestError, match="worker"):
            Memories(bus.host, None).session(scope=SCOPE)


@pytest.mark.rule("D.J.4", "D.J.7")
async def test_a_step_under_way_during_the_forget_leaves_nothing(tmp_path: Path) -> None:
    folder, slow = tmp_path / "data", Held()
    async with contextbus.open(data=folder, sources=[slow]) as bus:
        gone = await bus.memories.remember(f"She likes {SECRET} tea.", scope=SCOPE)
        run = await bus.run("one", scope=SCOPE, sources=SOURCES)
        compiling = asyncio.create_task(run.before_model_call([ASKED], model=MODEL))
        await slow.reached.wait()
        # the records are at hand already when the slow source answers
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert SECRET.encode() not in await read_all(folder)
        slow.let.set()
        step = await compiling
        assert SECRET not in step.text

        async def is_gone() -> bool:
            return SECRET.encode() not in await read_all(folder)

        await eventually(is_gone)


@pytest.mark.rule("D.J.7")
@pytest.mark.parametrize("padding", [0, 2 * CHUNK_BYTES], ids=["whole", "chunks"])
async def test_a_package_that_no_commit_names_leaves_nothing(tmp_path: Path, padding: int) -> None:
    folder = tmp_path / "data"
    async with contextbus.open(data=folder) as bus:
        gone = await bus.memories.remember(f"She likes {SECRET} tea.", scope=SCOPE)
        run = await bus.run("one", scope=SCOPE, sources=["memory"])
        step = await run.before_model_call([ASKED], model=MODEL)
        ((_, data),) = await fetch(bus, "one", step.reference)
        # placement died between its blobs and its commit
        lost = data[:-1] + b',"later":"' + b"x" * padding + b'"}'
        await bus.host.packages.put("two", ((digest_bytes(lost), lost),), "died")
        forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert (forgotten.redacted, forgotten.blobs) == ((RedactedRun("one", (0,)),), 2)
        assert SECRET.encode() not in await read_all(folder)
        assert await fetch(bus, "two", digest_bytes(lost)) == ()


@pytest.mark.rule("D.J.7")
async def test_a_package_in_chunks_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with contextbus.open(data=folder) as bus:
        long = " She likes black tea." * 2900
        gone = await bus.memories.remember(f"She likes {SECRET} tea.{long}", scope=SCOPE)
        for number in range(10):
            await bus.memories.remember(f"Tea number {number}.{long}", scope=SCOPE)
        run = await bus.run("one", scope=SCOPE, sources=["memory"])
        step = await run.before_model_call([ASKED], model=MODEL)
        ((_, data),) = await fetch(bus, "one", step.reference)
        assert len(data) > CHUNK_BYTES
        assert SECRET.encode() in await read_all(folder)
        forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert forgotten.redacted == (RedactedRun("one", (0,)),)
        assert SECRET.encode() not in await read_all(folder)
        (redaction,) = await redactions(bus, "one")
        ((_, left),) = await fetch(bus, "one", redaction.replacement)
        assert b"Tea number 9." in left


@pytest.mark.rule("D.J.7")
async def test_messages_and_working_memory_that_quote_it_are_counted_and_stay(tmp_path: Path) -> None:
    folder, text = tmp_path / "data", f"She likes {SECRET} tea."
    async with contextbus.open(data=folder) as bus:
        gone = await bus.memories.remember(text, scope=SCOPE)
        run = await bus.run("one", scope=SCOPE, sources=["memory"])
        await run.working_memory.create(goal=f"Remember: {text}")
        await run.before_model_call([user(f"{text} Which tea?"), ASKED], model=MODEL)
        forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert (forgotten.messages, forgotten.items) == (1, 1)
        assert run.messages == (user(f"{text} Which tea?"), ASKED)
        held = await read_all(folder)
        # the message that quotes it, and the goal in the log of the working memory
        assert held.count(text.lower().encode()) >= 2


@pytest.mark.rule("D.H.7", "D.J.6")
@pytest.mark.parametrize("kept", [True, False])
async def test_other_records_of_a_redacted_block_return_at_once_or_with_the_next_refresh_if_their_texts_are_gone(
    *, kept: bool
) -> None:
    leaf = contextbus.candidate("0", "Tea is a leaf.", 1)
    rag = Scripted([leaf])
    async with contextbus.open("memory:", sources=[rag]) as bus:
        gone = await bus.memories.remember(f"She likes {SECRET} tea.", scope=SCOPE)
        run = await bus.run("one", scope=SCOPE, sources=SOURCES)
        first = await run.before_model_call([ASKED], model=MODEL)
        await run.after_model_call(DONE)
        if not kept:
            await bus.host.packages.erase("one", first.reference)  # as retention does
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        rag.answer = []
        second = await run.before_model_call([ASKED], model=MODEL)
        await run.after_model_call(DONE)
        rag.answer = [leaf]
        third = await run.before_model_call([ASKED], model=MODEL, refresh=True)
        reasons = [[(e.record_id, e.reason) for e in step.manifest.entries] for step in (second, third)]
        at_once, later = [[("0", "restored")], [("0", "already-placed")]], [[], [("0", "ranked")]]
        assert reasons == (at_once if kept else later)


async def fetch(bus: ContextBus, run: str, reference: str) -> tuple[tuple[str, bytes], ...]:
    """A blob, if it is there."""
    found = await bus.host.packages.get(run, (reference,))
    assert isinstance(found, tuple)
    return found
