"""Forgetting a record of which packages have copies: they are redacted, and nothing of its text is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.sources.conftest import ADA
from tests.sources.steps import Runs, offer, output

from contextbus.runtime.journal import Journal, Refused, Unanswered
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.package_store import CHUNK_BYTES
from contextbus.sources.memory import MemorySource, memory_source
from contextbus.sources.memory_session import MemorySession, memory_session
from contextbus_protocol import blobs, codec, subjects
from contextbus_protocol.chat import user
from contextbus_protocol.commands import AppendMessages, NewMessages, Recorded, RedactPackages
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import ConflictError, DeadlineExceededError, InternalError, InvalidRequestError
from contextbus_protocol.events import WorkingMemoryCreated, WorkingMemoryPatched
from contextbus_protocol.memory_records import Forget, Forgotten, RedactedRun, Remember, Remembered
from contextbus_protocol.questions import Offered
from contextbus_protocol.values import Candidate
from contextbus_protocol.working_memory import AddObservation, WorkingMemoryPatch, WorkingMemorySnapshot

SECRET = 'the "secret" sentence that only the record holds'
WRITTEN = codec.encode_json(SECRET)[1:-1]


@pytest.fixture
def runs(journal: Journal, tenant: str) -> Runs:
    return Runs(journal, tenant)


@pytest.fixture
async def memory(runs: Runs, tmp_path: Path) -> AsyncGenerator[MemorySource]:
    made = memory_source(runs.journal, runs.tenant, data=tmp_path, redact=runs.redact)
    yield made
    await made.aclose()


async def remember(memory: MemorySource, text: str) -> Candidate:
    request = Remember(
        run="",
        tenant=memory.store.tenant,
        reply_to="",
        source="memory",
        message_id=f"r {text}",
        text=text,
        scope=ADA,
        now=1,
    )
    done = await memory.administer(request)
    assert isinstance(done, Remembered)
    return offer(done.record_id, text)


async def forget(memory: MemorySource, record: Candidate, message_id: str = "f") -> Forgotten:
    request = Forget(
        run="",
        tenant=memory.store.tenant,
        reply_to="",
        source="memory",
        message_id=message_id,
        record_id=record.record_id,
        scope=ADA,
    )
    done = await memory.administer(request)
    assert isinstance(done, Forgotten)
    return done


async def keep_until(memory: MemorySource, condition: Callable[[], bool]) -> None:
    """Let a source keep itself up to date until something happened, and what it began is done."""
    task = asyncio.create_task(memory.keep())
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)
    await memory.follow()
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.rule("D.J.4", "D.J.6", "D.J.7")
async def test_each_package_that_was_offered_the_record_is_redacted(memory: MemorySource, runs: Runs) -> None:
    secret, other = await remember(memory, SECRET), await remember(memory, "another record")
    foreign = offer("docs-1", "a document")
    offers = [("memory", secret), ("memory", other), ("docs", foreign)]
    placed = await runs.step("one", 1, offers, placed=[secret.record_id, other.record_id])
    offered = await runs.step("one", 2, offers, placed=[other.record_id])
    restored = await runs.step("two", 1, [("docs", foreign)], restored=[("memory", secret)], placed=[secret.record_id])
    untouched = await runs.step("two", 2, [("memory", other)], placed=[other.record_id])
    done = await forget(memory, secret)
    assert done.redacted == (RedactedRun("one", (1, 2)), RedactedRun("two", (1,)))
    assert (done.blobs, done.revisions) == (3, 1)
    assert WRITTEN not in await runs.stored()

    left = await runs.replacement("one", placed)
    assert left.redacts == placed
    kept = [(r.source, c.record_id, c.text) for r in left.results for c in r.candidates]
    assert kept == [("memory", other.record_id, "another record"), ("docs", "docs-1", "a document")]
    assert [block.placement for block in left.blocks] == ["ephemeral-tail"]
    left = await runs.replacement("one", offered)
    assert [block.placement for block in left.blocks] == ["append", "ephemeral-tail"]
    left = await runs.replacement("two", restored)
    assert [(r.source, len(r.candidates)) for r in left.results] == [("docs", 1), ("memory", 0)]
    assert len(await runs.packages.get("two", (untouched,))) == 1  # type: ignore[arg-type]


@pytest.mark.rule("D.D.25")
async def test_queries_and_the_user_text_go_with_the_redacted_blob(memory: MemorySource, runs: Runs) -> None:
    secret, other = await remember(memory, SECRET), await remember(memory, "another record")
    await runs.step("one", 1, [("memory", secret), ("memory", other)], placed=[secret.record_id])
    assert b"what was asked for" in await runs.stored()
    await forget(memory, secret)
    stored = await runs.stored()
    assert b"what was asked for" not in stored
    assert b"what the user said" not in stored
    assert b"another record" in stored


@pytest.mark.rule("D.J.7")
async def test_a_redaction_is_recorded_before_anything_is_erased(runs: Runs, tmp_path: Path) -> None:
    async def watch(command: RedactPackages) -> Recorded:
        assert WRITTEN in await runs.stored()
        assert [one.package for one in command.packages] == [package]
        assert len(await runs.packages.get("one", [one.replacement for one in command.packages])) == 1  # type: ignore[arg-type]
        return await runs.redact(command)

    memory = memory_source(runs.journal, runs.tenant, data=tmp_path, redact=watch)
    secret = await remember(memory, SECRET)
    package = await runs.step("one", 1, [("memory", secret)])
    done = await forget(memory, secret)
    (command,) = runs.asked
    assert (command.source, command.record_id, command.erasure) == ("memory", secret.record_id, done.sequence)
    assert (command.tenant, command.attempt) == (runs.tenant, 1)
    await memory.aclose()


@pytest.mark.rule("D.J.7")
async def test_records_are_forgotten_one_after_the_other_from_one_package(memory: MemorySource, runs: Runs) -> None:
    one, two, three = [await remember(memory, text) for text in (SECRET, "the second text", "the third text")]
    offers = [("memory", record) for record in (one, two, three)]
    package = await runs.step("run", 1, offers, placed=[one.record_id, three.record_id])
    await forget(memory, two, "f2")
    first = await runs.replacement("run", package)
    assert [block.placement for block in first.blocks] == ["append", "ephemeral-tail"]
    await forget(memory, one, "f1")
    stored = await runs.stored()
    assert WRITTEN not in stored
    assert b"the second text" not in stored
    assert b"the third text" in stored
    left = await runs.replacement("run", digest_bytes(codec.encode_json(first)))
    assert [c.record_id for r in left.results for c in r.candidates] == [three.record_id]
    assert [block.placement for block in left.blocks] == ["ephemeral-tail"]


@pytest.mark.rule("D.J.7")
async def test_a_record_among_entries_too_many_for_a_commit_is_found(memory: MemorySource, runs: Runs) -> None:
    secret = await remember(memory, SECRET)
    await runs.step("one", 1, [("memory", secret)], facts=True)
    assert (await forget(memory, secret)).redacted == (RedactedRun("one", (1,)),)
    assert WRITTEN not in await runs.stored()
    assert secret.record_id.encode() in await runs.stored()  # the facts stay: ids and digests


@pytest.mark.rule("D.J.7")
async def test_a_package_in_chunks_is_erased_with_all_of_them(memory: MemorySource, runs: Runs, tenant: str) -> None:
    secret = await remember(memory, SECRET)
    package = await runs.step("one", 1, [("memory", secret)], placed=[secret.record_id], padding="x" * 3 * CHUNK_BYTES)
    assert len(await runs.packages.chunks_of("one", package)) == 4  # type: ignore[arg-type]
    assert (await forget(memory, secret)).blobs == 1
    found = await runs.journal.subjects(subjects.blobs_of_run(tenant, "one"))
    assert len(found) == 1  # type: ignore[arg-type]


@pytest.mark.rule("D.J.4", "D.J.7")
async def test_a_step_that_commits_after_the_record_was_forgotten_is_redacted(memory: MemorySource, runs: Runs) -> None:
    secret = await remember(memory, SECRET)
    assert (await forget(memory, secret)).redacted == ()
    late = await runs.step("one", 1, [("memory", secret)], placed=[secret.record_id])
    await keep_until(memory, lambda: bool(runs.asked))
    assert WRITTEN not in await runs.stored()
    assert (await runs.replacement("one", late)).results[0].candidates == ()


@pytest.mark.rule("D.J.7")
@pytest.mark.parametrize("padding", ["", "x" * 2 * CHUNK_BYTES], ids=["whole", "chunks"])
async def test_a_package_that_no_commit_names_is_erased(memory: MemorySource, runs: Runs, padding: str) -> None:
    secret, other = await remember(memory, SECRET), await remember(memory, "another record")
    await runs.step("one", 1, [("memory", secret)], committed=False, padding=padding)
    await runs.step("one", 1, [("memory", other)], committed=False)
    await runs.step("two", 1, [("memory", other)], padding=padding)
    done = await forget(memory, secret)
    assert (done.redacted, done.blobs) == ((), 1)
    stored = await runs.stored()
    assert WRITTEN not in stored
    assert stored.count(b"another record") == 2


@pytest.mark.rule("D.J.7")
async def test_a_step_that_commits_a_blob_that_was_erased_gets_an_empty_one(memory: MemorySource, runs: Runs) -> None:
    secret = await remember(memory, SECRET)
    offers = [("memory", secret)]
    await runs.step("one", 1, offers, committed=False)
    assert (await forget(memory, secret)).blobs == 1
    late = await runs.step("one", 1, offers, stored=False)
    assert (await forget(memory, secret)).redacted == (RedactedRun("one", (1,)),)
    left = await runs.replacement("one", late)
    assert (left.results, left.blocks) == ((), ())


@pytest.mark.rule("D.J.7")
async def test_chunks_whose_list_never_came_are_erased(memory: MemorySource, runs: Runs) -> None:
    secret = await remember(memory, SECRET)
    await runs.say("one", "y" * 2 * CHUNK_BYTES)
    before = len(await runs.stored())
    # the record's id stands across two chunks
    bare, head = output("one", 1, [("memory", secret)]), b'{"version":1,"package":"'
    rest = bare[bare.rindex(secret.record_id.encode()) :] + b"z" * CHUNK_BYTES
    data = head + b"x" * (CHUNK_BYTES - len(head) - 10) + rest
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    await runs.packages.put("one", [(digest_bytes(chunk), chunk) for chunk in chunks], "died")
    done = await forget(memory, secret)
    assert done.blobs == len(chunks)
    assert WRITTEN not in await runs.stored()
    assert len(await runs.stored()) == before


@pytest.mark.rule("D.J.7")
async def test_large_messages_under_way_that_hold_it_are_erased_and_those_of_users_are_not(
    memory: MemorySource, runs: Runs, tenant: str
) -> None:
    secret = await remember(memory, SECRET)
    offered = codec.encode_message(Offered(run="one", token="t", source="memory", kind="memory", candidates=(secret,)))
    said = user(f"{secret.record_id}: {SECRET}")
    asked = AppendMessages(
        run="one",
        tenant=tenant,
        command="c",
        attempt=1,
        reply_to="",
        seconds_left=1,
        now=1,
        scope=ADA,
        history=NewMessages(0, "", 0, (said,), ""),
    )
    words = codec.encode_message(asked)
    inputs = blobs.encode_input((said,))
    await runs.packages.put("one", [(digest_bytes(data), data) for data in (offered, words, inputs)], "")
    assert (await forget(memory, secret)).blobs == 1
    found = await runs.packages.get("one", [digest_bytes(data) for data in (offered, words, inputs)])
    assert [data for _, data in found] == [words, inputs]  # type: ignore[union-attr]


@pytest.mark.rule("D.J.7")
async def test_who_quotes_the_record_is_counted_and_not_touched(memory: MemorySource, runs: Runs) -> None:
    secret = await remember(memory, SECRET)
    await runs.say("one", f"You said: {SECRET}.", "Nothing of it.", SECRET)
    await runs.say("elsewhere", SECRET)
    snapshot = WorkingMemorySnapshot(version=1, scope="s", revision=0)
    added = (AddObservation(text=SECRET), AddObservation(text="other"))
    patch = WorkingMemoryPatch(operation_id="op", expected_revision=0, writer="host", operations=added)
    await runs.commit("one", (WorkingMemoryCreated(snapshot=snapshot),), "w1", "working-memory")
    patched = WorkingMemoryPatched(patch=patch, revision=1, now=1)
    await runs.commit("one", (patched,), "w2", "working-memory")
    await runs.step("one", 1, [("memory", secret)])
    done = await forget(memory, secret)
    assert (done.messages, done.items) == (2, 1)
    assert (await runs.stored()).count(WRITTEN) == 3
    again = await forget(memory, secret)
    assert (again.messages, again.items, again.redacted) == (None, None, done.redacted)


@pytest.mark.rule("D.J.7", "D.K.24")
async def test_an_interrupted_forget_is_finished_by_another_worker(runs: Runs, tmp_path: Path) -> None:
    async def refuse(command: RedactPackages) -> Recorded:
        raise DeadlineExceededError("nobody is there")

    one = memory_source(runs.journal, runs.tenant, data=tmp_path / "one", redact=refuse)
    secret = await remember(one, SECRET)
    await runs.step("one", 1, [("memory", secret)], placed=[secret.record_id])
    await runs.step("two", 1, [("memory", secret)])
    with pytest.raises(DeadlineExceededError):
        await forget(one, secret)
    assert WRITTEN in await runs.stored()
    two = memory_source(runs.journal, runs.tenant, data=tmp_path / "two", redact=runs.redact)
    await keep_until(two, lambda: len(runs.asked) == 2)
    assert WRITTEN not in await runs.stored()
    # the replacement that the first one stored is the one that the second one recorded
    assert len(await runs.stored()) < 2000
    # repeated, it tells what was done
    done = await forget(one, secret)
    assert done.redacted == (RedactedRun("one", (1,)), RedactedRun("two", (1,)))
    await one.aclose()
    await two.aclose()


class Fragile(MemoryJournal):
    """A journal that stops after a number of erasures."""

    left = 10**9

    async def erase(self, subject: str, sequence: int) -> bool | Refused | Unanswered:
        """Erase, or refuse."""
        if subject.startswith("ctx.blob."):
            self.left -= 1
            if self.left < 0:
                return Refused(1, "not now")
        return await super().erase(subject, sequence)


@pytest.mark.rule("D.J.7")
@pytest.mark.parametrize("left", range(3))
async def test_a_forget_that_died_between_record_and_erasure_is_finished_when_it_is_repeated(left: int) -> None:
    journal = Fragile()
    runs = Runs(journal, "t")
    memory = memory_source(journal, "t", redact=runs.redact)
    secret = await remember(memory, SECRET)
    for number in (1, 2):
        await runs.step("one", number, [("memory", secret)])
    await runs.step("one", 3, [("memory", secret)], committed=False)
    journal.left = left
    with pytest.raises(Exception, match="not now"):
        await forget(memory, secret)
    journal.left = 10
    assert (await forget(memory, secret)).redacted == (RedactedRun("one", (1, 2)),)
    assert WRITTEN not in await runs.stored()
    assert len(runs.asked) == 1


class Watched(MemoryJournal):
    """A journal that has something done whenever a memory record is erased, once its tombstone stands."""

    after: Callable[[], Awaitable[None]] | None = None

    async def erase(self, subject: str, sequence: int) -> bool | Refused | Unanswered:
        """Erase, then do it."""
        outcome = await super().erase(subject, sequence)
        if subject.startswith("ctx.memory.") and self.after is not None:
            after, self.after = self.after, None
            await after()
        return outcome


@pytest.mark.rule("D.J.7")
async def test_what_the_follower_of_the_log_erases_between_the_tombstone_and_the_answer_is_in_the_answer() -> None:
    journal = Watched()
    runs = Runs(journal, "t")
    memory = memory_source(journal, "t", redact=runs.redact)
    secret, other = await remember(memory, SECRET), await remember(memory, "another record")
    for number in (1, 2):
        await runs.step("one", number, [("memory", secret), ("memory", other)])
    await runs.step("one", 3, [("memory", secret)], committed=False)
    journal.after = memory.follow
    done = await forget(memory, secret)
    assert (done.blobs, done.redacted) == (3, (RedactedRun("one", (1, 2)),))
    # each of two at once tells what it erased itself, whichever of them settled it
    third = await remember(memory, "a third record")
    for number, record in ((4, other), (5, third), (6, third)):
        await runs.step("one", number, [("memory", record)])
    both = await asyncio.gather(forget(memory, other, "g"), forget(memory, third, "h"))
    assert [done.blobs for done in both] == [3, 2]
    assert (await forget(memory, secret)).blobs == 0


@pytest.mark.rule("D.J.7")
async def test_a_run_that_was_deleted_is_skipped(memory: MemorySource, runs: Runs) -> None:
    secret = await remember(memory, SECRET)
    await runs.step("gone", 1, [("memory", secret)])
    await runs.step("here", 1, [("memory", secret)])
    await memory.follow()
    await runs.packages.erase_run("gone")
    assert (await forget(memory, secret)).redacted == (RedactedRun("here", (1,)),)
    assert [command.run for command in runs.asked] == ["here"]


@pytest.mark.rule("D.J.7")
async def test_a_run_that_cannot_be_redacted_stops_no_other(runs: Runs, tmp_path: Path) -> None:
    async def picky(command: RedactPackages) -> Recorded:
        if command.run == "bad":
            raise InternalError("this one not")
        return await runs.redact(command)

    memory = memory_source(runs.journal, runs.tenant, data=tmp_path, redact=picky)
    secret, other = await remember(memory, SECRET), await remember(memory, "another record")
    await runs.step("bad", 1, [("memory", secret)])
    good = await runs.step("good", 1, [("memory", secret), ("memory", other)])
    with pytest.raises(InternalError):
        await forget(memory, secret)
    assert (await runs.replacement("good", good)).redacts == good
    assert len((await forget(memory, other, "g")).redacted) == 1
    await memory.aclose()


async def test_a_selection_that_says_done_and_does_nothing_is_told_off(runs: Runs, tmp_path: Path) -> None:
    async def pretend(command: RedactPackages) -> Recorded:
        return Recorded(run=command.run, command=command.command, sequence=1, commit="", count=0, chain="")

    memory = memory_source(runs.journal, runs.tenant, data=tmp_path, redact=pretend)
    secret = await remember(memory, SECRET)
    await runs.step("one", 1, [("memory", secret)])
    with pytest.raises(ConflictError, match="its log does not"):
        await forget(memory, secret)
    await memory.aclose()


@pytest.mark.rule("D.J.7")
async def test_no_index_file_holds_the_text_after_a_forget(memory: MemorySource, runs: Runs, tmp_path: Path) -> None:
    secret = await remember(memory, SECRET)
    await runs.step("one", 1, [("memory", secret)])
    await memory.store.catch_up()

    def read() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))

    assert b"sentence that only" in await asyncio.to_thread(read)
    await forget(memory, secret)
    left = await asyncio.to_thread(read)
    assert b"citations" in left
    for word in (b"sentence", b"secret", b"only the record"):
        assert word not in left


@pytest.mark.rule("D.J.4", "D.J.6", "D.J.7")
async def test_a_session_with_redaction_forgets_out_of_packages_too(runs: Runs, tmp_path: Path) -> None:
    session = memory_session(runs.journal, runs.tenant, scope=ADA, data=tmp_path, redact=runs.redact)
    memory = memory_source(session=session)
    for through_source in (True, False):
        secret = await remember(memory, f"{SECRET} {through_source}")
        await runs.step("one", 1 + through_source, [("memory", secret)], placed=[secret.record_id])
        assert WRITTEN in await runs.stored()
        done = await (forget(memory, secret) if through_source else session.forget(secret.record_id))
        assert done.redacted == (RedactedRun("one", (1 + through_source,)),)
        assert (done.revisions, done.blobs, done.messages) == (1, 1, 0)
        assert WRITTEN not in await runs.stored()
    await memory.aclose()


@pytest.mark.rule("D.J.4", "D.J.7")
async def test_without_redaction_nothing_that_packages_hold_counts_as_forgotten(runs: Runs) -> None:
    session = memory_session(runs.journal, runs.tenant, scope=ADA)
    sources = (
        memory_source(session=session),
        memory_source(session=MemorySession(session.store, ADA)),
        memory_source(runs.journal, runs.tenant),
    )
    plain = await remember(sources[0], "in no package")
    assert (await session.forget(plain.record_id)).redacted == ()
    secrets = [await remember(memory, f"{SECRET} {number}") for number, memory in enumerate(sources)]
    for number, secret in enumerate(secrets):
        await runs.step("one", number, [("memory", secret)], placed=[secret.record_id])
    for memory, secret in zip(sources, secrets, strict=True):
        with pytest.raises(InvalidRequestError, match="redact="):
            await forget(memory, secret)
    last = await remember(sources[0], f"{SECRET} more")
    await runs.step("one", 9, [("memory", last)])
    with pytest.raises(InvalidRequestError, match="redact="):
        await session.forget(last.record_id)
    assert (await session.list(), runs.asked) == ((), [])
    # a worker that redacts finishes what was begun, without being asked
    finisher = memory_source(runs.journal, runs.tenant, redact=runs.redact)
    await finisher.follow()
    assert WRITTEN not in await runs.stored()
    assert (await forget(sources[0], secrets[0])).redacted == (RedactedRun("one", (0,)),)
    for memory in (*sources, finisher):
        await memory.aclose()


@pytest.mark.rule("D.J.7")
async def test_what_another_worker_erases_is_redacted_in_the_answer_and_not_counted() -> None:
    journal = Watched()
    runs = Runs(journal, "t")
    one, two = (memory_source(journal, "t", redact=runs.redact) for _ in range(2))
    secret = await remember(one, SECRET)
    for number in (1, 2):
        await runs.step("one", number, [("memory", secret)])
    journal.after = two.follow
    done = await forget(one, secret)
    assert (done.blobs, done.redacted) == (0, (RedactedRun("one", (1, 2)),))
    assert WRITTEN not in await runs.stored()
