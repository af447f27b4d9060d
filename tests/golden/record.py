"""Record a run for good: ``python -m tests.golden.record`` writes <release>-<name>.jsonl where it is missing.

Later releases must fold and verify these files as they are; a release adds files and changes none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from tests.client.forgetting import forget
from tests.client.scripted import SCOPE, Scripted, bus_with
from tests.golden.journal import FOLDER, Journal, summarise, write_journal

import contextbus.client as contextbus
from contextbus import __version__
from contextbus.sources.interface import check_source
from contextbus.summarisers.interface import FunctionSummariser, Summary, SummaryRequest
from contextbus_protocol import codec
from contextbus_protocol.chat import ChatMessage, Reasoning, Text, ToolCall, ToolResult, assistant, system, user
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.errors import ContextBusError, SourceFailedError
from contextbus_protocol.values import CompactionOptions, EstimatorSpec, Model, Provenance, SourceSpec, Trigger
from contextbus_protocol.working_memory import (
    AddDecision,
    AddObservation,
    RecordAttempt,
    SetActiveTask,
    Task,
    TaskList,
    TasksInput,
)

MODEL = Model("anthropic", "claude-test", 200_000, 8_000)
BOUND = Model("anthropic", "claude-opus-5-5", 200_000, 8_000)
THOUGHT = ChatMessage(role="assistant", content=(Reasoning(text="Hm.", signature="sig"), Text(text="Ask CI.")))
CALL = ChatMessage(
    role="assistant", content=(ToolCall(id="call-1", name="status", arguments='{"service": "billing"}'),)
)
NEVER = Trigger(kind="messages-exceed", limit=99)
RESULT = ChatMessage(role="tool", content=(ToolResult(id="call-1", content=(Text(text="green"),)),))

LOAD = ChatMessage(role="assistant", content=(ToolCall(id="call-2", name="load_skill", arguments='{"skill": "ci"}'),))
LOADED = ChatMessage(
    role="tool", content=(ToolResult(id="call-2", name="load_skill", content=(Text(text="Loaded."),)),)
)


async def record_all_events(estimator: EstimatorSpec) -> Journal:
    """A run in which every kind of event of a run occurs."""
    memory = Scripted(
        [
            contextbus.candidate("mem-1", "Every deploy goes to eu-west.", 1.0, 1, provenance=Provenance("asserted")),
            contextbus.candidate("mem-2", "Use <blue/green> & wait · 5 minutes.", 0.7, 3),
        ],
        id="memory",
        kind="memory",
    )
    docs = Scripted([contextbus.candidate(str(n), f"Runbook {n}: deploys need a green CI run.", 0.9) for n in range(3)])
    tickets = Scripted(RuntimeError("down"), id="tickets", required=True)
    async with bus_with(memory, docs, tickets) as bus:
        sources: list[str | SourceSpec] = ["memory", "rag", "tickets"]
        run = await bus.run("golden", scope=SCOPE, sources=sources, estimator=estimator, budget={"max_tokens": 300})
        tasks = TasksInput(TaskList("Deploy", (Task("t1", "Check CI"), Task("t2", "Roll out"))), "t1")
        await run.working_memory.create(goal="Deploy billing.", constraints=["No Friday."], tasks=tasks)
        opening = [system("Be brief."), user("How do I deploy?")]
        with contextlib.suppress(SourceFailedError):  # step-failed
            await run.before_model_call(opening, model=MODEL)
        tickets.answer = ()
        await run.before_model_call(opening, model=MODEL)
        usage = contextbus.Usage(input_tokens=120, output_tokens=9)
        report = contextbus.Report(status="succeeded", messages=[CALL, RESULT], usage=usage, finish_reason="stop")
        await run.after_model_call(report)
        await run.working_memory.patch(AddObservation(text="CI is green."), expected_revision=0, writer="model")
        await run.before_model_call(model=MODEL)  # reused
        await run.after_model_call(contextbus.Report(status="failed"))
        run.append(user("And now?"))
        await run.flush()
        await run.request_refresh()
        docs.answer = [contextbus.candidate("1", "Runbook 1: deploys need two green CI runs.", 0.9)]
        memory.answer = RuntimeError("gone")
        await run.before_model_call(model=MODEL)  # host-request, source-failed
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("Roll out.")]))
        await run.working_memory.patch(
            SetActiveTask(id="t2"),
            AddDecision(text="Roll out at noon.", rationale="Quiet."),
            RecordAttempt(text="Dry run.", outcome="succeeded"),
            expected_revision=1,
        )
        rewritten = [system("Be brief."), user("How do I deploy?"), assistant("Ask CI first."), user("Done. Next?")]
        await run.before_model_call(rewritten, model=MODEL, step=9)  # history-replaced, task-change
        return await take_journal(bus, run.id)


async def record_returns() -> Journal:
    """A run of policy 2: kept tails, blocks that left and returned, a forget, a skill, steps compiled again."""
    found = [
        contextbus.candidate(str(n), f"Runbook {n}: deploys need a green CI run. " * (n + 1), 0.9) for n in range(3)
    ]
    body = contextbus.candidate("ci/body", "Ask the pipeline, then wait.", 1.0, mandatory=True)
    docs, skills = Scripted(found), Scripted(id="skills", kind="skills")
    tickets = Scripted(RuntimeError("down"), id="tickets", required=True)
    async with bus_with(docs, skills, tickets) as bus:
        run = await bus.run("golden", scope=SCOPE, sources=["rag", "skills"], budget={"max_tokens": 400})
        await run.working_memory.create(goal="Deploy billing.")
        with contextlib.suppress(SourceFailedError):  # step-failed
            strict = await bus.run("golden", scope=SCOPE, sources=["tickets"])
            await strict.before_model_call([user("How do I deploy?")], model=BOUND)
        await run.load()
        done = contextbus.Report(status="succeeded", messages=[THOUGHT])
        await run.before_model_call([user("How do I deploy?")], model=BOUND)
        await run.after_model_call(done)
        await run.working_memory.patch(AddObservation(text="CI is green."), expected_revision=0, writer="model")
        run.append(user("And now?"))
        await run.before_model_call(model=BOUND)  # its tail is kept
        await run.after_model_call(done)
        await run.before_model_call([user("How do we deploy?")], model=BOUND)  # history-replaced, restored
        await run.after_model_call(contextbus.Report(status="overflow"))
        await run.on_overflow(1_100)
        await run.after_model_call(done)
        await forget(bus, run.id, "0")
        docs.answer = found[1:]
        run.append(user("Once more?"))
        await run.before_model_call(model=BOUND)  # the block of the forgotten record left, another returns
        await run.after_model_call(done)
        await run.request_refresh()
        await run.before_model_call(model=BOUND)  # host-request
        skills.answer = [body]
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[LOAD, LOADED]))
        await run.before_model_call(model=BOUND)  # asked for the body
        await run.after_model_call(done)
        await run.before_model_call([user("Next?"), LOAD, LOADED], model=BOUND, step=9)
        await run.on_overflow(1_300)
        return await take_journal(bus, run.id)


class Writer:
    """The summariser of the recorded run: it writes, until it fails."""

    fails = False

    def write(self, request: SummaryRequest) -> Summary:
        """Write a summary."""
        if self.fails:
            raise RuntimeError("no")
        text = f"They deploy billing; ticket 4711; {len(request.messages)} messages."
        return Summary((SummaryPart("reasoning", "Hm."), SummaryPart("text", text)), usage=contextbus.Usage(200, 20))


def compacting(**changes: Any) -> CompactionOptions:
    """How the recorded run compacts."""
    given: dict[str, Any] = {
        "triggers": (Trigger(kind="tokens-exceed", limit=9_000), Trigger(kind="messages-exceed", limit=8)),
        "target_tokens": 1_500,
        "summariser": "scripted",
    }
    return CompactionOptions(**(given | changes))


async def record_compactions() -> Journal:
    """A run of policy 2 that is compacted: checkpoints, pieces, failures, a pause, a dropped range."""
    docs = Scripted([contextbus.candidate("0", "Runbook 0: deploys need a green CI run.", 0.9)])
    tickets = Scripted(RuntimeError("down"), id="tickets", required=True)
    checked = [check_source(source) for source in (docs, tickets)]
    writer = Writer()
    writes = FunctionSummariser(writer.write, id="scripted")
    async with contextbus.open("memory:", sources=checked, memory=False, summarisers=[writes]) as bus:

        async def hold(**changes: Any) -> contextbus.Run:
            return await bus.run("golden", scope=SCOPE, sources=["rag"], compaction=compacting(**changes))

        async def turn(run: contextbus.Run, text: str, answer: ChatMessage = THOUGHT, *, more: bool = True) -> None:
            if more:
                run.append(user(text + " Look at /srv/billing/4711.log. " * 9), answer)
            run.append(user(text))
            await run.before_model_call(model=BOUND)
            usage = contextbus.Usage(input_tokens=900, output_tokens=9, cache_read_tokens=100)
            await run.after_model_call(contextbus.Report(status="succeeded", messages=[answer], usage=usage))

        run = await hold()
        await run.working_memory.create(goal="Deploy billing.")
        with contextlib.suppress(SourceFailedError):  # step-failed
            strict = await bus.run("golden", scope=SCOPE, sources=["tickets"])
            await strict.before_model_call([system("Be brief."), user("How do I deploy?")], model=BOUND)
        await run.load()
        for number in range(2):
            await turn(run, f"Question {number}?")  # completed: a block leaves, thinking is withheld
        await run.working_memory.patch(AddObservation(text="CI is green."), expected_revision=0, writer="model")
        await turn(await hold(summary_input_tokens=150), "In pieces?")
        run = await hold(triggers=(NEVER,))
        run.append(*(user(f"More {number}? " * 9) for number in range(6)))
        await run.before_model_call(model=BOUND)
        await run.on_overflow(6_000)  # compacted for an overflow, one checkpoint over the other
        await run.after_model_call(contextbus.Report(status="failed"))
        run = await hold(on_failure="continue", triggers=(Trigger(kind="messages-exceed", limit=4),))
        writer.fails = True
        for number in range(3):
            await turn(run, f"Something else {number}.", assistant("I see. " * 40))  # failed
        await turn(run, "Short.", assistant("Yes."), more=False)  # paused
        await turn(await hold(on_failure="drop"), "Let it go.", more=False)  # nobody is asked
        run = await hold(triggers=(NEVER,))
        await run.request_refresh()
        rewritten: list[Any] = [*run.messages[:3], user("Otherwise?")]
        await run.before_model_call(rewritten, model=BOUND, step=9)  # history-replaced, before the boundary
        return await take_journal(bus, run.id)


async def take_journal(bus: contextbus.ContextBus, run: str) -> Journal:
    """The stored bytes of a run.

    Raises:
        ContextBusError: a commit would be written otherwise than it stands in the log.
    """
    log = await bus.log(run)
    blobs = await bus.blobs(log)

    def stored(part: str) -> tuple[tuple[int, bytes], ...]:
        commits = log.commits if part == "run" else log.memory
        return tuple((c.sequence, codec.encode_commit(c.commit)) for c in commits)

    journal = Journal(run, __version__, summarise(log), stored("run"), stored("working-memory"), blobs)
    if journal.log() != log:
        raise ContextBusError("a commit's bytes are not those of the log")
    return journal


def main() -> None:
    """Write what is missing."""
    recorders: dict[str, Callable[[], Coroutine[None, None, Journal]]] = {
        "classes": lambda: record_all_events(EstimatorSpec()),
        "characters": lambda: record_all_events(EstimatorSpec(name="characters")),
        "policy2-classes": record_returns,
        "policy2-compacted": record_compactions,
    }
    for name, record in recorders.items():
        path = FOLDER / f"{__version__}-{name}.jsonl"
        if not path.exists():
            write_journal(path, asyncio.run(record()))
            print(f"{path.name}: recorded")  # noqa: T201  (a command line)


if __name__ == "__main__":
    main()
