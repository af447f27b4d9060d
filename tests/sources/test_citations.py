"""The citation index: it goes on from where it was, over logs that are replaced, damaged or newer."""

from __future__ import annotations

import sqlite3
from asyncio import to_thread as in_thread
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.sources.steps import Runs, offer

from contextbus.runtime.journal import Headings, Journal, Page, Unanswered
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.sources.citations import CONDEMNED, DUE, CitationIndex, open_citations
from contextbus.sources.citations_feed import CitationFeed
from contextbus.sources.database import MEMORY
from contextbus_protocol import codec, subjects
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import UnsupportedVersionError
from contextbus_protocol.events import Commit, PackageRedacted, RecordErased, UnknownEvent

ONE, TWO = offer("m-1", "one"), offer("m-2", "two")


def feed(runs: Runs, index: CitationIndex) -> CitationFeed:
    return CitationFeed(runs.journal, runs.tenant, "memory", index, runs.packages)


def erased(record_id: str, sequence: int = 1) -> list[tuple[RecordErased, int, float]]:
    return [(RecordErased(source="memory", record_id=record_id, digests=()), sequence, 1.0)]


async def forget(index: CitationIndex, *events: tuple[RecordErased, int, float], mark: int) -> None:
    """Tell an index of tombstones."""
    await in_thread(partial(index.apply_erasures, events, after=0, mark=mark))


class Counting(MemoryJournal):
    """A journal that counts what is read of it."""

    commits = 0
    headings_given = 0

    async def read(self, subject: str, *, after: int, limit: int = 256) -> Page | Unanswered:
        """Read, and count."""
        page = await super().read(subject, after=after, limit=limit)
        assert isinstance(page, Page)
        self.commits += len(page.records)
        return page

    async def headings(self, pattern: str, *, after: int, limit: int = 4096) -> Headings | Unanswered:
        """Read, and count."""
        page = await super().headings(pattern, after=after, limit=limit)
        assert isinstance(page, Headings)
        self.headings_given += len(page.headings)
        return page


@pytest.mark.rule("D.J.7")
async def test_an_index_goes_on_from_its_position(tmp_path: Path) -> None:
    journal = Counting()
    runs = Runs(journal, "t")
    for number in range(5):
        await runs.step("run", number, [("memory", ONE)])
    index = open_citations("t", "memory", tmp_path)
    await feed(runs, index).catch_up()
    await in_thread(index.close)
    await runs.step("run", 5, [("memory", ONE)])
    journal.commits = journal.headings_given = 0
    index = open_citations("t", "memory", tmp_path)
    marks = await feed(runs, index).catch_up()
    assert (journal.commits, journal.headings_given) == (2, 1)  # the last one known, by which the log is recognised
    assert (marks.log, marks.blobs) == (6, 6)
    await feed(runs, index).catch_up()
    await forget(index, *erased("m-1"), mark=1)
    assert [due.step for due in await in_thread(index.due)] == list(range(6))
    assert await in_thread(index.runs_with_uncommitted) == {}
    await in_thread(index.close)


async def test_an_index_of_another_log_is_emptied(tmp_path: Path) -> None:
    for number, length in enumerate((3, 1, 2, 2)):
        runs = Runs(MemoryJournal(), "t")
        for step in range(length):
            await runs.step(f"run{number}", step, [("memory", ONE)])
        index = open_citations("t", "memory", tmp_path)
        assert (await feed(runs, index).catch_up()).log == length
        await forget(index, *erased("m-1", 9), mark=9)
        assert {due.run for due in await in_thread(index.due)} == {f"run{number}"}
        await in_thread(index.close)


async def test_a_run_that_was_deleted_is_no_other_log(journal: Journal, tenant: str) -> None:
    runs, index = Runs(journal, tenant), CitationIndex(MEMORY, "memory")
    await runs.step("kept", 0, [("memory", ONE)])
    await runs.step("gone", 0, [("memory", ONE)])
    await feed(runs, index).catch_up()
    await runs.packages.erase_run("gone")
    await feed(runs, index).catch_up()
    await forget(index, *erased("m-1", 9), mark=9)
    assert {due.run for due in await in_thread(index.due)} == {"kept", "gone"}
    await in_thread(index.drop_run, "gone")
    assert {due.run for due in await in_thread(index.due)} == {"kept"}


async def test_what_is_to_be_done_is_looked_up_from_what_was_forgotten(tmp_path: Path) -> None:
    journal = MemoryJournal()
    runs, index = Runs(journal, "t"), open_citations("t", "memory", tmp_path)
    await runs.step("run", 0, [("memory", offer(f"m-{number}", str(number))) for number in range(100)])
    await feed(runs, index).catch_up()
    await forget(index, *erased("m-1"), mark=1)
    await in_thread(index.close)

    def plan(sql: str) -> list[str]:
        with closing(sqlite3.connect(next(tmp_path.glob("*.sqlite")))) as connection:
            return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]

    for sql in (DUE, CONDEMNED):
        assert [step.split()[1] for step in await in_thread(plan, sql) if step.startswith("SCAN")] == ["e"]


async def test_only_records_of_the_store_are_cited_and_placed_ones_are_known(journal: Journal, tenant: str) -> None:
    runs, index = Runs(journal, tenant), CitationIndex(MEMORY, "memory")
    await runs.step("run", 0, [("memory", ONE), ("memory", TWO)], placed=["m-2"])
    await runs.step("run", 1, [("other", ONE)])
    await feed(runs, index).catch_up()
    await forget(index, *erased("m-1"), *erased("m-2", 2), mark=2)
    assert [(due.record_id, due.erasure, due.step, due.placed) for due in await in_thread(index.due)] == [
        ("m-1", 1, 0, False),
        ("m-2", 2, 0, True),
    ]


async def test_a_redaction_moves_what_is_cited_and_leaves_a_blob_to_erase(journal: Journal, tenant: str) -> None:
    runs, index = Runs(journal, tenant), CitationIndex(MEMORY, "memory")
    old = await runs.step("run", 0, [("memory", ONE), ("memory", TWO)])
    new = digest_bytes(b"new")
    await runs.packages.put("run", ((new, b"new"),), "redaction")
    event = PackageRedacted(step=0, package=old, replacement=new, source="memory", record_id="m-1", erasure=1)
    foreign = msgspec.structs.replace(event, package=new, replacement=digest_bytes(b"newer"), source="other")
    await runs.commit("run", (event, foreign), "redaction")
    await feed(runs, index).catch_up()
    await forget(index, *erased("m-1"), *erased("m-2", 2), mark=2)
    assert [(due.record_id, due.package) for due in await in_thread(index.due)] == [("m-2", digest_bytes(b"newer"))]
    assert await in_thread(index.spent) == (("run", old, "m-1"),)  # the other one is for its own store
    assert (await in_thread(index.redacted, "m-1"), await in_thread(index.redacted, "m-2")) == ((("run", 0),), ())
    await in_thread(index.drop_spent, "run", old)
    assert await in_thread(index.spent) == ()


async def test_a_blob_that_an_event_of_a_newer_release_names_is_committed(journal: Journal, tenant: str) -> None:
    runs, index = Runs(journal, tenant), CitationIndex(MEMORY, "memory")
    blob = digest_bytes(b"a summary of m-00000000000000000000000000000000")
    await runs.packages.put("run", ((blob, b"a summary of m-00000000000000000000000000000000"),), "later")
    await feed(runs, index).catch_up()
    assert await in_thread(index.runs_with_uncommitted) == {"run": False}
    data = codec.encode_json({"type": "from-the-future", "summary": blob}).decode()
    await runs.commit("run", (UnknownEvent(name="from-the-future", data=data),), "later")
    await feed(runs, index).catch_up()
    assert await in_thread(index.runs_with_uncommitted) == {}


async def test_a_commit_of_a_newer_version_is_not_overlooked_and_a_damaged_one_stops_nothing(
    journal: Journal, tenant: str
) -> None:
    runs, index = Runs(journal, tenant), CitationIndex(MEMORY, "memory")
    await journal.append(subjects.log(tenant, "bad", "run"), b"no commit", expected=0, message_id="x", command="x")
    await runs.step("run", 0, [("memory", ONE)])
    assert (await feed(runs, index).catch_up()).log == 2
    newer = Commit(
        version=99,
        tenant=tenant,
        run="new",
        part="run",
        command="c",
        command_digest="",
        attempt=1,
        engine="",
        policy=1,
        previous="",
        at=1,
        events=(),
    )
    data = codec.encode_commit(newer)
    await journal.append(subjects.log(tenant, "new", "run"), data, expected=0, message_id="y", command="y")
    with pytest.raises(UnsupportedVersionError):
        await feed(runs, index).catch_up()
