"""A forget reaches the summaries of histories in which the record was placed (C.X.11, D.J.7)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client.configuring import configure
from tests.client.forgetting import erase_blob
from tests.client.scripted import MODEL, SCOPE, sent, state_of
from tests.client.test_forget import SECRET, eventually, fetch, read_all

import contextbus.client as contextbus
from contextbus.client import reading
from contextbus.client.context_bus import ContextBus
from contextbus.core.projection import applied
from contextbus.summarisers.interface import SummaryRequest, summariser
from contextbus_protocol import blobs
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import NotFoundError, SummariserFailedError
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionStarted,
    MessagesAppended,
    RecordReference,
    SummaryRedacted,
)
from contextbus_protocol.memory_records import DeletedSummary, RedactedRun
from contextbus_protocol.values import CompactionOptions, RetentionPolicy, Trigger

pytestmark = pytest.mark.broker

TEXT = f"She likes {SECRET} tea."
PADDING = " Leaves are dried in the sun." * 40


def answered(text: str) -> contextbus.Report:
    """A call that succeeded; no two answers are one blob."""
    return contextbus.Report(status="succeeded", messages=[assistant(f"You said: {text}{PADDING}")])


class Teller:
    """A summariser that tells what it is told to tell, and remembers what it was given."""

    def __init__(self, text: str = TEXT) -> None:
        self.text = text
        self.given: list[str] = []
        self.summariser = summariser(id="teller")(self.tell)

    async def tell(self, request: SummaryRequest) -> str:
        """Answer as told."""
        self.given.append(request.prompt)
        return self.text


def compacting(limit: int = 4, keep: int = 2, **changes: Any) -> CompactionOptions:
    """Compaction of a run by the number of its messages."""
    given: dict[str, Any] = {
        "triggers": (Trigger(kind="messages-exceed", limit=limit),),
        "target_tokens": 100_000,
        "keep": RetentionPolicy(keep_last_messages=keep),
        "summariser": "teller",
        "min_shrink": 0.0,
    }
    return CompactionOptions(**(given | changes))


@asynccontextmanager
async def opened(where: Path | str, teller: Teller, **changes: Any) -> AsyncGenerator[ContextBus]:
    """A bus on a data folder, or in memory."""
    at: dict[str, Any] = {"url": where} if isinstance(where, str) else {"data": where}
    async with contextbus.open(**at, summarisers=[teller.summariser], **changes) as bus:
        yield bus


async def talk(run: contextbus.Run, *texts: str, **options: Any) -> contextbus.CompiledStep:
    """Turns of a run whose calls succeed; gives the last step."""
    steps: list[contextbus.CompiledStep] = []
    for text in texts:
        run.append(user(text))
        steps.append(await run.before_model_call(model=MODEL, **options))
        await run.after_model_call(answered(text))
    return steps[-1]


async def compacted(bus: ContextBus, name: str = "one", **options: Any) -> contextbus.Run:
    """A run that placed what is remembered, and whose history was compacted then."""
    run = await bus.run(name, scope=SCOPE, sources=["memory"], compaction=configure(compacting(**options)))
    await talk(run, "Which tea does she like?", "And when?", "And why?")
    return run


async def events(bus: ContextBus, kind: type[Any], run: str = "one") -> list[Any]:
    """The events of a kind in a run's log."""
    log = await bus.log(run)
    return [e for logged in log.commits for e in logged.commit.events if isinstance(e, kind)]


def archives(step: contextbus.CompiledStep) -> list[str]:
    """The archived spans that a request names."""
    return re.findall(r"context://archive/([0-9a-f]{64})", str(sent(step)))


def as_message(given: object) -> contextbus.ChatMessage:
    """A message that a run holds."""
    assert isinstance(given, contextbus.ChatMessage)
    return given


PLACES: list[Callable[[Path], Path | str]] = [lambda folder: folder / "data", lambda _: "memory:"]


@pytest.mark.rule("C.X.11", "C.X.8", "D.J.7")
@pytest.mark.parametrize("place", PLACES, ids=["server", "memory"])
async def test_summary_and_archived_span_go_with_the_record(
    tmp_path: Path, place: Callable[[Path], Path | str]
) -> None:
    where, teller = place(tmp_path), Teller()
    async with opened(where, teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        kept = await bus.memories.remember("Tea is drunk at four.", scope=SCOPE)
        run = await compacted(bus)
        (first,) = await events(bus, CompactionCompleted)
        listed = {(r.source, r.record_id, r.revision) for r in first.records}
        assert listed == {("memory", gone.record_id, 1), ("memory", kept.record_id, 1)}
        assert len(await fetch(bus, "one", first.replaced_by) + await fetch(bus, "one", first.archive)) == 2

        forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert forgotten.summaries == (DeletedSummary("one", first.replaced_by, first.archive),)
        # with the block that left the record was owed, and the step that compacted placed it again (D.H.5)
        assert forgotten.redacted == (RedactedRun("one", (0, 2)),)
        assert forgotten.blobs == 4
        assert await fetch(bus, "one", first.replaced_by) == await fetch(bus, "one", first.archive) == ()
        (redaction,) = await events(bus, SummaryRedacted)
        assert (redaction.record_id, redaction.erasure) == (gone.record_id, forgotten.sequence)
        if isinstance(where, Path):
            assert SECRET.encode() not in await read_all(where)

        teller.text = "She asked about tea."
        run.append(user("And today?"))
        step = await run.before_model_call(model=MODEL)
        assert (step.manifest.redacted, step.manifest.cache_prefix_cause) == (True, "redacted")
        assert SECRET not in str(sent(step))
        assert "She asked about tea." in str(sent(step))
        *_, started = await events(bus, CompactionStarted)
        assert (started.cause, started.trigger_index) == ("redacted", None)
        *_, second = await events(bus, CompactionCompleted)
        # the same messages were summarised again; of what is forgotten nothing is passed on
        assert "Which tea does she like?" in teller.given[-1]
        assert second.source_count >= first.source_count
        assert {r.record_id for r in second.records} == {kept.record_id}
        assert archives(step) == [second.archive.removeprefix("sha256:")]
        assert run.messages[0] == user("Which tea does she like?")
        if isinstance(where, Path):
            assert SECRET.encode() not in await read_all(where)

        again = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert again.summaries == forgotten.summaries
        assert len(await fetch(bus, "one", second.replaced_by) + await fetch(bus, "one", second.archive)) == 2
        other = await bus.run("one", scope=SCOPE, sources=["memory"], compaction=configure(compacting()))
        assert sent(await other.before_model_call(model=MODEL)) == sent(step)
    if isinstance(where, Path):
        assert SECRET.encode() not in await read_all(where)


@pytest.mark.rule("C.X.11", "D.J.7")
async def test_summaries_that_later_ones_took_the_place_of_go_too(tmp_path: Path) -> None:
    teller = Teller()
    async with opened(tmp_path / "data", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await compacted(bus)
        await talk(run, "And now?", "And then?", "And after that?")
        made = await events(bus, CompactionCompleted)
        assert len(made) >= 2
        assert all(gone.record_id in {r.record_id for r in event.records} for event in made)
        # the second archived span holds the first summary
        assert SECRET in teller.given[-1]
        forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert {s.summary for s in forgotten.summaries} == {event.replaced_by for event in made}
        assert {s.archive for s in forgotten.summaries} == {event.archive for event in made}
        assert SECRET.encode() not in await read_all(tmp_path / "data")
        teller.text = "She asked about tea."
        step = await talk(run, "And at last?")
        assert "She asked about tea." in str(sent(step))
        assert SECRET not in teller.given[-1]


@pytest.mark.rule("C.X.11", "D.J.7")
async def test_other_runs_and_summaries_without_the_record_stay(tmp_path: Path) -> None:
    teller = Teller("She asked about tea.")
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        await compacted(bus)
        other = await bus.run("two", scope=SCOPE, compaction=configure(compacting()))
        await talk(other, "Which tea does she like?", "And when?", "And why?")
        (before,) = await events(bus, CompactionCompleted, "two")
        forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert [s.run for s in forgotten.summaries] == ["one"]
        assert await events(bus, SummaryRedacted, "two") == []
        assert len(await fetch(bus, "two", before.replaced_by) + await fetch(bus, "two", before.archive)) == 2
        await talk(other, "And today?")
        assert all(e.cause == "trigger" for e in await events(bus, CompactionStarted, "two"))


@pytest.mark.rule("D.J.7", "C.X.8")
async def test_messages_that_were_archived_byte_for_byte_stay(tmp_path: Path) -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await bus.run("one", scope=SCOPE, sources=["memory"], compaction=configure(compacting(limit=2, keep=1)))
        await talk(run, "Which tea does she like?")
        await talk(run, "And when?")
        (event,) = await events(bus, CompactionCompleted)
        ((_, span),) = await fetch(bus, "one", event.archive)
        archived = blobs.decode_archive(span).messages
        # the span is what was appended, and another blob all the same
        assert archived == run.messages[: event.source_count]
        assert digest_bytes(blobs.encode_input(archived)) != event.archive
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        inputs = [e.inputs for e in await events(bus, MessagesAppended)]
        assert all([await fetch(bus, "one", reference) for reference in inputs])
        reader = await bus.run("one", scope=SCOPE)
        assert reader.messages == run.messages


@pytest.mark.rule("C.X.11", "C.K.6")
async def test_without_compaction_the_next_step_sends_the_source_messages(tmp_path: Path) -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        await compacted(bus)
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        plain = await bus.run("one", scope=SCOPE, sources=["memory"])
        step = await talk(plain, "And today?")
        texts = [message["content"] for message in sent(step)]
        assert texts[0] == "Which tea does she like?"
        assert len(texts) == 7
        assert (step.manifest.redacted, step.manifest.cache_prefix_cause) == (True, "redacted")
        teller.text = "She asked about tea."
        run = await bus.run("one", scope=SCOPE, sources=["memory"], compaction=configure(compacting()))
        later = await talk(run, "And tomorrow?")
        assert "She asked about tea." in str(sent(later))  # it stays due until somebody compacts


@pytest.mark.rule("C.X.11", "D.R.7", "D.R.9")
async def test_an_open_step_behind_the_summary_is_compiled_again(tmp_path: Path) -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await compacted(bus)
        run.append(user("And today?"))
        step = await run.before_model_call(model=MODEL)
        assert SECRET in str(sent(step))
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        teller.text = "She asked about tea."
        again = await run.before_model_call(model=MODEL)
        assert (again.step, again.manifest.redacted) == (step.step, True)
        assert SECRET not in str(sent(again))


@pytest.mark.rule("C.X.11", "C.X.1")
async def test_the_boundary_is_reached_again_whatever_the_options_keep(tmp_path: Path) -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        trigger = Trigger(kind="messages-exceed", limit=4, keep=RetentionPolicy(keep_last_messages=1))
        run = await compacted(bus, triggers=(trigger,), keep=50)
        (first,) = await events(bus, CompactionCompleted)
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        await run.before_model_call(model=MODEL)
        *_, second = await events(bus, CompactionCompleted)
        assert (second.source_count, second.source_hash) == (first.source_count, first.source_hash)


@pytest.mark.rule("C.X.11", "C.L.4")
async def test_a_rewind_before_the_boundary_leaves_nothing_to_compact(tmp_path: Path) -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await compacted(bus)
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        before = await events(bus, CompactionStarted)
        step = await run.before_model_call([user("Which tea does she like?")], model=MODEL)
        assert len(sent(step)) == 1
        assert await events(bus, CompactionStarted) == before


@pytest.mark.rule("C.X.11", "C.K.4")
async def test_a_failure_of_the_summariser_leaves_it_due(tmp_path: Path) -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await compacted(bus)
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        teller.text = " "
        run.append(user("And today?"))
        with pytest.raises(SummariserFailedError):
            await run.before_model_call(model=MODEL)
        teller.text = "She asked about tea."
        step = await run.before_model_call(model=MODEL)
        assert "She asked about tea." in str(sent(step))


@pytest.mark.rule("C.X.11", "D.J.1")
async def test_where_the_messages_are_gone_too_the_history_goes_on_from_the_boundary(tmp_path: Path) -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await compacted(bus)
        (first,) = await events(bus, CompactionCompleted)
        for appended in await events(bus, MessagesAppended):
            if appended.start + len(appended.messages) <= first.source_count:
                await erase_blob(bus, "one", appended.inputs)
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        asked = len(teller.given)
        run.append(user("And today?"))
        step = await run.before_model_call(model=MODEL)
        *_, dropped = await events(bus, CompactionCompleted)
        assert (dropped.dropped, dropped.archive, dropped.source_count) == (True, None, first.source_count)
        assert dropped.tokens.after < dropped.tokens.before
        assert len(teller.given) == asked
        assert step.manifest.redacted
        assert sent(step)[0]["content"].startswith("You said: And when?")
        assert len(sent(step)) == len(run.messages) - first.source_count
        state = await state_of(bus, run)
        assert applied(state) is not None
        assert not state.compaction_due
        await run.after_model_call(answered("And today?"))
        await talk(run, "And tomorrow?")


@pytest.mark.rule("C.X.11", "D.J.1", "C.L.5")
async def test_a_client_that_never_had_the_messages_goes_on_from_the_boundary_too() -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await compacted(bus)
        (first,) = await events(bus, CompactionCompleted)
        for appended in await events(bus, MessagesAppended):
            if appended.start + len(appended.messages) <= first.source_count:
                await erase_blob(bus, "one", appended.inputs)
        while_it_applies = await bus.run("one", scope=SCOPE)
        assert while_it_applies.messages == ((None,) * first.source_count + run.messages[first.source_count :])
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        plain = await bus.run("one", scope=SCOPE, sources=["memory"])
        with pytest.raises(NotFoundError, match="compaction"):
            await plain.before_model_call(model=MODEL)
        other = await bus.run("one", scope=SCOPE, sources=["memory"], compaction=configure(compacting()))
        step = await talk(other, "And today?")
        assert step.manifest.redacted
        assert sent(step)[0]["content"].startswith("You said: And when?")
        assert len(sent(step)) == len(run.messages) - first.source_count + 1
        last = await bus.run("one", scope=SCOPE, sources=["memory"], compaction=configure(compacting(limit=50)))
        again = await talk(last, "And tomorrow?")
        assert sent(again)[: len(sent(step))] == sent(step)
        last.append(user("And now?"))
        await last.before_model_call(model=MODEL)
        # whoever has all messages still may hand them over
        whole = [*map(as_message, run.messages), user("From the start.")]
        full = await other.before_model_call(whole, model=MODEL)
        assert sent(full)[-1]["content"] == "From the start."
        assert other.messages == tuple(whole)


@pytest.mark.rule("C.X.11", "D.J.7")
async def test_a_compaction_under_way_during_the_forget_leaves_nothing(tmp_path: Path) -> None:
    folder, teller = tmp_path / "data", Teller()
    reached, let = asyncio.Event(), asyncio.Event()

    async def slow(request: SummaryRequest) -> str:
        reached.set()
        await let.wait()
        return await teller.tell(request)

    async with contextbus.open(data=folder, summarisers=[summariser(id="teller")(slow)]) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await bus.run("one", scope=SCOPE, sources=["memory"], compaction=configure(compacting()))
        await talk(run, "Which tea does she like?", "And when?")
        run.append(user("And why?"))
        compiling = asyncio.create_task(run.before_model_call(model=MODEL))
        await reached.wait()
        await bus.memories.forget(gone.record_id, scope=SCOPE)
        let.set()
        await compiling
        (event,) = await events(bus, CompactionCompleted)
        # it is of the history as it is after the forget: nothing of the record is in or before its range
        assert event.records == ()
        assert (await bus.memories.forget(gone.record_id, scope=SCOPE)).summaries == ()


@pytest.mark.rule("C.X.11", "C.L.8", "D.J.6")
async def test_a_client_that_reads_the_log_before_a_forget_and_the_blobs_behind_it_reads_the_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teller = Teller()
    async with opened("memory:", teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        run = await compacted(bus)
        real, forgets = reading.read_blobs, [bus.memories.forget]

        async def read(*arguments: Any) -> dict[str, bytes]:
            if forgets:
                await forgets.pop()(gone.record_id, scope=SCOPE)
            return await real(*arguments)

        monkeypatch.setattr(reading, "read_blobs", read)
        other = await bus.run("one", scope=SCOPE)
        assert other.messages == run.messages
        assert applied(other.state) is None


@pytest.mark.rule("C.X.11", "D.J.7")
async def test_blobs_of_a_compaction_that_died_are_erased(tmp_path: Path) -> None:
    folder, teller = tmp_path / "data", Teller("She asked about tea.")
    async with opened(folder, teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        await compacted(bus)
        records = (RecordReference("memory", gone.record_id, 1),)
        left = [encode((user(TEXT),), records) for encode in (blobs.encode_replacement, blobs.encode_archive)]
        said = blobs.encode_input((user(f"{gone.record_id} was noted."),))
        await bus.host.packages.put("one", [(digest_bytes(data), data) for data in (*left, said)], "died")
        forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
        assert forgotten.blobs == 2 + 2 + 2
        assert SECRET.encode() not in await read_all(folder)
        assert len(await fetch(bus, "one", digest_bytes(said))) == 1


@pytest.mark.rule("C.X.11", "D.J.7")
async def test_what_a_worker_did_not_finish_is_finished_by_the_next(tmp_path: Path) -> None:
    folder, teller = tmp_path / "data", Teller()
    async with opened(folder, teller) as bus:
        gone = await bus.memories.remember(TEXT, scope=SCOPE)
        await compacted(bus)
        # a worker that dies behind its tombstone
        await bus.memories.session(scope=SCOPE).store.forget(gone.record_id, scope=SCOPE, message_id="died")

        async def is_gone() -> bool:
            return SECRET.encode() not in await read_all(folder)

        await eventually(is_gone)
        assert len(await events(bus, SummaryRedacted)) == 1
        assert (await bus.memories.forget(gone.record_id, scope=SCOPE, message_id="died")).summaries != ()
