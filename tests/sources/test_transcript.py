"""The transcript: what real runs said, found by the runs that may know of it."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.client.configuring import configure
from tests.client.scripted import sent
from tests.sources.conftest import ADA, Ask

from contextbus import client
from contextbus.client import ContextBus, Model, Run, Scope, assistant, system, user
from contextbus.core.history import digest_message
from contextbus.runtime.bus import Bus
from contextbus.runtime.embedded import Server
from contextbus.runtime.journal import Appended, Journal, Unanswered
from contextbus.runtime.package_store import PackageStore
from contextbus.sources.answers import handler
from contextbus.sources.database import MEMORY
from contextbus.sources.interface import candidate, source
from contextbus.sources.transcript import TranscriptSource, transcript_source
from contextbus.sources.transcript_feed import MAX_TEXT_BYTES, PAGE_COMMITS
from contextbus.sources.transcript_index import TranscriptIndex
from contextbus.sources.worker import Worker
from contextbus_protocol import subjects
from contextbus_protocol.chat import ChatMessage, Reasoning, Text, ToolCall, ToolResult
from contextbus_protocol.digests import digest_text
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import Candidate, CompactionOptions, RetentionPolicy, Trigger

BOB = Scope(user_id="bob")
CLAUDE = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.broker)])
def server(request: pytest.FixtureRequest) -> Server | None:
    """No server, and a real one."""
    if request.param == "memory":
        return None
    found: Server = request.getfixturevalue("broker")
    return found


@pytest.fixture
async def opened(server: Server | None, tenant: str) -> AsyncGenerator[ContextBus]:
    """A bus with the actors."""
    made = client.open("memory:", tenant=tenant, memory=False, sources=[notes])
    if server is not None:
        made = client.open(server.url, token=server.token, tenant=tenant, memory=False, sources=[notes])
    async with made as bus:
        yield bus


@pytest.fixture
async def transcript(opened: ContextBus, tenant: str, tmp_path: Path) -> AsyncGenerator[TranscriptSource]:
    made = transcript_source(journal_of(opened), tenant, data=tmp_path)
    yield made
    await made.aclose()


@source(id="notes", kind="rag")
async def notes(query: Query) -> list[Candidate]:
    return [candidate("n1", f"the note on {query.text}", 1.0)]


def journal_of(bus: ContextBus) -> Journal:
    return bus._journal


def bus_of(bus: ContextBus) -> Bus:
    return bus.host._bus


async def say(bus: ContextBus, run: str, *messages: ChatMessage, scope: Scope = ADA) -> Run:
    """A run with messages of its own, recorded without a step."""
    held = await bus.run(run, scope=scope)
    held.append(*messages)
    await held.flush()
    return held


async def copy(taken: ContextBus, into: ContextBus, run: str) -> None:
    """Store the log and the blobs of a run in another journal."""
    for pattern in (subjects.log(taken.tenant, run, "run"), subjects.blobs_of_run(taken.tenant, run)):
        listed = await journal_of(taken).subjects(pattern)
        assert not isinstance(listed, Unanswered)
        for subject in listed:
            page = await journal_of(taken).read(subject, after=0)
            assert not isinstance(page, Unanswered)
            last = 0
            for record in page.records:
                done = await journal_of(into).append(
                    subject, record.data, expected=last, message_id=f"copy-{subject}-{record.sequence}", command="copy"
                )
                assert isinstance(done, Appended)
                last = done.sequence


def shown(found: Sequence[Candidate]) -> list[tuple[str, str]]:
    return [(c.record_id, c.text) for c in found]


@pytest.mark.rule("D.K.1", "D.K.12", "D.K.25")
async def test_messages_of_other_runs_are_found_under_their_run_and_place(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    await say(
        opened, "old chat", system("Be brief about tea."), user("Which tea for Ada?"), assistant("Sencha, always.")
    )
    found = await transcript.query(ask("tea"))
    assert shown(found) == [("old chat/1", "user: Which tea for Ada?")]
    assert found[0].digest == digest_text("user: Which tea for Ada?")
    assert found[0].score > 0
    assert shown(await transcript.query(ask("sencha"))) == [("old chat/2", "assistant: Sencha, always.")]
    assert (transcript.id, transcript.kind, transcript.required) == ("transcript", "transcript", False)


@pytest.mark.rule("D.K.25", "D.C.2")
async def test_the_better_match_comes_first_and_ties_go_by_id(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    await say(opened, "b", user("tea in the morning"), user("green tea, tea and more tea"))
    await say(opened, "a", user("tea in the morning"))
    found = await transcript.query(ask("tea"))
    assert [c.record_id for c in found] == ["b/1", "a/0", "b/0"]
    assert found[0].score > found[1].score == found[2].score
    assert [c.record_id for c in await transcript.query(ask("tea", limit=2))] == ["b/1", "a/0"]


@pytest.mark.rule("D.K.12")
async def test_a_run_is_not_offered_what_its_own_request_holds(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    await say(opened, "run-1", user("tea for me"), assistant("What tea?"))
    await say(opened, "copy", user("tea for me"), assistant("What tea?"), user("black tea"))
    # The query comes of run-1: its history, copies of that, and the text that is asked for again are in the request.
    assert shown(await transcript.query(ask("tea"))) == [("copy/2", "user: black tea")]
    assert shown(await transcript.query(ask("black tea"))) == []


@pytest.mark.rule("D.K.2", "D.K.3", "D.K.24")
async def test_a_scope_finds_the_runs_that_set_all_of_it_and_no_others(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tenant: str, tmp_path: Path
) -> None:
    await say(opened, "a", user("tea one"))
    await say(opened, "a-work", user("tea two"), scope=Scope(user_id="ada", chat_id="work"))
    await say(opened, "b", user("tea three"), scope=BOB)
    await say(opened, "b-work", user("tea four"), scope=Scope(user_id="bob", chat_id="work"))

    async def runs(made: TranscriptSource, scope: Scope) -> set[str]:
        return {c.record_id for c in await made.query(ask("tea", scope=scope))}

    assert await runs(transcript, ADA) == {"a/0", "a-work/0"}
    assert await runs(transcript, Scope(user_id="ada", chat_id="work")) == {"a-work/0"}
    assert await runs(transcript, Scope(chat_id="work")) == {"a-work/0", "b-work/0"}
    assert await runs(transcript, Scope(agent_id="ada")) == set()
    pinned = transcript_source(journal_of(opened), tenant, data=tmp_path, scope=Scope(chat_id="work"))
    assert await runs(pinned, ADA) == {"a-work/0"}
    assert pinned.options_digest != transcript.options_digest
    await pinned.aclose()


@pytest.mark.rule("D.K.2", "D.K.3", "D.K.4")
@pytest.mark.parametrize("scope", [Scope(), Scope(user_id=""), Scope(user_id="ada", chat_id="home")])
async def test_a_scope_that_names_nobody_or_another_is_refused(
    opened: ContextBus, tenant: str, ask: Ask, scope: Scope
) -> None:
    await say(opened, "a", user("tea"))
    made = transcript_source(journal_of(opened), tenant, scope=Scope(chat_id="work") if scope.chat_id else Scope())
    answer = await handler(made)(ask("tea", scope=scope))
    assert isinstance(answer, Failed)
    assert answer.code == "scope"
    assert answer.origin_code == "scope_conflict"
    await made.aclose()


@pytest.mark.rule("D.K.19")
@pytest.mark.parametrize("text", ["coffee", "", "  ", "?!", '" OR tea NEAR('])
async def test_nothing_found_is_an_empty_answer(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, text: str
) -> None:
    assert await transcript.query(ask(text)) == []
    await say(opened, "a", user("coffe"))
    assert await transcript.query(ask(text)) == []


@pytest.mark.rule("D.G.33", "D.K.12")
async def test_blocks_of_ours_are_never_found_in_whatever_run_they_turn_up(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    """B56: what was recalled is not stored as if somebody had said it, and recalled again."""
    first = await opened.run("first", scope=ADA, sources=["notes"])
    step = await first.before_model_call([user("tea")], model=CLAUDE)
    blocks = [message for block in step.blocks for message in block.messages]
    assert any("the note on tea" in part.text for m in blocks for part in m.content if isinstance(part, Text))
    # A host that keeps the whole request as its history hands the block to another run, which does not know it.
    await say(opened, "second", user("more tea"), *blocks, assistant("I see"))
    log = await opened.log("second")
    assert digest_message(blocks[0]) in str(log.commits[0].commit)
    assert await transcript.query(ask("note")) == []
    assert {c.record_id for c in await transcript.query(ask("tea"))} == {"second/0"}


@pytest.mark.rule("D.G.33", "D.K.12", "B56")
async def test_summaries_are_never_found_and_what_they_stand_for_only_by_other_runs(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    compaction = CompactionOptions(
        triggers=(Trigger(kind="messages-exceed", limit=2),),
        target_tokens=100_000,
        keep=RetentionPolicy(keep_last_messages=1),
        min_shrink=0.0,
    )
    run = await opened.run("run-1", scope=ADA, compaction=configure(compaction))
    run.append(user("We decided to drink the green tea."), assistant("The kettle is at /srv/kettle."), user("Now?"))
    step = await run.before_model_call(model=CLAUDE)
    summary = str(sent(step)[0]["content"])
    assert summary.startswith("Previous conversation summary:")
    assert "green tea" in summary
    # A host that keeps the whole request as its history hands the summary to another run, which does not know it.
    await say(opened, "second", user(summary))
    log = await opened.log("second")
    assert digest_message(user(summary)) in str(log.commits[0].commit)
    other = msgspec.structs.replace(ask("kettle tea"), run="third")
    assert {c.record_id for c in await transcript.query(other)} == {"run-1/0", "run-1/1"}
    assert await transcript.query(msgspec.structs.replace(ask("conversation summary"), run="third")) == []
    # Its own run has the archived span for that (C.X.8).
    assert await transcript.query(ask("kettle tea")) == []


@pytest.mark.rule("D.G.33")
async def test_a_block_that_was_indexed_before_it_was_known_leaves(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tenant: str
) -> None:
    probe = await opened.run("probe", scope=BOB, sources=["notes"])
    step = await probe.before_model_call([user("tea")], model=CLAUDE)
    blocks = [message for block in step.blocks for message in block.messages]
    assert await PackageStore(journal_of(opened), tenant).erase_run("probe")
    await say(opened, "second", *blocks)
    assert len(await transcript.query(ask("note"))) == 1
    first = await opened.run("first", scope=BOB, sources=["notes"])
    await first.before_model_call([user("tea")], model=CLAUDE)
    assert await transcript.query(ask("note")) == []


@pytest.mark.rule("D.K.12")
async def test_only_what_people_and_the_assistant_wrote_is_searched(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    call = ToolCall(id="c1", name="tea_shop", arguments='{"tea": "oolong"}')
    await say(
        opened,
        "tools",
        user("order"),
        ChatMessage(role="assistant", content=(Reasoning(text="oolong?"), Text(text="I order."), call)),
        ChatMessage(role="tool", content=(ToolResult(id="c1", content=(Text(text="oolong ordered"),)),)),
        ChatMessage(role="user", content=(Text(text="first"), Text(text="  "), Text(text="and oolong"))),
        user("oolong " + "x" * MAX_TEXT_BYTES),
    )
    assert shown(await transcript.query(ask("oolong"))) == [("tools/3", "user: first\nand oolong")]


@pytest.mark.rule("D.K.12")
async def test_messages_that_the_host_replaced_are_gone(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    run = await opened.run("edited", scope=ADA)
    await run.before_model_call([user("tea kept"), user("tea secret"), user("tea late")], model=CLAUDE)
    assert len(await transcript.query(ask("tea"))) == 3
    await run.before_model_call([user("tea kept"), user("tea new")], model=CLAUDE)
    found = await transcript.query(ask("tea"))
    assert {text for _, text in shown(found)} == {"user: tea kept", "user: tea new"}
    # Nor is the run itself offered what it lost: the host took it back.
    assert await transcript.query(msgspec.structs.replace(ask("secret"), run="edited")) == []


async def test_a_deleted_run_is_no_error_and_leaves_no_word_on_the_disk(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tenant: str, tmp_path: Path
) -> None:
    store = PackageStore(journal_of(opened), tenant)
    await say(opened, "gone", user("tea of xylophonists"))
    await say(opened, "stays", user("tea of others"))
    assert len(await transcript.query(ask("tea"))) == 2
    assert await store.erase_run("gone")
    assert shown(await transcript.query(ask("tea"))) == [("stays/0", "user: tea of others")]
    await transcript.drop_deleted()
    held = [await anyio.Path(path).read_bytes() async for path in anyio.Path(tmp_path).iterdir()]
    assert held
    assert not any(b"xylophonist" in data for data in held)


async def test_the_sweep_finds_deleted_runs_that_nobody_asks_for(opened: ContextBus, tenant: str) -> None:
    index = TranscriptIndex(MEMORY)
    made = TranscriptSource(journal_of(opened), tenant, index)
    await say(opened, "one", user("tea"))
    await say(opened, "two", user("tea"))
    await made.catch_up()
    assert await anyio.to_thread.run_sync(index.runs) == ("one", "two")
    assert await PackageStore(journal_of(opened), tenant).erase_run("one")
    await made.drop_deleted()
    assert await anyio.to_thread.run_sync(index.runs) == ("two",)
    await made.aclose()


async def test_a_run_whose_texts_are_gone_is_skipped(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tenant: str
) -> None:
    await say(opened, "gone", user("tea lost"))
    await say(opened, "stays", user("tea kept"))
    assert await journal_of(opened).purge(subjects.blobs_of_run(tenant, "gone"))
    assert [c.record_id for c in await transcript.query(ask("tea"))] == ["stays/0"]


async def test_a_name_that_is_used_again_has_nothing_of_the_run_that_was_deleted(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tenant: str
) -> None:
    await say(opened, "same", user("tea of ada"))
    assert len(await transcript.query(ask("tea"))) == 1
    assert await PackageStore(journal_of(opened), tenant).erase_run("same")
    async with client.open("memory:", tenant=tenant, memory=False) as later:
        await say(later, "same", user("tea of bob"), scope=BOB)
        await copy(later, opened, "same")
    assert await transcript.query(ask("tea")) == []
    assert shown(await transcript.query(ask("tea", scope=BOB))) == [("same/0", "user: tea of bob")]


async def test_the_index_goes_on_where_it_was_and_several_share_it(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tenant: str, tmp_path: Path
) -> None:
    await say(opened, "a", user("tea one"))
    other = transcript_source(journal_of(opened), tenant, data=tmp_path)
    assert len(await transcript.query(ask("tea"))) == 1
    await say(opened, "b", user("tea two"))
    assert len(await other.query(ask("tea"))) == 2
    await other.aclose()
    assert len(await transcript.query(ask("tea"))) == 2
    later = transcript_source(journal_of(opened), tenant, data=tmp_path)
    assert len(await later.query(ask("tea"))) == 2
    await later.aclose()


async def test_the_index_of_another_log_is_made_anew(opened: ContextBus, ask: Ask, tenant: str, tmp_path: Path) -> None:
    async with client.open("memory:", tenant=tenant, memory=False) as former:
        await say(former, "former", user("tea of before"))
        made = transcript_source(journal_of(former), tenant, data=tmp_path)
        assert len(await made.query(ask("tea"))) == 1
        await made.aclose()
    await say(opened, "a", user("tea of now"))
    made = transcript_source(journal_of(opened), tenant, data=tmp_path)
    assert [c.record_id for c in await made.query(ask("tea"))] == ["a/0"]
    await made.aclose()


async def test_a_damaged_index_is_made_anew(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tmp_path: Path
) -> None:
    await say(opened, "a", user("tea"))
    assert len(await transcript.query(ask("green tea"))) == 1
    (path,) = [p async for p in anyio.Path(tmp_path).glob("*.sqlite")]
    await path.unlink()
    assert len(await transcript.query(ask("green tea"))) == 1


async def test_damaged_commits_are_skipped(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tenant: str
) -> None:
    await say(opened, "a", user("tea"))
    subject = subjects.log(tenant, "damaged", "run")
    await journal_of(opened).append(subject, b"{", expected=0, message_id="m", command="c")
    await say(opened, "b", user("tea"))
    assert {c.record_id for c in await transcript.query(ask("green tea"))} == {"a/0", "b/0"}


@pytest.mark.rule("D.K.26")
async def test_a_run_is_owed_nothing_of_the_transcript(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    await say(opened, "a", user("tea"))
    owed = msgspec.structs.replace(ask("green tea"), records=("a/0",), only_records=True)
    assert await transcript.query(owed) == []


@pytest.mark.rule("D.K.12", "D.K.23")
async def test_behind_a_worker_and_in_a_step(opened: ContextBus, tenant: str, ask: Ask, tmp_path: Path) -> None:
    """Two runs of one user: what was said in the first is offered to the second, through the real actors."""
    await say(opened, "first", user("I live in Lisbon"), assistant("Noted: Lisbon."))
    made = transcript_source(journal_of(opened), tenant, data=tmp_path)
    async with Worker(bus_of(opened), tenant, made).serve():
        run = await opened.run("second", scope=ADA, sources=["transcript"])
        step = await run.before_model_call([user("Where is Lisbon, where I live?")], model=CLAUDE)
    chosen = {entry.record_id: entry for entry in step.manifest.entries if entry.selected}
    assert set(chosen) == {"first/0", "first/1"}
    assert {entry.kind for entry in chosen.values()} == {"transcript"}
    await made.aclose()


async def test_a_log_of_many_pages_is_read_to_its_end(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    run = await opened.run("long", scope=ADA)
    for number in range(PAGE_COMMITS + 6):
        run.append(user(f"tea {number}"))
        await run.flush()
    found = await transcript.query(ask("green tea", limit=1000))
    assert {c.record_id for c in found} == {f"long/{n}" for n in range(PAGE_COMMITS + 6)}


async def test_a_query_without_time_for_the_whole_log_is_answered_from_what_was_read(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    await say(opened, "a", user("tea"))
    assert await transcript.query(ask("green tea", seconds_left=0.0)) == []
    await transcript.catch_up()
    await say(opened, "b", user("tea"))
    assert [c.record_id for c in await transcript.query(ask("green tea", seconds_left=-1.0))] == ["a/0"]
    assert len(await transcript.query(ask("green tea"))) == 2


async def test_it_follows_the_log_while_nobody_asks(opened: ContextBus, tenant: str) -> None:
    index = TranscriptIndex(MEMORY)
    made = TranscriptSource(journal_of(opened), tenant, index, keep_seconds=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.keep)
        await say(opened, "a", user("tea"))
        with anyio.fail_after(30):
            while not await anyio.to_thread.run_sync(index.runs):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    await made.aclose()


async def test_a_commit_of_a_newer_release_stops_the_index_and_is_not_overlooked(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask, tenant: str
) -> None:
    await say(opened, "a", user("tea"))
    page = await journal_of(opened).read(subjects.log(tenant, "a", "run"), after=0)
    assert not isinstance(page, Unanswered)
    newer = msgspec.json.encode({**msgspec.json.decode(page.records[0].data), "version": 99, "run": "newer"})
    await journal_of(opened).append(
        subjects.log(tenant, "newer", "run"), newer, expected=0, message_id="m", command="c"
    )
    answer = await handler(transcript)(ask("green tea"))
    assert isinstance(answer, Failed)
    assert answer.origin_code == "unsupported_version"


async def test_texts_beyond_what_an_answer_may_hold_are_left_out(
    opened: ContextBus, transcript: TranscriptSource, ask: Ask
) -> None:
    long = "tea " + "x" * (MAX_TEXT_BYTES - 10)
    await say(opened, "a", *(user(f"{long}{n:02}") for n in range(70)))
    answer = await handler(transcript)(ask("green tea", limit=1000))
    assert isinstance(answer, Offered)
    assert 60 <= len(answer.candidates) < 70
