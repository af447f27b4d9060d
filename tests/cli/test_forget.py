"""``contextbus forget`` and ``allow`` with actors and workers of other processes."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.cli.command import EXAMPLES, Command
from tests.client.configuring import configure
from tests.client.scripted import MODEL, SCOPE

import contextbus.client as contextbus
from contextbus.runtime.datafolder import DataFolder
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.events import CompactionCompleted
from contextbus_protocol.memory_records import Forgotten, RedactedRun
from contextbus_protocol.values import CompactionOptions, RetentionPolicy, Trigger

pytestmark = pytest.mark.broker


@pytest.mark.timeout(120)
@pytest.mark.rule("D.J.7", "D.K.24")
def test_a_worker_has_the_actors_of_other_processes_redact(command: Command) -> None:
    with command.running("up", "--processes"):
        endpoint = DataFolder(command.data).read_endpoint()
        assert endpoint is not None

        async def forget() -> Forgotten:
            async with contextbus.open(endpoint.url, token=endpoint.token, actors="remote") as bus:
                gone = await bus.memories.remember("She likes oolong tea.", scope=SCOPE)
                run = await bus.run("one", scope=SCOPE, sources=["memory"])
                step = await run.before_model_call([user("Which tea does she like?")], model=MODEL)
                assert "oolong" in step.text
                forgotten = await bus.memories.forget(gone.record_id, scope=SCOPE)
                again = await run.before_model_call(model=MODEL)
                assert again.manifest.redacted
                assert "oolong" not in again.text
                allowed = await bus.memories.allow("She likes oolong tea.")
                assert allowed.digests == (gone.digest,)
                await bus.memories.remember("She likes oolong tea.", scope=SCOPE)
                return forgotten

        assert anyio.run(forget).redacted == (RedactedRun("one", (0,)),)


@pytest.mark.timeout(120)
@pytest.mark.rule("D.J.7")
def test_messages_too_large_for_the_bus_leave_nothing_either(command: Command) -> None:
    def holds() -> bool:
        return any(b"oolong" in path.read_bytes() for path in command.data.rglob("*") if path.is_file())

    with command.running("up", "--processes"):
        endpoint = DataFolder(command.data).read_endpoint()
        assert endpoint is not None

        async def forget() -> Forgotten:
            long = " She likes black tea." * 2900
            async with contextbus.open(endpoint.url, token=endpoint.token, actors="remote") as bus:
                gone = await bus.memories.remember(f"She likes oolong tea.{long}", scope=SCOPE)
                for number in range(8):
                    await bus.memories.remember(f"Tea number {number}.{long}", scope=SCOPE)
                run = await bus.run("one", scope=SCOPE, sources=["memory"])
                await run.before_model_call([user("Which tea does she like?")], model=MODEL)
                assert await anyio.to_thread.run_sync(holds)
                return await bus.memories.forget(gone.record_id, scope=SCOPE)

        forgotten = anyio.run(forget)
        assert forgotten.redacted == (RedactedRun("one", (0,)),)
        assert forgotten.blobs > 1  # the package, and messages that travelled by reference
        assert not holds()


@pytest.mark.timeout(120)
@pytest.mark.rule("D.J.7")
def test_the_command_tells_the_steps_and_what_still_quotes_it(command: Command) -> None:
    scope = ("--scope", "user_id=local")
    said: Any = command.json(
        *("compile", EXAMPLES / "conversation.json", "--run", "r1", "--memories", EXAMPLES / "memories.jsonl", *scope),
        *("-o", command.folder / "p.json"),
    )
    (entry, *_) = [e for e in said["manifest"]["entries"] if e["source"] == "memory"]
    result = command("forget", entry["recordId"], *scope)
    assert "1 revision erased, 1 step redacted" in result.stdout
    assert "r1: step 0" in result.stdout
    again = command.json("forget", entry["recordId"], *scope)
    assert again["redacted"] == [{"run": "r1", "steps": [0]}]


@pytest.mark.timeout(120)
@pytest.mark.rule("D.J.7", "C.X.11")
def test_the_command_names_the_summaries_and_archived_spans_that_were_deleted(command: Command) -> None:
    options = CompactionOptions(
        triggers=(Trigger(kind="messages-exceed", limit=2),),
        target_tokens=100_000,
        keep=RetentionPolicy(keep_last_messages=1),
        min_shrink=0.0,
    )

    async def compact() -> tuple[str, CompactionCompleted]:
        async with contextbus.open(data=command.data) as bus:
            record = await bus.memories.remember("She likes oolong tea.", scope=SCOPE)
            run = await bus.run("one", scope=SCOPE, sources=["memory"], compaction=configure(options))
            await run.before_model_call([user("We decided to order tea on 3 May. Which does she like?")], model=MODEL)
            report = contextbus.Report(status="succeeded", messages=[assistant("She likes oolong.")])
            await run.after_model_call(report)
            run.append(user("And when?"))
            await run.before_model_call(model=MODEL)
            log = await bus.log("one")
            (event,) = [e for c in log.commits for e in c.commit.events if isinstance(e, CompactionCompleted)]
            return record.record_id, event

    record, event = anyio.run(compact)
    scope = ("--scope", f"user_id={SCOPE.user_id}")
    result = command("forget", record, *scope)
    assert "1 summary and 1 archived span deleted" in result.stdout
    assert f"one: summary {event.replaced_by}, archived span {event.archive}" in result.stdout
    again = command.json("forget", record, *scope)
    assert again["summaries"] == [{"run": "one", "summary": event.replaced_by, "archive": event.archive}]
