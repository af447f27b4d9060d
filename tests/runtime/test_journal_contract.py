"""One contract, two journals: in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncGenerator

import pytest

from contextbus.runtime.connection import connect
from contextbus.runtime.embedded import Server
from contextbus.runtime.journal import Appended, Code, Heading, Headings, Journal, Page, Record, Refused, Unanswered
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.streams import ensure, name_stream

_ids = itertools.count(1)


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.broker)])
async def journal(request: pytest.FixtureRequest, broker: Server, tenant: str) -> AsyncGenerator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    async with connect(broker.url, token=broker.token, tenant=tenant) as connection:
        await ensure(connection, tenant)
        made = JetStreamJournal(connection)
        yield made
        made.close()


async def write(journal: Journal, subject: str, data: bytes, expected: int) -> int:
    """Append with an id of its own and return the sequence."""
    outcome = await journal.append(
        subject, data, expected=expected, message_id=f"id-{next(_ids)}", command=f"do-{expected}"
    )
    assert isinstance(outcome, Appended)
    assert not outcome.duplicate
    return outcome.sequence


async def write_many(journal: Journal, subject: str, count: int) -> list[int]:
    """Append messages one after the other."""
    sequences: list[int] = []
    for number in range(count):
        expected = sequences[-1] if sequences else 0
        sequences.append(await write(journal, subject, b"%d" % number, expected))
    return sequences


async def read_all(journal: Journal, subject: str, limit: int) -> list[Record]:
    """Read a subject page by page."""
    records: list[Record] = []
    while True:
        after = records[-1].sequence if records else 0
        page = await journal.read(subject, after=after, limit=limit)
        assert isinstance(page, Page)
        assert len(page.records) <= limit
        records.extend(page.records)
        if not page.more:
            return records


async def test_an_append_expects_the_last_sequence_of_its_subject(journal: Journal, tenant: str) -> None:
    one, two = f"ctx.log.{tenant}.one.run", f"ctx.log.{tenant}.two.run"
    assert await write(journal, one, b"a", 0) == 1
    assert await write(journal, two, b"b", 0) == 2
    assert await write(journal, one, b"c", 1) == 3
    refused = await journal.append(one, b"d", expected=1, message_id="late", command="late")
    assert refused == Refused(Code.WRONG_LAST_SEQUENCE, "wrong last sequence: 3")
    refused = await journal.append(two, b"d", expected=0, message_id="late", command="late")
    assert isinstance(refused, Refused)
    assert refused.code == Code.WRONG_LAST_SEQUENCE
    assert await journal.last_sequence(name_stream("log", tenant)) == 3


async def test_a_retried_append_is_settled_by_the_last_message(journal: Journal, tenant: str) -> None:
    subject = f"ctx.log.{tenant}.run.run"
    first = await journal.append(subject, b"a", expected=0, message_id="same", command="step-1")
    again = await journal.append(subject, b"a", expected=0, message_id="same", command="step-1")
    assert first == Appended(1)
    assert isinstance(again, Refused)
    assert again.code == Code.WRONG_LAST_SEQUENCE
    last = await journal.last(subject)
    assert isinstance(last, Record)
    assert (last.sequence, last.data, last.command, last.message_id) == (1, b"a", "step-1", "same")


async def test_an_id_is_taken_in_the_whole_stream(journal: Journal, tenant: str) -> None:
    one, two = f"ctx.log.{tenant}.one.run", f"ctx.log.{tenant}.two.run"
    await journal.append(one, b"a", expected=0, message_id="same", command="c")
    other = await journal.append(two, b"b", expected=0, message_id="same", command="c")
    assert other == Appended(1, duplicate=True)
    assert await journal.last(two) is None


async def test_what_was_never_stored_is_none(journal: Journal, tenant: str) -> None:
    subject = f"ctx.log.{tenant}.nothing.run"
    assert await journal.last(subject) is None
    assert await journal.read(subject, after=0) == Page((), more=False)
    assert await journal.sequences(subject) == ()
    assert await journal.get(f"ctx.blob.{tenant}.nothing.digest") is None
    assert await journal.subjects(f"ctx.log.{tenant}.>") == ()
    assert await journal.last_sequence(name_stream("log", tenant)) == 0
    assert await journal.erase(subject, 1) is False
    assert await journal.purge(subject) == 0


@pytest.mark.parametrize("limit", [1, 3, 10, 256])
async def test_pages_hold_the_whole_subject_in_order(journal: Journal, tenant: str, limit: int) -> None:
    mine, other = f"ctx.log.{tenant}.mine.run", f"ctx.log.{tenant}.other.run"
    mine_last = other_last = 0
    for number in range(20):
        mine_last = await write(journal, mine, b"%d" % number, mine_last)
        other_last = await write(journal, other, b"other", other_last)
    records = await read_all(journal, mine, limit)
    assert [record.data for record in records] == [b"%d" % number for number in range(20)]
    assert [record.sequence for record in records] == list(range(1, 41, 2))
    page = await journal.read(mine, after=records[16].sequence, limit=3)
    assert page == Page(tuple(records[17:]), more=False)
    assert await journal.sequences(mine) == tuple(range(1, 41, 2))


@pytest.mark.parametrize("limit", [1, 3, 256])
async def test_a_pattern_is_read_in_the_order_of_the_stream(journal: Journal, tenant: str, limit: int) -> None:
    subjects = [f"ctx.memory.{tenant}.docs.{name}" for name in "abc"]
    lasts = dict.fromkeys(subjects, 0)
    await write(journal, f"ctx.memory.{tenant}.other.a", b"other", 0)
    written: list[int] = []
    for subject in (*subjects, *reversed(subjects), *subjects):
        lasts[subject] = await write(journal, subject, b"x", lasts[subject])
        written.append(lasts[subject])
    pattern = f"ctx.memory.{tenant}.docs.*"
    assert [record.sequence for record in await read_all(journal, pattern, limit)] == written
    last = await journal.last(pattern)
    assert isinstance(last, Record)
    assert last.sequence == written[-1]
    await journal.erase(subjects[-1], written[-1])
    last = await journal.last(pattern)
    assert isinstance(last, Record)
    assert last.sequence == written[-2]
    assert await journal.last(f"ctx.memory.{tenant}.none.*") is None
    assert await journal.read(f"ctx.memory.{tenant}.none.*", after=0) == Page((), more=False)


async def read_headings(journal: Journal, pattern: str, *, after: int = 0, limit: int) -> list[Heading]:
    """Read the headings of a pattern page by page."""
    found: list[Heading] = []
    while True:
        page = await journal.headings(pattern, after=found[-1].sequence if found else after, limit=limit)
        assert isinstance(page, Headings)
        assert len(page.headings) <= limit
        found += page.headings
        if not page.more:
            return found


@pytest.mark.parametrize("limit", [1, 3, 4096])
async def test_headings_are_all_messages_of_a_pattern_without_their_bytes(
    journal: Journal, tenant: str, limit: int
) -> None:
    named = [f"ctx.blob.{tenant}.{run}.{number}" for number in range(3) for run in ("one", "two")]
    begun = time.time()
    for number, subject in enumerate(named):
        await journal.put(subject, b"x" * number, headers={"Ctx-Command": f"c{number}"})
    found = await read_headings(journal, f"ctx.blob.{tenant}.>", limit=limit)
    assert [(h.sequence, h.subject, h.command, h.size) for h in found] == [
        (number + 1, subject, f"c{number}", number) for number, subject in enumerate(named)
    ]
    assert all(begun - 60 < h.stored_at < time.time() + 60 for h in found)
    await journal.erase(named[4], 5)
    behind = await read_headings(journal, f"ctx.blob.{tenant}.one.*", after=2, limit=limit)
    assert [h.sequence for h in behind] == [3]
    assert await read_headings(journal, f"ctx.blob.{tenant}.>", after=6, limit=limit) == []


async def test_headings_of_what_holds_nothing_are_none(journal: Journal, tenant: str) -> None:
    assert await journal.headings(f"ctx.blob.{tenant}.>", after=0) == Headings((), more=False)


async def test_a_blob_is_stored_once(journal: Journal, tenant: str) -> None:
    subject = f"ctx.blob.{tenant}.run.digest"
    content = bytes(range(256)) * 100
    assert await journal.put(subject, content, headers={"Ctx-Command": "c"}) is True
    assert await journal.put(subject, b"other", headers={"Ctx-Command": "d"}) is False
    assert await journal.get(subject) == content
    last = await journal.last(subject)
    assert isinstance(last, Record)
    assert last.command == "c"
    assert await journal.erase(subject, last.sequence) is True
    assert await journal.get(subject) is None
    assert await journal.put(subject, b"anew", headers={}) is True


async def test_erasing_takes_one_message_of_one_subject(journal: Journal, tenant: str) -> None:
    subject, other = f"ctx.memory.{tenant}.scope.record", f"ctx.memory.{tenant}.scope.other"
    sequences = await write_many(journal, subject, 3)
    await write(journal, other, b"other", 0)
    assert await journal.erase(other, sequences[1]) is False
    assert await journal.erase(subject, sequences[1]) is True
    assert await journal.erase(subject, sequences[1]) is False
    assert await journal.sequences(subject) == (sequences[0], sequences[2])
    assert [record.data for record in await read_all(journal, subject, 1)] == [b"0", b"2"]
    assert await journal.erase(subject, sequences[2]) is True
    last = await journal.last(subject)
    assert isinstance(last, Record)
    assert last.sequence == sequences[0]
    assert await write(journal, subject, b"next", sequences[0]) == 5


async def test_of_many_who_erase_a_message_at_once_one_does_and_none_is_refused(journal: Journal, tenant: str) -> None:
    subject = f"ctx.blob.{tenant}.r.digest"
    for _ in range(20):
        sequence = await write(journal, subject, b"blob", 0)
        outcomes = await asyncio.gather(*(journal.erase(subject, sequence) for _ in range(8)))
        assert sorted(outcomes, key=repr) == [False] * 7 + [True]


async def test_purging_takes_what_is_under_a_subject(journal: Journal, tenant: str) -> None:
    for run in ("a", "b"):
        for part in ("run", "working-memory"):
            await write_many(journal, f"ctx.log.{tenant}.{run}.{part}", 2)
    assert await journal.purge(f"ctx.log.{tenant}.a.>") == 4
    kept = (f"ctx.log.{tenant}.b.run", f"ctx.log.{tenant}.b.working-memory")
    assert await journal.subjects(f"ctx.log.{tenant}.>") == kept
    assert await journal.subjects(f"ctx.log.{tenant}.*.run") == kept[:1]
    assert await journal.purge(kept[0]) == 2
    assert await journal.subjects(f"ctx.log.{tenant}.>") == kept[1:]
    assert await journal.last_sequence(name_stream("log", tenant)) == 8


async def test_of_concurrent_appends_exactly_one_wins_each_sequence(journal: Journal, tenant: str) -> None:
    subject = f"ctx.log.{tenant}.contended.run"

    async def append_until_stored(writer: int) -> int:
        expected, attempt = 0, 0
        while True:
            attempt += 1
            outcome = await journal.append(
                subject,
                b"%d" % writer,
                expected=expected,
                message_id=f"{writer}-{attempt}",
                command=str(writer),
            )
            if isinstance(outcome, Appended):
                return outcome.sequence
            assert isinstance(outcome, Refused)
            last = await journal.last(subject)
            expected = last.sequence if isinstance(last, Record) else 0

    won = await asyncio.gather(*(append_until_stored(writer) for writer in range(100)))
    records = await read_all(journal, subject, 256)
    assert sorted(won) == list(range(1, 101))
    assert {record.sequence: int(record.data) for record in records} == {
        sequence: writer for writer, sequence in enumerate(won)
    }


async def test_an_append_is_sent_when_it_is_called(journal: Journal, tenant: str) -> None:
    subject = f"ctx.log.{tenant}.eager.run"
    blob = journal.put(f"ctx.blob.{tenant}.eager.digest", b"blob", headers={})
    commit = journal.append(subject, b"commit", expected=0, message_id="m", command="c")
    assert await commit == Appended(1)
    assert await blob is True


def describe(outcome: object) -> object:
    """Leave out when something was stored."""
    match outcome:
        case Record():
            return (outcome.sequence, outcome.data, outcome.command, outcome.message_id)
        case Page():
            return ([describe(record) for record in outcome.records], outcome.more)
        case _:
            return outcome


async def act(journal: Journal, draw: random.Random, tenant: str) -> object:
    """Do something at random; both journals are given the same draws."""
    kind = draw.choice(["log", "memory"])
    subject = f"ctx.{kind}.{tenant}.{draw.choice('ab')}.run"
    blob = f"ctx.blob.{tenant}.{draw.choice('ab')}.{draw.choice('xyz')}"
    number, low = draw.randrange(10**6), draw.randrange(8)
    outcome: object
    match draw.randrange(10):
        case 0:
            outcome = await journal.read(subject, after=low, limit=1 + low % 3)
        case 1:
            outcome = await journal.put(blob, b"%d" % number, headers={"Ctx-Command": str(number)})
        case 2:
            outcome = await journal.get(blob)
        case 3:
            sequences = await journal.sequences(subject)
            assert not isinstance(sequences, Unanswered)
            chosen = draw.choice(sequences) if sequences and low else low
            outcome = await journal.erase(subject, chosen)
        case 4:
            outcome = await journal.subjects(f"ctx.{kind}.{tenant}.>")
        case 5 if low == 0:
            outcome = await journal.purge(f"ctx.{draw.choice([kind, 'blob'])}.{tenant}.a.>")
        case 6:
            outcome = await journal.erase(blob, low)
        case _:
            last = await journal.last(subject)
            expected = last.sequence if isinstance(last, Record) and low else low
            outcome = await journal.append(
                subject,
                b"%d" % number,
                expected=expected,
                message_id=str(number if low else number % 3),
                command=str(number),
            )
    return describe(outcome)


@pytest.mark.broker
@pytest.mark.parametrize("seed", range(4))
async def test_memory_does_what_jetstream_does(broker: Server, tenant: str, seed: int) -> None:
    async with connect(broker.url, token=broker.token, tenant=tenant) as connection:
        await ensure(connection, tenant)
        real, model = JetStreamJournal(connection), MemoryJournal()
        ours, theirs = random.Random(seed), random.Random(seed)
        for step in range(250):
            expected = await act(real, ours, tenant)
            assert await act(model, theirs, tenant) == expected, step
        real.close()


async def test_an_append_in_memory_costs_the_same_however_many_ids_are_remembered() -> None:
    journal, last = MemoryJournal(), 0
    begun = time.perf_counter()
    for _ in range(8_000):
        last = await write(journal, "ctx.log.t.r.run", b"{}", last)
    assert time.perf_counter() - begun < 3
