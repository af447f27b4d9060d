"""Memory sources from a session or a pinned store, and the erasures that an answer is as of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypedDict

import anyio
import pytest
from tests.sources.conftest import ADA, Ask

from contextbus.core.scope import require_within
from contextbus.runtime.bus import Bus, Frame
from contextbus.runtime.journal import Journal
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.sources.announcements import announcement
from contextbus.sources.answers import handler
from contextbus.sources.interface import Answer, FoundRecords, Pinned, candidate, scope_read, source
from contextbus.sources.memory import MemorySource, memory_source
from contextbus.sources.memory_index import MemoryIndex, open_index
from contextbus.sources.memory_session import MemorySession, memory_session
from contextbus.sources.memory_store import MemoryStore
from contextbus.sources.worker import Worker
from contextbus_protocol import codec, subjects
from contextbus_protocol.errors import NotFoundError, ScopeConflictError
from contextbus_protocol.memory_records import Forget, ListRecords, RecordsListed, Remember
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import Scope

BOB = Scope(user_id="bob")
ADA_IN_RUN = Scope(user_id="ada", run_id="r1")


class Head(TypedDict):
    """What every request says."""

    run: str
    tenant: str
    reply_to: str
    source: str


class Noon:
    """A clock that stands still."""

    def now(self) -> float:
        return 12.5

    def elapsed(self) -> float:
        return 0.0


async def ask_texts(made: MemorySource, query: Query) -> list[str]:
    offered = await handler(made)(query)
    assert isinstance(offered, Offered), offered
    return [found.text for found in offered.candidates]


@pytest.mark.rule("D.K.1", "D.K.24")
async def test_a_session_remembers_lists_and_forgets_at_its_scope(
    journal: Journal, tenant: str, tmp_path: Path, ask: Ask
) -> None:
    ada = memory_session(journal, tenant, scope=ADA, data=tmp_path)
    bob = MemorySession(ada.store, BOB)
    stored = await ada.remember("Every deploy goes to eu-west.", message_id="m")
    again = await ada.remember("Every deploy goes to eu-west.", message_id="m", now=stored.record.at)
    changed = await ada.remember("Every deploy goes to eu-north.", record_id=stored.record.record_id)
    await bob.remember("Bob deploys by hand.")
    assert (again.sequence, changed.record.revision, changed.record.scope) == (stored.sequence, 2, ADA)
    assert [record.text for record in await ada.list()] == ["Every deploy goes to eu-north."]

    made = memory_source(session=ada, required=True)
    assert (made.id, made.kind, made.required) == ("memory", "memory", True)
    assert await ask_texts(made, ask("deploy")) == ["Every deploy goes to eu-north."]
    with pytest.raises(NotFoundError):
        await bob.forget(stored.record.record_id)
    erased = await ada.forget(stored.record.record_id)
    assert erased.revisions == 2
    assert await ada.list() == ()
    assert len(await bob.list(limit=1)) == 1
    await ada.aclose()


async def test_a_session_dates_what_it_remembers(tenant: str) -> None:
    store = MemoryStore(MemoryJournal(), tenant, open_index(tenant, "memory", None))
    session = MemorySession(store, ADA, clock=Noon())
    assert (await session.remember("tea")).record.at == 12_500
    assert (await session.remember("green tea", now=7)).record.at == 7
    await session.aclose()


@pytest.mark.rule("D.K.2", "D.K.4")
def test_a_session_names_somebody_within_the_scope_of_its_store(tenant: str) -> None:
    pinned = MemoryStore(MemoryJournal(), tenant, MemoryIndex(":memory:"), scope=ADA)
    assert MemorySession(pinned, Scope(run_id="r1")).scope == ADA_IN_RUN
    with pytest.raises(ScopeConflictError):
        MemorySession(pinned, BOB)
    with pytest.raises(ScopeConflictError):
        memory_session(MemoryJournal(), tenant, scope=Scope())


@pytest.mark.rule("D.K.3", "D.K.5")
async def test_a_session_is_read_at_its_own_scope_and_a_pinned_store_at_the_narrowed_one(tenant: str, ask: Ask) -> None:
    journal = MemoryJournal()
    session = memory_session(journal, tenant, scope=ADA)
    of_session, of_store = memory_source(session=session), memory_source(journal, tenant, scope=ADA)
    everyone = memory_source(journal, tenant)
    await session.remember("tea of ada")
    await MemorySession(session.store, ADA_IN_RUN).remember("tea of the run")
    both = {"tea of ada", "tea of the run"}
    for query in (ask("tea", scope=Scope()), ask("tea"), ask("tea", scope=ADA_IN_RUN)):
        assert set(await ask_texts(of_session, query)) == both
    assert set(await ask_texts(of_store, ask("tea", scope=Scope()))) == both
    assert await ask_texts(of_store, ask("tea", scope=ADA_IN_RUN)) == ["tea of the run"]
    for made in (of_session, of_store):
        failed = await handler(made)(ask("tea", scope=BOB))
        assert isinstance(failed, Failed)
        assert failed.code == "scope"
    # What a nested run compares with its parent is what is really read.
    assert (of_session.pinned_scope, of_store.pinned_scope, everyone.pinned_scope) == (ADA, ADA, None)
    for made, read in ((of_session, ADA), (of_store, ADA_IN_RUN), (everyone, ADA_IN_RUN)):
        assert isinstance(made, Pinned)
        assert scope_read(made, ADA_IN_RUN) == read
    with pytest.raises(TypeError, match="run_id"):
        require_within(scope_read(of_session, ADA_IN_RUN), ADA_IN_RUN)


@pytest.mark.rule("D.K.5")
async def test_a_source_without_a_scope_of_its_own_reads_at_that_of_the_request() -> None:
    @source(id="docs", kind="rag")
    async def docs(_query: Query) -> Answer:
        return []

    assert not isinstance(docs, Pinned)
    assert scope_read(docs, ADA_IN_RUN) == ADA_IN_RUN


@pytest.mark.rule("D.K.2")
async def test_a_session_is_administered_within_its_scope(tenant: str) -> None:
    session = memory_session(MemoryJournal(), tenant, scope=ADA)
    made = memory_source(session=session)
    head: Head = {"run": "", "tenant": tenant, "reply_to": "", "source": "memory"}
    await MemorySession(session.store, BOB).remember("tea of bob", message_id="b")
    await made.administer(Remember(**head, message_id="m", text="tea", scope=Scope(run_id="r1"), now=1))
    (record,) = await session.list()
    assert record.scope == ADA_IN_RUN
    listed = await made.administer(ListRecords(**head, message_id="l", scope=Scope()))
    assert isinstance(listed, RecordsListed)
    assert [found.text for found in listed.records] == ["tea"]
    for request in (
        Remember(**head, message_id="n", text="tea", scope=BOB, now=1),
        Forget(**head, message_id="f", record_id=record.record_id, scope=BOB),
        ListRecords(**head, message_id="l", scope=BOB),
    ):
        with pytest.raises(ScopeConflictError):
            await made.administer(request)


@pytest.mark.rule("D.K.1", "D.K.20")
def test_a_memory_source_is_made_of_a_session_or_of_a_store(tenant: str) -> None:
    session = memory_session(MemoryJournal(), tenant, scope=ADA)
    with pytest.raises(TypeError, match="alone"):
        memory_source(session=session, scope=ADA)  # type: ignore[call-overload]  # the point of the test
    with pytest.raises(TypeError, match="alone"):
        memory_source(MemoryJournal(), tenant, session=session)  # type: ignore[call-overload]  # the point of the test
    with pytest.raises(TypeError, match="session="):
        memory_source()  # type: ignore[call-overload]  # the point of the test


@pytest.mark.rule("D.K.23")
def test_workers_of_one_memory_source_have_one_scope(tenant: str) -> None:
    journal = MemoryJournal()

    def options(made: MemorySource) -> str:
        return announcement(tenant, made).options

    plain, pinned = memory_source(journal, tenant), memory_source(journal, tenant, scope=ADA)
    of_session = memory_source(session=memory_session(journal, tenant, scope=ADA))
    of_bob = memory_source(session=memory_session(journal, tenant, scope=BOB))
    assert len({options(made) for made in (plain, pinned, of_session, of_bob)}) == 4
    assert options(of_session) == options(memory_source(session=memory_session(journal, tenant, scope=ADA)))


@pytest.mark.rule("D.K.24")
async def test_an_answer_carries_the_erasures_that_it_is_as_of(
    bus: Bus, journal: Journal, tenant: str, tmp_path: Path, ask: Ask
) -> None:
    reader = memory_source(journal, tenant, data=tmp_path)
    writer = memory_session(journal, tenant, scope=ADA)
    frames: asyncio.Queue[Frame] = asyncio.Queue()
    subscription = await bus.subscribe(f"ctx.inbox.{tenant}.me.>", frames.put_nowait)

    async def offer() -> Offered:
        bus.publish(subjects.query(tenant, "memory"), codec.encode_message(ask("tea", source="memory")))
        with anyio.fail_after(5):
            frame = await frames.get()
        offered = codec.decode_message(frame.data, frame.content_type)
        assert isinstance(offered, Offered)
        return offered

    async with Worker(bus, tenant, reader).serve():
        assert (await offer()).erasures == 0
        stored = await writer.remember("green tea")
        offered = await offer()
        assert (len(offered.candidates), offered.erasures) == (1, 0)
        erased = await writer.forget(stored.record.record_id)
        offered = await offer()
        assert (offered.candidates, offered.erasures) == ((), erased.sequence)
        # Erasures of other stores move the tenant's log on, and the answer with it.
        other = memory_session(journal, tenant, scope=ADA, id="other")
        kept = await other.remember("black tea")
        elsewhere = await other.forget(kept.record.record_id)
        assert elsewhere.sequence > erased.sequence
        assert (await offer()).erasures == elsewhere.sequence
    await subscription.unsubscribe()
    await reader.aclose()


async def test_a_source_that_keeps_no_erasures_says_nothing_of_them(ask: Ask) -> None:
    @source(id="docs", kind="rag")
    async def docs(_query: Query) -> Answer:
        return [candidate("r", "tea", 1.0)]

    offered = await handler(docs)(ask())
    assert isinstance(offered, Offered)
    assert offered.erasures is None


@pytest.mark.rule("D.K.27")
@pytest.mark.parametrize("erasures", [-1, True, "7", 1.5])
async def test_erasures_that_are_no_sequence_fail_the_answer(ask: Ask, erasures: int) -> None:
    class Own:
        id = "own"
        kind = "memory"
        required = False

        async def query(self, _query: Query) -> FoundRecords:
            return FoundRecords([], erasures=erasures)

    answer = await handler(Own())(ask())  # type: ignore[arg-type]  # its kind is a plain text
    assert isinstance(answer, Failed)
    assert answer.code == "malformed"
