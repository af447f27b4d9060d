"""An open bus: runs, memory records, and the log."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from contextbus.client.archive import read_archive
from contextbus.client.compaction_log import CompactionInfo, list_compactions
from contextbus.client.compaction_options import Compaction
from contextbus.client.memories import Memories
from contextbus.client.reading import read_blobs, read_log
from contextbus.client.run import Run
from contextbus.client.run_options import read_options
from contextbus.client.step_hooks import BeforeCompile, HookFunctions, PrepareStep, RewriteQuery, TransformContext
from contextbus.client.window import Window
from contextbus.core.observer import Observer
from contextbus.core.scope import require_scope, require_within
from contextbus.replay.run_log import RunLog
from contextbus.replay.verify import Verdict, verify_run
from contextbus.runtime.drive import JournalDriver
from contextbus.runtime.host import Host
from contextbus.runtime.journal import Journal, Unanswered
from contextbus.runtime.telling import OnWarning
from contextbus.sources.interface import Source, scope_read
from contextbus.sources.skill_files import Skill
from contextbus.sources.skills import SkillsSource
from contextbus_protocol import subjects
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import DeadlineExceededError, InvalidTypeError
from contextbus_protocol.events import CompactionCompleted, MessagesAppended, PackageRedacted, StepCompiled
from contextbus_protocol.values import (
    ContextBudget,
    EstimatorSpec,
    ModelPrefix,
    ParentRun,
    RefreshOptions,
    Scope,
    SourceSpec,
    default_kind,
)

REMEMBERED_FAILURES: Final = 256


class RunInfo(msgspec.Struct, frozen=True):
    """One run of the log; ``commits`` counts those of its run part."""

    run: str
    commits: int
    steps: int
    last_step: int | None
    scope: Scope | None


class ContextBus:
    """What ``open`` gives; it belongs to the block that opened it.

    Attributes:
        tenant: whose runs these are.
        host: the host of this process.
        driver: reads the tenant's log and packages.
        memories: the memory records of the tenant.
        tokenizers: the named tokenizers of this process.
        durability: what an acknowledgement rests on.
        observer: is told of each compile (D.S.1).
    """

    def __init__(
        self,
        host: Host,
        journal: Journal,
        *,
        memories: Memories,
        local: Sequence[Source] = (),
        tokenizers: Mapping[str, Callable[[str], int]] | None = None,
        durability: str = "",
        url: str = "memory:",
        observer: Observer | None = None,
    ) -> None:
        self.tenant = host.tenant
        self.host = host
        self.driver = JournalDriver(journal, host.packages, host.tenant)
        self.memories = memories
        self.tokenizers = dict(tokenizers or {})
        self.durability = durability
        self.url = url
        self.observer = observer
        self._journal = journal
        self._local = {s.id: s for s in local}
        self._failures: dict[tuple[str, str], BaseException] = {}
        self._over: dict[tuple[str, str], None] = {}

    async def run(
        self,
        run: str | None = None,
        *,
        scope: Scope,
        sources: Sequence[str | SourceSpec] = (),
        budget: ContextBudget | Mapping[str, object] | None = None,
        refresh: RefreshOptions | Mapping[str, object] | None = None,
        estimator: EstimatorSpec | None = None,
        parent: Run | None = None,
        compaction: Compaction | Window | None = None,
        bound_models: Sequence[ModelPrefix] = (),
        prepare_step: PrepareStep | None = None,
        before_compile: BeforeCompile | None = None,
        transform_context: TransformContext | None = None,
        rewrite_query: RewriteQuery | None = None,
        on_warning: OnWarning | None = None,
    ) -> Run:
        """Hold a run: a new one, or one that the log has; what the log holds is read.

        Args:
            run: the run's id; a new one without it.
            scope: whose data it may read; pinned at the first step (D.K.2).
            sources: ids of sources, or their specifications; an id alone is enough for sources of this process and
                for the well-known ones.
            budget: a budget, or what of the default is to be changed (D.B.7).
            refresh: when it retrieves, or what of the default is to be changed (D.G.2).
            estimator: what counts tokens; with ``calibrate`` it learns from reported usage (D.M.11).
            parent: the run that this one is started from: its scope lies within the parent's, its working memory is its
                own (D.K.5).
            compaction: when and how its history is compacted, if it is (C.I.1); a ``Window`` keeps it inside the
                model's window (P.J).
            bound_models: further models that bind their thinking to the prefix (D.F.12).
            prepare_step: is asked before each step and may change messages, model, tools and overhead (D.R.2).
            before_compile: gives a text that stands in the tail of the next request, escaped (P.D.1).
            transform_context: makes the history of the next request of the run's; it never becomes history (P.D.4).
            rewrite_query: makes the query that sources are asked of the step's own (D.A.9).
            on_warning: is told each warning of a step once it is stored, async or not (D.G.26, D.W.4).

        Raises:
            ScopeConflictError: the scope, or that at which a source of this process reads, lies outside the parent's
                (D.K.5, D.K.7).
            InvalidTypeError: two sources have one id (D.G.4), a source's kind is not known, or an option is malformed.
            DeadlineExceededError: the log does not answer.
        """
        specs = tuple(self._spec(s) for s in sources)
        ids = [s.id for s in specs]
        if len(set(ids)) < len(ids):
            raise InvalidTypeError("two sources have one id; give each its own")
        if specs:
            require_scope(scope)
        above = None
        if parent is not None:
            above = ParentRun(parent.id, parent.state.scope or parent.scope)
            require_within(scope, above.scope)
            for spec in specs:
                if spec.id in self._local:  # one of another process checks each query itself
                    require_within(scope_read(self._local[spec.id], scope), above.scope)
        options = read_options(
            scope=scope,
            sources=specs,
            budget=budget,
            refresh=refresh,
            estimator=estimator,
            parent=above,
            compaction=compaction,
            bound_models=bound_models,
            hooks=HookFunctions(
                prepare_step=prepare_step,
                before_compile=before_compile,
                transform_context=transform_context,
                rewrite_query=rewrite_query,
            ),
            on_warning=on_warning,
        )
        held = Run(self, run or f"run-{uuid.uuid4().hex[:12]}", options)
        subjects.encode_name(held.id)
        await held.load()
        return held

    def _spec(self, source: str | SourceSpec) -> SourceSpec:
        if isinstance(source, SourceSpec):
            return source
        local = self._local.get(source)
        if local is not None:
            return SourceSpec(local.id, local.kind, local.required)
        kind = default_kind(source)
        if kind is None:
            raise InvalidTypeError(
                f"the kind of source {source!r} is not known here; give SourceSpec({source!r}, kind)"
            )
        return SourceSpec(source, kind)

    @property
    def skills(self) -> Mapping[str, Skill]:
        """The skills of this process's sources by id, as their folders were looked at last (D.K.26)."""
        own = (source for source in self._local.values() if isinstance(source, SkillsSource))
        return {name: skill for source in own for name, skill in source.skills.items()}

    # -- the log

    async def runs(self) -> tuple[RunInfo, ...]:
        """Every run of the tenant's log, by id.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        found = await self._journal.subjects(subjects.log_of_tenant(self.tenant))
        if isinstance(found, Unanswered):
            raise DeadlineExceededError("the log does not answer; is the nats-server running?")
        names = {s.split(".")[3] for s in found if s.count(".") == 4}  # noqa: PLR2004  # ctx.log.<tenant>.<run>.<part>
        infos: list[RunInfo] = []
        for token in sorted(names):
            log = await self.log(subjects.decode_name(token))
            events = [e for c in log.commits for e in c.commit.events]
            steps = [e.step for e in events if isinstance(e, StepCompiled)]
            scopes = [e.options.scope for e in events if isinstance(e, StepCompiled)]
            infos.append(
                RunInfo(
                    log.run,
                    len(log.commits),
                    len(set(steps)),  # a step that is compiled again is no further one
                    steps[-1] if steps else None,
                    scopes[0] if scopes else None,
                )
            )
        return tuple(infos)

    async def log(self, run: str) -> RunLog:
        """Both parts of a run's log.

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        return await read_log(self.driver, run)

    async def blobs(self, log: RunLog) -> dict[str, bytes]:
        """Every blob that a run's log names; those that are gone are left out.

        Raises:
            DeadlineExceededError: the store does not answer.
        """
        wanted: list[str] = []
        for logged in log.commits:
            for event in logged.commit.events:
                if isinstance(event, MessagesAppended):
                    wanted.append(event.inputs)
                elif isinstance(event, StepCompiled):
                    layer = None if event.prompt is None else event.prompt.layer
                    wanted += [r for r in (event.package, event.facts, layer) if r is not None]
                elif isinstance(event, CompactionCompleted):
                    wanted += [r for r in (event.replaced_by, event.archive) if r is not None]
                elif isinstance(event, PackageRedacted):
                    wanted.append(event.replacement)
        return await read_blobs(self.driver, log.run, wanted)

    async def verify(self, run: str) -> Verdict:
        """Compute every step of a run again from its recorded inputs.

        Raises:
            DeadlineExceededError: log or store do not answer.
        """
        log = await self.log(run)
        return verify_run(log, (await self.blobs(log)).get)

    async def compactions(self, run: str) -> tuple[CompactionInfo, ...]:
        """The evaluations of a run that came to something, oldest first (C.O.9, C.O.13).

        One whose end is not in the log is ``interrupted`` once its step is over: the log went on with another, or this
        process sent its command and no longer waits (C.O.11).

        Raises:
            DeadlineExceededError: the log does not answer.
        """
        over = tuple(command for name, command in self._over if name == run)
        return list_compactions(await self.log(run), over)

    async def resolve(self, uri: str, *, run: str) -> tuple[ChatMessage, ...]:
        """The messages that a compaction of a run replaced, by the address at the end of its summary (C.X.8).

        Args:
            uri: ``context://archive/`` and 64 hex digits.
            run: the run that was compacted.

        Raises:
            InvalidRequestError: it is no such address.
            NotFoundError: the run has no such span, or a forget took it.
            DeadlineExceededError: log or store do not answer.
        """
        return await read_archive(self.driver, run, uri)

    # -- failures of this process's own sources

    def note_over(self, run: str, command: str) -> None:
        """Keep that a step of this process is over, however it ended (C.O.11)."""
        self._over.pop((run, command), None)
        self._over[run, command] = None
        while len(self._over) > REMEMBERED_FAILURES:
            self._over.pop(next(iter(self._over)))

    def note_failure(self, run: str, origin: str, error: BaseException) -> None:
        """Keep what a source or summariser of this process raised: the caller gets it as the cause (D.W.2)."""
        self._failures.pop((run, origin), None)
        self._failures[run, origin] = error
        while len(self._failures) > REMEMBERED_FAILURES:
            self._failures.pop(next(iter(self._failures)))

    def failure_of(self, run: str, origin: str | None) -> BaseException | None:
        """What a source or summariser of this process raised last for a run."""
        return self._failures.pop((run, origin or ""), None)
