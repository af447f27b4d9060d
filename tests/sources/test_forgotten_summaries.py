"""Summaries of histories in which a forgotten record was placed: none is left, and nobody else's goes (C.X.11)."""

from __future__ import annotations

import sqlite3
from asyncio import to_thread as in_thread
from collections.abc import AsyncGenerator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.sources.steps import Runs
from tests.sources.test_citations import erased, feed
from tests.sources.test_citations import forget as tell_forgotten
from tests.sources.test_forgetting import SECRET, WRITTEN, forget, keep_until, remember

from contextbus.runtime.journal import Journal
from contextbus.runtime.package_store import CHUNK_BYTES
from contextbus.sources.citations import CitationIndex, open_citations
from contextbus.sources.cited_summaries import DUE_SUMMARIES
from contextbus.sources.database import MEMORY
from contextbus.sources.memory import MemorySource, memory_source
from contextbus.sources.redaction import is_kept, named_records
from contextbus_protocol import blobs, codec
from contextbus_protocol.chat import user
from contextbus_protocol.commands import Recorded, RedactPackages
from contextbus_protocol.commit_requests import CommitHead
from contextbus_protocol.commit_requests import Record as RecordRequest
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import ConflictError, InvalidRequestError
from contextbus_protocol.events import RecordReference, SummaryRedacted
from contextbus_protocol.memory_records import DeletedSummary, RedactedRun


class DiedError(BaseException):
    """A process that ends in the middle of its work."""


@pytest.fixture
def runs(journal: Journal, tenant: str) -> Runs:
    return Runs(journal, tenant)


@pytest.fixture
async def memory(runs: Runs, tmp_path: Path) -> AsyncGenerator[MemorySource]:
    made = memory_source(runs.journal, runs.tenant, data=tmp_path, redact=runs.redact)
    yield made
    await made.aclose()


@pytest.mark.rule("C.X.11", "D.J.7")
async def test_all_summaries_that_list_the_record_are_deleted_and_no_other(memory: MemorySource, runs: Runs) -> None:
    secret, other = await remember(memory, SECRET), await remember(memory, "another record")
    package = await runs.step("one", 1, [("memory", secret)], placed=[secret.record_id])
    first = await runs.compact("one", SECRET, secret.record_id, archived=[user("what was said")])
    second = await runs.compact("one", f"again: {SECRET}", secret.record_id, other.record_id, archived=[user(SECRET)])
    bare = await runs.compact("two", SECRET, secret.record_id)
    kept = await runs.compact("two", "of another record", other.record_id, archived=[user("what else was said")])
    foreign = await runs.compact("two", "of another source", secret.record_id, source="docs")
    done = await forget(memory, secret)
    assert done.redacted == (RedactedRun("one", (1,)),)
    made = [("one", first), ("one", second), ("two", bare)]
    assert set(done.summaries) == {DeletedSummary(run, e.replaced_by, e.archive) for run, e in made}
    assert done.blobs == 1 + 2 + 2 + 1
    stored = await runs.stored()
    assert WRITTEN not in stored
    assert b"what was said" not in stored
    assert all(text in stored for text in (b"of another record", b"what else was said", b"of another source"))
    for event in (kept, foreign):
        assert len(await runs.packages.get("two", (event.replaced_by,))) == 1  # type: ignore[arg-type]  # there are two outcomes
    # one command a run, packages and summaries together, and the record is named
    assert [(c.run, len(c.packages), len(c.summaries)) for c in runs.asked] == [("one", 1, 2), ("two", 0, 1)]
    assert all((c.source, c.record_id, c.erasure) == ("memory", secret.record_id, done.sequence) for c in runs.asked)
    assert (await runs.replacement("one", package)).redacts == package
    again = await forget(memory, secret)
    assert (again.summaries, again.blobs, len(runs.asked)) == (done.summaries, 0, 2)


@pytest.mark.rule("C.X.11", "D.J.7")
async def test_the_run_is_told_before_anything_is_erased(runs: Runs, tmp_path: Path) -> None:
    async def watch(command: RedactPackages) -> Recorded:
        assert WRITTEN in await runs.stored()
        return await runs.redact(command)

    memory = memory_source(runs.journal, runs.tenant, data=tmp_path, redact=watch)
    secret = await remember(memory, SECRET)
    await runs.compact("one", SECRET, secret.record_id)
    await forget(memory, secret)
    assert len(runs.asked) == 1
    assert WRITTEN not in await runs.stored()
    await memory.aclose()


@pytest.mark.rule("C.X.11", "D.J.7")
@pytest.mark.parametrize("dies", ["before the commit", "behind it", "between the blobs"])
async def test_what_died_between_is_finished_by_whoever_comes_next(runs: Runs, tmp_path: Path, dies: str) -> None:
    died: list[RedactPackages] = []

    async def redact(command: RedactPackages) -> Recorded:
        if died:
            return await runs.redact(command)
        died.append(command)
        if dies != "before the commit":
            await runs.redact(command)
        if dies == "between the blobs":
            await runs.packages.erase("one", event.replaced_by)
        raise DiedError

    memory = memory_source(runs.journal, runs.tenant, data=tmp_path / "first", redact=redact)
    secret = await remember(memory, SECRET)
    event = await runs.compact("one", SECRET, secret.record_id, archived=[user("said")])
    with pytest.raises(DiedError):
        await forget(memory, secret)
    assert b"said" in await runs.stored()
    await memory.aclose()
    # another worker, whose index is made of the log alone
    later = memory_source(runs.journal, runs.tenant, data=tmp_path / "second", redact=redact)
    done = await forget(later, secret)
    assert await runs.stored() == b""
    assert done.summaries == (DeletedSummary("one", event.replaced_by, event.archive),)
    assert len(runs.asked) == 1
    await later.aclose()


@pytest.mark.rule("C.X.11", "D.J.4")
async def test_a_summary_that_is_committed_after_the_record_was_forgotten_goes(
    memory: MemorySource, runs: Runs
) -> None:
    secret = await remember(memory, SECRET)
    assert (await forget(memory, secret)).summaries == ()
    await runs.compact("one", SECRET, secret.record_id, archived=[user(SECRET)])
    await keep_until(memory, lambda: bool(runs.asked))
    assert WRITTEN not in await runs.stored()
    assert len((await forget(memory, secret)).summaries) == 1


@pytest.mark.rule("C.X.11", "D.J.7")
@pytest.mark.parametrize("padding", ["", "x" * 2 * CHUNK_BYTES], ids=["whole", "chunks"])
async def test_a_summary_that_no_commit_names_is_erased(memory: MemorySource, runs: Runs, padding: str) -> None:
    secret, other = await remember(memory, SECRET), await remember(memory, "another record")
    await runs.compact("one", SECRET + padding, secret.record_id, archived=[user(SECRET)], committed=False)
    quoting = f"{secret.record_id} was noted {padding}"
    await runs.compact("one", "of another record", other.record_id, archived=[user(quoting)], committed=False)
    done = await forget(memory, secret)
    assert (done.summaries, done.blobs) == ((), 2)
    stored = await runs.stored()
    assert WRITTEN not in stored
    # what the records of a summary do not name is not taken for what it may tell of
    assert quoting.encode()[:60] in stored


@pytest.mark.rule("C.X.11", "D.J.7")
async def test_nothing_is_erased_for_what_is_no_forget(memory: MemorySource, runs: Runs) -> None:
    secret, other = await remember(memory, SECRET), await remember(memory, "another record")
    event = await runs.compact("one", SECRET, secret.record_id, archived=[user(SECRET)])

    def said(record_id: str, source: str = "memory") -> SummaryRedacted:
        return SummaryRedacted(
            replaced_by=event.replaced_by, archive=event.archive, source=source, record_id=record_id, erasure=1
        )

    lies = (said(other.record_id), said(secret.record_id, "docs"), said(secret.record_id))
    await runs.commit("one", lies, "lie")
    await forget(memory, other)
    assert WRITTEN in await runs.stored()
    done = await forget(memory, secret)  # and what was said does not keep the real one from its work
    assert done.summaries == (DeletedSummary("one", event.replaced_by, event.archive),)
    assert WRITTEN not in await runs.stored()


@pytest.mark.rule("C.X.11")
async def test_without_actors_the_record_is_not_forgotten(runs: Runs, tmp_path: Path) -> None:
    memory = memory_source(runs.journal, runs.tenant, data=tmp_path)
    secret = await remember(memory, SECRET)
    await runs.compact("one", SECRET, secret.record_id)
    with pytest.raises(InvalidRequestError, match="redact="):
        await forget(memory, secret)
    await memory.aclose()


@pytest.mark.rule("C.X.11")
async def test_a_run_that_says_it_did_and_did_not_is_a_conflict(runs: Runs, tmp_path: Path) -> None:
    async def nothing(command: RedactPackages) -> Recorded:
        return Recorded(run=command.run, command=command.command, sequence=1, commit="", count=0, chain="c")

    memory = memory_source(runs.journal, runs.tenant, data=tmp_path, redact=nothing)
    secret = await remember(memory, SECRET)
    await runs.compact("one", SECRET, secret.record_id)
    with pytest.raises(ConflictError):
        await forget(memory, secret)
    await memory.aclose()


@pytest.mark.rule("C.X.11")
async def test_a_summary_that_comes_again_is_deleted_again(memory: MemorySource, runs: Runs) -> None:
    secret = await remember(memory, SECRET)
    await runs.compact("one", SECRET, secret.record_id, archived=[user("said")])
    await forget(memory, secret)
    await runs.compact("one", SECRET, secret.record_id, archived=[user("said")])
    done = await forget(memory, secret)
    assert (len(done.summaries), len(runs.asked)) == (1, 2)
    assert runs.asked[0].command != runs.asked[1].command
    assert WRITTEN not in await runs.stored()


@pytest.mark.rule("C.X.11")
async def test_the_summaries_of_a_deleted_run_are_let_go(memory: MemorySource, runs: Runs) -> None:
    secret = await remember(memory, SECRET)
    await runs.compact("one", SECRET, secret.record_id)
    await memory.follow()
    await runs.packages.erase_run("one")
    assert (await forget(memory, secret)).summaries == ()
    assert runs.asked == []


@pytest.mark.rule("C.X.11")
async def test_what_is_due_is_looked_up_from_what_was_forgotten(tmp_path: Path, journal: Journal, tenant: str) -> None:
    runs, index = Runs(journal, tenant), open_citations(tenant, "memory", tmp_path)
    event = await runs.compact("run", "text", *(f"m-{number}" for number in range(100)))
    await feed(runs, index).catch_up()
    await tell_forgotten(index, *erased("m-7"), mark=1)
    (due,) = await in_thread(index.due_summaries)
    assert (due.run, due.record_id, due.erasure, due.summary, due.archive) == (
        "run",
        "m-7",
        1,
        event.replaced_by,
        None,
    )
    await in_thread(index.close)

    def plan() -> list[str]:
        with closing(sqlite3.connect(next(tmp_path.glob("*.sqlite")))) as connection:
            return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {DUE_SUMMARIES}")]

    assert [step.split()[1] for step in await in_thread(plan) if step.startswith("SCAN")] == ["e"]


@pytest.mark.rule("C.X.11")
async def test_other_records_cite_a_summary_until_its_blobs_are_erased(journal: Journal, tenant: str) -> None:
    runs, index = Runs(journal, tenant), CitationIndex(MEMORY, "memory")
    event = await runs.compact("run", "text", "m-1", "m-2", archived=[user("said")])
    said = SummaryRedacted(
        replaced_by=event.replaced_by, archive=event.archive, source="memory", record_id="m-1", erasure=1
    )
    await runs.commit("run", (said,), "redact")
    await feed(runs, index).catch_up()
    assert await in_thread(index.spent) == ()  # no tombstone
    await tell_forgotten(index, *erased("m-1"), *erased("m-2", 2), mark=2)
    assert [due.record_id for due in await in_thread(index.due_summaries)] == ["m-2"]
    spent = await in_thread(index.spent)
    assert set(spent) == {("run", event.replaced_by, "m-1"), ("run", event.archive, "m-1")}
    for run, reference, _ in spent:
        await in_thread(partial(index.drop_spent, run, reference))
    assert await in_thread(index.due_summaries) == ()
    assert await in_thread(index.spent) == ()
    await in_thread(index.close)


@pytest.mark.rule("C.X.11", "D.J.7")
def test_the_blob_of_a_checkpoint_names_its_records_and_is_no_input() -> None:
    name = "m-" + "0" * 32
    records = (RecordReference("memory", name, 1),)
    messages = (user(f"m-{'1' * 32} was said"),)
    for encode, decode in (
        (blobs.encode_replacement, blobs.decode_replacement),
        (blobs.encode_archive, blobs.decode_archive),
    ):
        data = encode(messages, records)
        assert (decode(data).messages, decode(data).records) == (messages, records)
        assert named_records(data) == {name}
        assert named_records(encode(messages)) == frozenset()
        assert not is_kept(data)
        # without one of its records it is another blob: erasing the old one once more takes nothing of the new one
        references = {digest_bytes(d) for d in (data, encode(messages), blobs.encode_input(messages))}
        assert len(references) == 3
    assert is_kept(blobs.encode_input(messages))


@pytest.mark.rule("C.X.11", "D.J.7")
def test_a_request_to_commit_a_summary_that_travels_by_reference_carries_what_it_tells() -> None:
    name = "m-" + "0" * 32
    head = CommitHead(
        tenant="t",
        run="r",
        command="c",
        command_digest="",
        attempt=1,
        at=1,
        expected=0,
        previous="",
        token="",
        reply_to="",
        notify="",
        seconds_left=1,
    )
    event = SummaryRedacted(replaced_by="", source="memory", record_id=name, erasure=1)
    plain = RecordRequest(run="r", head=head, count=0, chain="", events=(event,))
    carrying = msgspec.structs.replace(plain, blobs=(("sha256:x", b"text"),))
    assert named_records(codec.encode_message(plain)) == frozenset()
    assert named_records(codec.encode_message(carrying)) == {name}
