"""Memory records on two journals: one effect a request, only one's own scope, and forgotten for good."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.sources.conftest import ADA

from contextbus.core.scope import lies_within
from contextbus.runtime.embedded import Server
from contextbus.runtime.journal import Appended, Journal, Record, Refused, Unanswered
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.sources.database import MEMORY
from contextbus.sources.memory_index import MemoryIndex
from contextbus.sources.memory_store import ANY_SCOPE, MemoryStore, Stored
from contextbus_protocol import codec, subjects
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import (
    CommandMismatchError,
    DeadlineExceededError,
    ForbiddenError,
    InvalidTypeError,
    LimitError,
    NotFoundError,
    ScopeConflictError,
)
from contextbus_protocol.events import RecordErased
from contextbus_protocol.values import Scope

BOB = Scope(user_id="bob")


def make(journal: Journal, tenant: str, path: Path | str = MEMORY, scope: Scope = ANY_SCOPE) -> MemoryStore:
    return MemoryStore(journal, tenant, MemoryIndex(path), scope=scope)


@pytest.fixture
def store(journal: Journal, tenant: str) -> MemoryStore:
    return make(journal, tenant)


async def remember(
    store: MemoryStore, text: str, scope: Scope = ADA, *, id_: str = "", record: str | None = None
) -> Stored:
    return await store.remember(text, scope=scope, message_id=id_ or f"id {text}", now=1, record_id=record)


async def find(store: MemoryStore, text: str, scope: Scope = ADA) -> list[str]:
    return [hit.record.text for hit in await store.search(text, scope, limit=10)]


@pytest.mark.rule("D.K.24")
async def test_a_record_begins_at_revision_one_and_counts_up(store: MemoryStore, journal: Journal, tenant: str) -> None:
    first = await remember(store, "Ada likes green tea")
    second = await remember(store, "Ada likes black tea", record=first.record.record_id)
    assert (first.record.revision, second.record.revision) == (1, 2)
    assert second.record.record_id == first.record.record_id
    assert await find(store, "likes tea") == ["Ada likes black tea"]
    sequences = await journal.sequences(subjects.memory(tenant, "memory", first.record.record_id))
    assert sequences == (first.sequence, second.sequence)
    listed, as_of = await store.list_records(ADA)
    assert (listed, as_of) == ((second.record,), second.sequence)


@pytest.mark.rule("D.K.24")
async def test_a_repeated_message_id_has_one_effect(store: MemoryStore) -> None:
    first = await remember(store, "green tea", id_="m")
    assert await remember(store, "green tea", id_="m") == first
    changed = await remember(store, "black tea", id_="n", record=first.record.record_id)
    await remember(store, "white tea", id_="o", record=first.record.record_id)
    assert await remember(store, "black tea", id_="n", record=first.record.record_id) == changed
    assert await remember(store, "green tea", id_="m") == first
    with pytest.raises(CommandMismatchError):
        await remember(store, "coffee", id_="m")
    assert len((await store.list_records(ADA))[0]) == 1


async def test_concurrent_changes_all_get_a_revision_of_their_own(journal: Journal, tenant: str) -> None:
    stores = [make(journal, tenant) for _ in range(3)]
    first = await remember(stores[0], "tea 0")
    done: list[Stored] = []

    async def change(number: int) -> None:
        done.append(await remember(stores[number % 3], f"tea {number}", record=first.record.record_id))

    async with anyio.create_task_group() as group:
        for number in range(1, 7):
            group.start_soon(change, number)
    assert sorted(stored.record.revision for stored in done) == [2, 3, 4, 5, 6, 7]


@pytest.mark.rule("D.K.24", "D.K.2")
async def test_a_record_matches_if_it_has_every_field_of_the_scope(store: MemoryStore) -> None:
    scopes = [ADA, BOB, Scope(user_id="ada", chat_id="c1"), Scope(user_id="ada", chat_id="c2"), Scope(agent_id="x")]
    for number, scope in enumerate(scopes):
        await remember(store, f"tea {number}", scope)
    asked = [*scopes, Scope(chat_id="c1"), Scope(user_id="ada", chat_id="c1", run_id="r")]
    for scope in asked:
        wanted = {f"tea {n}" for n, have in enumerate(scopes) if lies_within(have, scope)}
        assert set(await find(store, "tea", scope)) == wanted
        assert {record.text for record in (await store.list_records(scope))[0]} == wanted


@pytest.mark.rule("D.K.4")
@pytest.mark.parametrize("scope", [Scope(), Scope(user_id="")])
async def test_without_a_scope_nothing_is_everything(store: MemoryStore, scope: Scope) -> None:
    await remember(store, "tea")
    with pytest.raises(ScopeConflictError):
        await store.search("tea", scope, limit=10)
    with pytest.raises(ScopeConflictError):
        await store.list_records(scope)
    with pytest.raises(ScopeConflictError):
        await remember(store, "tea", scope, id_="x")
    with pytest.raises(ScopeConflictError):
        await store.forget("x", scope=scope, message_id="y")


@pytest.mark.rule("D.K.2", "D.K.3")
async def test_a_pinned_store_is_narrowed_and_never_widened(journal: Journal, tenant: str) -> None:
    await remember(make(journal, tenant), "tea of bob", BOB)
    pinned = make(journal, tenant, scope=ADA)
    stored = await remember(pinned, "tea of ada", Scope(chat_id="c"))
    assert stored.record.scope == Scope(user_id="ada", chat_id="c")
    assert await find(pinned, "tea", Scope()) == ["tea of ada"]
    with pytest.raises(TypeError):
        await find(pinned, "tea", BOB)


async def test_a_record_of_another_scope_does_not_exist(store: MemoryStore) -> None:
    stored = await remember(store, "tea")
    for scope in (BOB, Scope(user_id="ada", chat_id="c")):
        with pytest.raises(NotFoundError):
            await remember(store, "coffee", scope, record=stored.record.record_id)
        with pytest.raises(NotFoundError):
            await store.forget(stored.record.record_id, scope=scope, message_id="f")
    with pytest.raises(NotFoundError):
        await remember(store, "coffee", record="unknown")
    assert await find(store, "tea") == ["tea"]


@pytest.mark.rule("D.K.24")
async def test_forgetting_erases_all_revisions_behind_a_tombstone(
    store: MemoryStore, journal: Journal, tenant: str
) -> None:
    first = await remember(store, "green tea")
    record_id = first.record.record_id
    second = await remember(store, "black tea", record=record_id)
    await remember(store, "white tea")
    erased = await store.forget(record_id, scope=ADA, message_id="f")
    assert erased.revisions == 2
    assert await journal.sequences(subjects.memory(tenant, "memory", record_id)) == ()
    last = await journal.last(subjects.erasures(tenant))
    assert isinstance(last, Record)
    assert last.sequence == erased.sequence
    (event,) = codec.decode_commit(last.data).events
    digests = tuple(sorted([first.record.digest, second.record.digest]))
    assert event == RecordErased(source="memory", record_id=record_id, digests=digests)
    assert await find(store, "tea") == ["white tea"]
    assert erased.texts == ("green tea", "black tea")
    again = await store.forget(record_id, scope=ADA, message_id="f")
    assert again == msgspec.structs.replace(erased, texts=())
    with pytest.raises(NotFoundError):
        await store.forget(record_id, scope=ADA, message_id="other")


@pytest.mark.rule("D.K.24")
async def test_what_was_forgotten_is_learned_again_only_when_allowed(
    store: MemoryStore, journal: Journal, tenant: str
) -> None:
    first = await remember(store, "green tea", id_="m")
    await store.forget(first.record.record_id, scope=ADA, message_id="f")
    other = make(journal, tenant)
    for learner in (store, other):
        with pytest.raises(ForbiddenError, match=f"contextbus allow --digest {first.record.digest}"):
            await remember(learner, "green tea", id_="again")
        with pytest.raises(ForbiddenError, match=f"contextbus allow --id {first.record.record_id}"):
            await remember(learner, "green tea", id_="m")  # a late copy of the first request
    await store.allow((first.record.digest,), message_id="a")
    again = await remember(other, "green tea", id_="again")
    assert again.record.record_id != first.record.record_id
    assert await find(store, "tea") == ["green tea"]


@pytest.mark.rule("D.K.24")
async def test_a_request_whose_record_was_forgotten_may_be_made_again_once_its_text_is_allowed(
    store: MemoryStore,
) -> None:
    ids: list[str] = []
    for number in range(3):
        stored = await remember(store, "green tea", id_="m")
        assert await remember(store, "green tea", id_="m") == stored
        ids.append(stored.record.record_id)
        await store.forget(ids[-1], scope=ADA, message_id=f"f{number}")
        with pytest.raises((ForbiddenError, NotFoundError)):
            await remember(store, "green tea", id_="m")
        digests, _ = await store.allow(record_id=ids[-1], message_id=f"a{number}")
        assert digests == (stored.record.digest,)
        with pytest.raises(NotFoundError):
            await remember(store, "black tea", id_="m")  # the id was used for a text that nobody allowed
    assert len(set(ids)) == 3


@pytest.mark.rule("D.K.24")
async def test_a_repeated_allow_does_not_lift_a_later_forget(store: MemoryStore, journal: Journal, tenant: str) -> None:
    first = await remember(store, "green tea", id_="one")
    await store.forget(first.record.record_id, scope=ADA, message_id="f1")
    allowed = await store.allow((first.record.digest,), message_id="a")
    second = await remember(store, "green tea", id_="two")
    await store.forget(second.record.record_id, scope=ADA, message_id="f2")
    for who in (store, make(journal, tenant)):
        assert await who.allow((first.record.digest,), message_id="a") == allowed
        with pytest.raises(ForbiddenError):
            await remember(who, "green tea", id_="three")


@pytest.mark.rule("D.K.24")
async def test_only_what_was_forgotten_can_be_named_to_be_allowed(store: MemoryStore) -> None:
    stored = await remember(store, "green tea")
    for digests, record_id, error in (
        (("tea",), None, InvalidTypeError),
        ((), None, InvalidTypeError),
        ((), stored.record.record_id, NotFoundError),
        (tuple(f"sha256:{number:064x}" for number in range(1025)), None, LimitError),
    ):
        with pytest.raises(error):
            await store.allow(digests, record_id=record_id, message_id="a")


@pytest.mark.rule("D.K.24")
async def test_a_text_that_was_never_forgotten_is_not_said_to_be_allowed(store: MemoryStore) -> None:
    stored = await remember(store, "green tea")
    other = digest_text("black tea")
    with pytest.raises(NotFoundError, match="none of these texts was forgotten"):
        await store.allow((stored.record.digest, other), message_id="a")
    await store.forget(stored.record.record_id, scope=ADA, message_id="f")
    for number in range(2):  # one that is allowed already was forgotten too
        digests, _ = await store.allow((stored.record.digest, other), message_id=f"a{number}")
        assert digests == (stored.record.digest,)


async def test_what_one_process_forgets_the_index_of_another_does_not_find(journal: Journal, tenant: str) -> None:
    one, two = make(journal, tenant), make(journal, tenant)
    stored = await remember(one, "green tea")
    assert await find(two, "tea") == ["green tea"]
    await one.forget(stored.record.record_id, scope=ADA, message_id="f")
    assert await find(two, "tea") == []


async def test_an_index_catches_up_before_it_answers(journal: Journal, tenant: str) -> None:
    writer, reader = make(journal, tenant), make(journal, tenant)
    sequence = 0
    for number in range(270):
        sequence = (await remember(writer, f"tea {number}")).sequence
        if number % 100 == 0:
            assert f"tea {number}" in await find(reader, f"{number}")
    late = make(journal, tenant)
    for store in (reader, late):
        hits = await store.search("269", ADA, limit=1, seen=sequence)
        assert [hit.record.text for hit in hits] == ["tea 269"]


class Interrupted(MemoryJournal):
    """A journal that stops erasing, as a process does that is killed."""

    dead = False

    async def erase(self, subject: str, sequence: int) -> bool:
        """Erase, or die."""
        if self.dead:
            raise ConnectionAbortedError
        return bool(await super().erase(subject, sequence))


@pytest.mark.rule("D.K.24")
async def test_a_forget_that_was_interrupted_is_finished_by_whoever_reads_on(tenant: str) -> None:
    journal = Interrupted()
    store = make(journal, tenant)
    stored = await remember(store, "green tea")
    journal.dead = True
    with pytest.raises(ConnectionAbortedError):
        await store.forget(stored.record.record_id, scope=ADA, message_id="f")
    journal.dead = False
    other = make(journal, tenant)
    assert await find(other, "tea") == []
    assert await journal.sequences(subjects.memory(tenant, "memory", stored.record.record_id)) == ()


class Silent(MemoryJournal):
    """A journal that stores and loses some of its acknowledgements."""

    lose = 0

    def append(
        self, subject: str, data: bytes, *, expected: int, message_id: str, command: str
    ) -> Awaitable[Appended | Refused | Unanswered]:
        """Store, and lose the acknowledgement while there are any to lose."""
        done = super().append(subject, data, expected=expected, message_id=message_id, command=command)

        async def answer() -> Appended | Refused | Unanswered:
            outcome = await done
            if self.lose and isinstance(outcome, Appended):
                self.lose -= 1
                return Unanswered("timeout")
            return outcome

        return answer()


async def test_a_lost_acknowledgement_has_no_second_effect(tenant: str) -> None:
    journal = Silent()
    store = make(journal, tenant)
    journal.lose = 1
    stored = await remember(store, "green tea")
    changed = await remember(store, "black tea", record=stored.record.record_id)
    assert (stored.record.revision, changed.record.revision) == (1, 2)
    journal.lose = 1
    await store.forget(stored.record.record_id, scope=ADA, message_id="f")
    found = await journal.sequences(subjects.erasures(tenant))
    assert isinstance(found, tuple)
    assert len(found) == 1


class Overtaken(MemoryJournal):
    """A journal that lets something happen before the next memory record is appended."""

    before: Callable[[], Awaitable[object]] | None = None

    def append(
        self, subject: str, data: bytes, *, expected: int, message_id: str, command: str
    ) -> Awaitable[Appended | Refused | Unanswered]:
        """Append, after what is to happen before."""

        async def late(before: Callable[[], Awaitable[object]]) -> Appended | Refused | Unanswered:
            await before()
            return await super(Overtaken, self).append(
                subject, data, expected=expected, message_id=message_id, command=command
            )

        before = self.before
        if before is not None and subject.startswith("ctx.memory."):
            self.before = None
            return late(before)
        return super().append(subject, data, expected=expected, message_id=message_id, command=command)


@pytest.mark.rule("D.K.24")
async def test_a_text_that_is_forgotten_while_it_is_learned_again_is_taken_back(tenant: str) -> None:
    journal = Overtaken()
    store, other = make(journal, tenant), make(journal, tenant)
    stored = await remember(other, "green tea")
    journal.before = lambda: other.forget(stored.record.record_id, scope=ADA, message_id="f")
    with pytest.raises(ForbiddenError):
        await remember(store, "green tea", BOB, id_="again")
    assert await journal.subjects(subjects.memories(tenant, "memory")) == ()
    assert await find(store, "tea", BOB) == []


@pytest.mark.rule("D.K.24")
async def test_a_revision_that_comes_while_its_record_is_forgotten_is_erased_too(journal: Journal, tenant: str) -> None:
    store, other = make(journal, tenant), make(journal, tenant)
    for round_ in range(5):
        stored = await remember(store, f"tea {round_}")
        record_id = stored.record.record_id

        async def change(target: str, number: int) -> None:
            with contextlib.suppress(NotFoundError, ForbiddenError):
                await remember(other, f"more tea {target} {number}", record=target)

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(change, record_id, number)
            group.start_soon(lambda target: store.forget(target, scope=ADA, message_id=target), record_id)
        assert await journal.sequences(subjects.memory(tenant, "memory", record_id)) == ()
        assert await find(store, "tea") == []
        assert await find(other, "tea") == []


class Dead(MemoryJournal):
    """A journal that does not answer."""

    async def last(self, subject: str) -> Unanswered:
        """Do not answer."""
        return Unanswered("no-responders")


async def test_a_stream_that_does_not_answer_is_said_so(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextbus.sources.memory_log.LONGEST_WAIT_SECONDS", 0.02)
    with pytest.raises(DeadlineExceededError):
        await remember(make(Dead(), tenant), "tea")


async def test_limits_and_labels_are_checked(tenant: str) -> None:
    store = make(MemoryJournal(), tenant)
    with pytest.raises(InvalidTypeError):
        await remember(store, " \n")
    with pytest.raises(LimitError, match="65536"):
        await remember(store, "é" * 40_000, id_="m")
    with pytest.raises(InvalidTypeError):
        await store.remember("tea", scope=ADA, message_id="m", now=1, origin="line\nbreak")
    with pytest.raises(LimitError):
        await store.remember("tea", scope=ADA, message_id="m", now=1, source_kinds=("host",) * 17)
    stored = await remember(store, "tea \ud800", id_="header\r\ninjection \ud800")
    assert stored.record.text == "tea \ufffd"


@pytest.mark.broker
@pytest.mark.rule("D.K.24")
async def test_forgotten_bytes_leave_the_disk(broker: Server, stream: Journal, tenant: str, tmp_path: Path) -> None:
    store = make(stream, tenant, tmp_path / "memory.sqlite")
    text = f"zanzibarquokka-{tenant} the secret sentence stands here"
    stored = await remember(store, text)
    await remember(store, "other words stay", record=None)

    def read_all() -> bytes:
        places = [*(broker.folder).rglob("*.blk"), *tmp_path.iterdir()]
        return b"".join(path.read_bytes() for path in places)

    found = await asyncio.to_thread(read_all)
    assert found.count(text.encode()) >= 1
    await find(store, "secret")
    await store.forget(stored.record.record_id, scope=ADA, message_id="f")
    left = await asyncio.to_thread(read_all)
    assert text.encode() not in left
    assert f"quokka-{tenant} the".encode() not in left
    words = await asyncio.to_thread(read_words, tmp_path / "memory.sqlite")
    assert not [word for word in words if "quokka" in word]
    assert await find(store, "words") == ["other words stay"]
    await store.aclose()


def read_words(path: Path) -> list[str]:
    """Every word that the full-text index still holds."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE VIRTUAL TABLE temp.left USING fts5vocab(main, words, row)")
        words = [word for (word,) in connection.execute("SELECT term FROM temp.left")]
    connection.close()
    return words


@pytest.mark.parametrize("damage", [b"no database at all", b""])
async def test_a_damaged_index_is_made_anew(tenant: str, tmp_path: Path, damage: bytes) -> None:
    journal = MemoryJournal()
    path = tmp_path / "memory.sqlite"
    store = make(journal, tenant, path)
    await remember(store, "green tea")
    assert await find(store, "tea") == ["green tea"]
    await store.aclose()
    await anyio.Path(path).write_bytes(damage)
    assert await find(store, "tea") == ["green tea"]
    assert await find(make(journal, tenant, path), "tea") == ["green tea"]
    await store.aclose()


async def test_an_index_of_another_stream_is_made_anew(tenant: str, tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    old = make(MemoryJournal(), tenant, path)
    await remember(old, "old tea")
    await remember(old, "older tea")
    await old.catch_up()
    await old.aclose()
    for count in (1, 2, 3):
        journal = MemoryJournal()
        for number in range(count):
            await remember(make(journal, tenant), f"new tea {number}")
        store = make(journal, tenant, path)
        assert sorted(await find(store, "tea")) == [f"new tea {number}" for number in range(count)]
        await store.aclose()


async def test_a_damaged_revision_hides_no_other(tenant: str) -> None:
    journal = MemoryJournal()
    store = make(journal, tenant)
    stored = await remember(store, "green tea")
    for number, data in enumerate((b"garbage", codec.encode_json(msgspec.structs.replace(stored.record, text="x")))):
        subject = subjects.memory(tenant, "memory", f"bad{number}")
        await journal.append(subject, data, expected=0, message_id=f"b{number}", command="b")
    await remember(store, "black tea")
    assert sorted(await find(store, "tea")) == ["black tea", "green tea"]
