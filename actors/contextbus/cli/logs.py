"""``contextbus runs``, ``replay`` and ``verify``: what the log says, and whether it holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Final, cast

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from contextbus import client
from contextbus.cli import inputs, options
from contextbus.cli.failures import FAILED, OK, NoServerError, UsageFault
from contextbus.cli.output import called, note, print_json, show_progress, stdout
from contextbus.cli.running import run
from contextbus.client import CompactionInfo, ContextBus
from contextbus.client.compaction_log import list_compactions
from contextbus.core.memory_run import MemoryState
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import LoggedCommit, RunLog, replay_memory, replay_states
from contextbus.replay.verify import Verdict
from contextbus_protocol.errors import NotFoundError
from contextbus_protocol.events import StepCompiled, StepFailed, UnknownEvent

_RUNS: Final = """Example:

contextbus runs --data .contextbus --json
"""
_REPLAY: Final = """Examples:

contextbus replay run-1

contextbus replay run-1 --steps

contextbus replay run-1 --state --json
"""
_VERIFY: Final = """Examples:

contextbus verify run-1

contextbus verify --all --json
"""

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run, as `contextbus runs` names it.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("runs", epilog=_RUNS)(list_runs)
    app.command("replay", epilog=_REPLAY)(replay)
    app.command("verify", epilog=_VERIFY)(verify)


def list_runs(
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    as_json: options.Json = False,
) -> None:
    """List the runs of the log."""

    async def work() -> None:
        async with open_log(options.find_place(data, nats, tenant)) as bus:
            runs = await bus.runs()
        if as_json:
            print_json(
                [
                    {
                        "run": r.run,
                        "commits": r.commits,
                        "steps": r.steps,
                        "lastStep": r.last_step,
                        "scope": None if r.scope is None else inputs.as_fields(r.scope),
                    }
                    for r in runs
                ]
            )
            return
        if not runs:
            note(f"no runs yet; compile one with `{called()} compile FILE`")
            return
        table = _table("run", "commits", "steps", "last step", "scope")
        for r in runs:
            scope = "" if r.scope is None else options.show_scope(r.scope)
            last = "" if r.last_step is None else str(r.last_step)
            table.add_row(Text(r.run), str(r.commits), str(r.steps), last, Text(scope))
        stdout().print(table)

    run(work, as_json=as_json)


def replay(
    name: RunId,
    state: Annotated[bool, typer.Option("--state", help="Print the whole state after the last commit, too.")] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Only commits with a step.")] = False,
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    as_json: options.Json = False,
) -> None:
    """Rebuild every state of a run from its log alone, and print a line for each commit.

    "placed" counts the entries of blocks that stay in the history. "+n open" are those of a step whose model call was
    not reported yet: its block joins the history once it is reported as succeeded.

    --json prints the whole state after every commit; with --state only the last one.
    """

    async def work() -> None:
        async with open_log(options.find_place(data, nats, tenant)) as bus:
            log = await read_log(bus, name)
        states = replay_states(log)
        memories = replay_memory(log)
        compactions = list_compactions(log)
        shown = [(c, s) for c, s in states if not steps or _step_of(c) is not None]
        if as_json:
            last = shown[-1:] if state else shown
            print_json(
                {
                    "run": name,
                    "commits": [_commit_fields(c, s) for c, s in last],
                    "workingMemory": [_memory_fields(c, s) for c, s in memories],
                    "compactions": [inputs.as_fields(each) for each in compactions],
                }
            )
            return
        table = _table("sequence", "events", "step", "refresh", "pass", "placed", "history")
        for logged, after in shown:
            step = _step_of(logged)
            table.add_row(
                str(logged.sequence),
                Text(", ".join(_events(logged))),
                "" if step is None else str(step.step),
                step.refresh if isinstance(step, StepCompiled) else "",
                str(step.pass_) if isinstance(step, StepCompiled) else "",
                _placed(after),
                str(after.history.count),
            )
        stdout().print(table)
        for logged, memory in memories:
            revision = "" if memory.snapshot is None else f", revision {memory.snapshot.revision}"
            line = f"working memory: sequence {logged.sequence}, {', '.join(_events(logged))}{revision}"
            stdout().print(Text(line), soft_wrap=True)
        for each in compactions:
            stdout().print(Text(describe_compaction(each)), soft_wrap=True)
        if state and shown:
            stdout().print_json(data=inputs.as_fields(shown[-1][1]))

    run(work, as_json=as_json)


def verify(
    name: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run; or give --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every run of the log.")] = False,
    data: options.Data = options.DEFAULT_DATA,
    nats: options.Nats = None,
    tenant: options.Tenant = "default",
    as_json: options.Json = False,
) -> None:
    """Compute every step again from what the log recorded, and compare by digest; exit code 1 if one differs."""

    async def work() -> int:
        if (name is None) == (not every):
            raise UsageFault("give a RUN, or --all")
        different = 0
        async with open_log(options.find_place(data, nats, tenant)) as bus:
            names = [name] if name is not None else [r.run for r in await bus.runs()]
            with show_progress() as progress:
                for each in progress.track(names, description="verify"):
                    log = await read_log(bus, each)
                    verdict = await bus.verify(log.run)
                    different += not verdict.is_clean
                    if as_json:
                        print_json(_verdict_fields(verdict))
                    else:
                        _show_verdict(verdict)
        if every and not as_json:
            stdout().print(f"{len(names)} runs, {different} different")
        return FAILED if different else OK

    run(work, as_json=as_json)


@asynccontextmanager
async def open_log(place: options.Place) -> AsyncGenerator[ContextBus]:
    """A bus that only reads.

    Raises:
        NoServerError: there is no data folder to read.
    """
    if place.nats is None and not place.data.is_dir():
        raise NoServerError(
            f"there is no data folder {place.data}: compile something first, or name another with --data"
        )
    async with client.open(place.nats, tenant=place.tenant, data=place.folder, actors="remote", memory=False) as bus:
        yield bus


async def read_log(bus: ContextBus, run_id: str) -> RunLog:
    """A run's log.

    Raises:
        NotFoundError: the log has no such run.
    """
    log = await bus.log(run_id)
    if not log.commits and not log.memory:
        raise NotFoundError(f"the log has no run {run_id!r}; see `{called()} runs`")
    return log


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _events(logged: LoggedCommit) -> list[str]:
    return [e.name if isinstance(e, UnknownEvent) else str(e.__struct_config__.tag) for e in logged.commit.events]


def _count_open(state: RunState) -> int:
    """Entries of the block of a step whose model call is not reported yet."""
    return len(state.last.entries) if state.last is not None and state.last.status == "open" else 0


def _placed(state: RunState) -> str:
    count = _count_open(state)
    return f"{len(state.placed)} +{count} open" if count else str(len(state.placed))


def _step_of(logged: LoggedCommit) -> StepCompiled | StepFailed | None:
    return next((e for e in logged.commit.events if isinstance(e, StepCompiled | StepFailed)), None)


def _commit_fields(logged: LoggedCommit, state: RunState) -> dict[str, object]:
    step = _step_of(logged)
    return {
        "sequence": logged.sequence,
        "digest": logged.digest,
        "events": _events(logged),
        "step": None if step is None else step.step,
        "refresh": step.refresh if isinstance(step, StepCompiled) else None,
        "pass": step.pass_ if isinstance(step, StepCompiled) else None,
        "placed": len(state.placed),
        "open": _count_open(state),
        "history": state.history.count,
        "state": inputs.as_fields(state),
    }


def describe_compaction(info: CompactionInfo) -> str:
    """One line for an evaluation; every count of tokens is called an estimate (C.O.13)."""
    words = [f"compaction {info.evaluation[-8:]}: {info.status}"]
    if info.step is not None:
        words.append(f"before step {info.step}")
    if info.reason is not None:
        words.append(f"{info.phase}: {info.reason}")
    if info.estimated_before is not None:
        of = "of the request" if info.scope == "request" else "of the messages"
        after = "" if info.estimated_after is None else f" to {info.estimated_after}"
        words.append(f"estimated tokens {of}: {info.estimated_before}{after}, target {info.target_tokens}")
    if info.source_messages is not None:
        words.append(f"{info.source_messages} source messages are {info.replacement_messages} now")
    words += [word for word, said in (("by the host", info.host), ("dropped", info.dropped)) if said]
    return ", ".join(words)


def _memory_fields(logged: LoggedCommit, state: MemoryState) -> dict[str, object]:
    snapshot = None if state.snapshot is None else inputs.as_fields(state.snapshot)
    return {"sequence": logged.sequence, "digest": logged.digest, "events": _events(logged), "snapshot": snapshot}


def _verdict_fields(verdict: Verdict) -> dict[str, object]:
    checks = [cast("dict[str, object]", msgspec.to_builtins(c)) for c in verdict.checks]
    return {
        "run": verdict.run,
        "clean": verdict.is_clean,
        "steps": verdict.steps,
        "redacted": verdict.redacted,
        "checks": [c for c in checks if c["status"] != "same"],
    }


def _show_verdict(verdict: Verdict) -> None:
    console = stdout()
    steps = f"{verdict.steps} step{'' if verdict.steps == 1 else 's'} computed again"
    if verdict.redacted:
        steps = f"{verdict.redacted} redacted" + (f", {steps}" if verdict.steps else "")
    if verdict.is_clean:
        console.print(Text(f"{verdict.run}: clean, {steps}"), soft_wrap=True)
    else:
        console.print(Text.assemble((f"{verdict.run}: different", "bold red"), f", {steps}"), soft_wrap=True)
    for check in verdict.checks:
        if check.status == "same":
            continue
        step = "" if check.step is None else f"step {check.step}, "
        console.print(
            Text(
                f"  sequence {check.sequence}: {step}{check.status}: {check.field}: "
                f"expected {check.expected}, got {check.got}"
            ),
            soft_wrap=True,
        )
