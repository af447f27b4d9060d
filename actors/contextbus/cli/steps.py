"""One step of ``contextbus compile``: what it is made of, and what came of it."""

from __future__ import annotations

import enum
from collections import Counter
from pathlib import Path
from typing import Final, Literal

import msgspec

from contextbus.cli import inputs, options
from contextbus.cli.indexing import show_index
from contextbus.cli.models import Choice
from contextbus.cli.output import note, show_progress
from contextbus.client import CompiledStep, ContextBus, Report, Run
from contextbus.core.history import SourceHistory, make_query
from contextbus.core.importers import Conversation
from contextbus.core.run_state import RunState
from contextbus.core.working_memory_items import active_task
from contextbus.sources.rag_index import Refreshed
from contextbus_protocol.errors import ForbiddenError
from contextbus_protocol.package import ContextManifest
from contextbus_protocol.values import EstimatorSpec, Scope, SourceSpec, Value
from contextbus_protocol.working_memory import WorkingMemorySnapshot

STEP_SECONDS: Final = 15.0


class Previous(enum.StrEnum):
    """How the model call of the run's last step went."""

    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"
    ignore = "ignore"


_STATUSES: Final[dict[Previous, Literal["succeeded", "failed", "cancelled"]]] = {
    Previous.succeeded: "succeeded",
    Previous.failed: "failed",
    Previous.cancelled: "cancelled",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations are compiled."""

    place: options.Place
    actors: Literal["local", "remote"]
    scope: Scope
    budget: dict[str, object]
    estimator: EstimatorSpec
    docs: tuple[Path, ...]
    workers: tuple[Path, ...]
    refresh: bool
    previous: Previous | None
    memory: bool
    transcript: bool
    skills: Path | None
    elsewhere: tuple[SourceSpec, ...]
    memories: tuple[inputs.MemoryLine, ...]
    working_memory: inputs.WorkingMemoryFile | WorkingMemorySnapshot | None


class Documents(msgspec.Struct, frozen=True):
    """A folder of documents and what its index holds."""

    source: str
    path: Path
    done: Refreshed

    @property
    def line(self) -> str:
        """What it holds and what was left out, for people."""
        return f"{self.path}: {show_index(self.done)}"

    def as_fields(self) -> dict[str, object]:
        """The same as JSON would hold it."""
        return {
            "source": self.source,
            "path": str(self.path),
            "files": self.done.files,
            "chunks": self.done.chunks,
            "skipped": dict(self.done.skipped),
        }


class Opened(msgspec.Struct, frozen=True):
    """A bus, every source that a run asks, and the folders of documents among them."""

    bus: ContextBus
    sources: tuple[SourceSpec, ...]
    documents: tuple[Documents, ...]


class Job(msgspec.Struct, frozen=True):
    """A conversation and the model that will be called with it."""

    conversation: Conversation
    choice: Choice


class Warned(Value, frozen=True):
    """Something that the user should look at: the package's warnings, and the command's own."""

    code: str
    source: str | None = None
    error: str | None = None


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A step, its payload, and what the user should know about how it came to be.

    ``query`` is what the sources were asked, None if they were not; ``repairs`` counts by code what made the
    conversation fit the provider; ``failures`` is what sources of this process raised.
    """

    step: CompiledStep
    payload: bytes
    query: str | None
    repairs: dict[str, int]
    warnings: tuple[Warned, ...]
    notes: tuple[str, ...]
    durability: str
    failures: tuple[tuple[str, BaseException], ...] = ()


async def remember(bus: ContextBus, settings: Settings) -> None:
    """Remember the records of the command, each once; those that were forgotten are skipped and counted."""
    if not settings.memories:
        return
    refused: list[ForbiddenError] = []
    with show_progress() as progress:
        for memory in progress.track(settings.memories, description="remember"):
            try:
                await bus.memories.remember(
                    memory.text,
                    scope=settings.scope,
                    record_id=memory.id,
                    origin=memory.origin,
                    message_id=inputs.message_id(memory, settings.scope),
                )
            except ForbiddenError as exc:
                refused.append(exc)
    if refused:
        note(inputs.explain_refused(refused))


async def compile_job(opened: Opened, job: Job, settings: Settings, run_id: str) -> Compiled:
    """Compile the next step of a run for a conversation."""
    conversation, bus = job.conversation, opened.bus
    held = await bus.run(
        run_id,
        scope=settings.scope,
        sources=opened.sources,
        budget=settings.budget,
        estimator=settings.estimator,
    )
    history = SourceHistory().append(conversation.messages, (0 for _ in conversation.messages))
    notes = [*job.choice.notes]
    notes += await _report_previous(held, conversation, history, settings.previous)
    notes += await _set_working_memory(held, settings)
    before = held.state
    step = await held.before_model_call(
        conversation.messages,
        model=job.choice.model,
        tools=conversation.tools,
        refresh=settings.refresh,
        seconds=STEP_SECONDS,
    )
    payload = step.payload(job.choice.target)
    query = None
    manifest = step.manifest
    if opened.sources:
        asked = manifest.refresh != "reused"
        memory = await held.working_memory.read() if asked else None
        task = None if memory is None else active_task(memory)
        query = make_query(None if task is None else task.title, history.user_text) if asked else None
        notes += _explain_reuse(manifest, before)
        if asked and not (query or "").strip():
            query = None
            notes.append("the sources were not asked: the conversation has no text of the user to ask with")
    raised = ((s.source, bus.failure_of(step.run, s.source)) for s in manifest.sources if s.error)
    return Compiled(
        step=step,
        payload=payload.json(),
        query=query,
        repairs=dict(Counter(repair.code for repair in payload.repairs)),
        warnings=(*(Warned(w.code, w.source, w.error) for w in step.warnings), *_check_room(manifest)),
        notes=tuple(notes),
        durability=step.durability or bus.durability,
        failures=tuple((source, error) for source, error in raised if error is not None),
    )


async def _report_previous(
    held: Run, conversation: Conversation, history: SourceHistory, previous: Previous | None
) -> list[str]:
    """Report the open last step of the run, so that its block joins the history if its call succeeded."""
    last = held.state.last
    if last is None or last.status != "open":
        if previous in (None, Previous.ignore):
            return []
        return [f"no step of the run is open; --previous {previous} changed nothing"]
    begins = history.count > last.count and history.keep(last.count).chain == last.chain
    if previous is None:
        if begins and conversation.messages[last.count].role == "assistant":
            await held.after_model_call(Report(status="succeeded"), seconds=STEP_SECONDS)
            return [f"step {last.step} is taken as answered: the file goes on with its answer"]
        if history.chain != last.chain:
            return [f"step {last.step} is still open: --previous succeeded (or failed) says how its call went"]
    elif previous is not Previous.ignore:
        await held.after_model_call(Report(status=_STATUSES[previous]), seconds=STEP_SECONDS)
        return [f"step {last.step} is reported as {previous}"]
    return []


def _explain_reuse(manifest: ContextManifest, before: RunState) -> list[str]:
    if manifest.refresh != "reused":
        return []
    if manifest.fallback == "pass-limit":
        return [f"the sources were not asked: the run has had its most passes ({before.passes}); start another run"]
    since = before.last_refresh_step
    return [
        "the sources were not asked: nothing was due"
        + (f" since step {since}" if since is not None else "")
        + "; --refresh asks the sources again"
    ]


def _check_room(manifest: ContextManifest) -> tuple[Warned, ...]:
    budget = manifest.budget
    if budget.used_tokens <= budget.input_tokens:
        return ()
    return (
        Warned(
            code="history-too-large",
            error=f"the history takes {budget.used_tokens:,} tokens, the model takes {budget.input_tokens:,}; "
            "shorten it, or give another model or --context-window",
        ),
    )


async def _set_working_memory(held: Run, settings: Settings) -> tuple[str, ...]:
    given = settings.working_memory
    if given is None:
        return ()
    if await held.working_memory.read() is not None:
        return ("the run has a working memory already; --working-memory changed nothing",)
    if isinstance(given, WorkingMemorySnapshot):
        await held.working_memory.create(snapshot=given)
    else:
        await held.working_memory.create(
            goal=given.goal, constraints=given.constraints, tasks=given.tasks, goal_ref=given.goal_ref
        )
    return ()
