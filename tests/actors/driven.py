"""A run whose actors are driven until each command has its answer, with other instances that come in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.actors.bench import DOCS, RUN, Bench, Log, head, options, report, step

from contextbus.actors.effects import AnyEffect, Effects, Fetch, Load, Scatter, Send, Store
from contextbus.actors.flight import RunCommand
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.replay.verify import Verdict, verify_run
from contextbus_protocol import blobs, digests
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import (
    ErrorReply,
    OverflowStep,
    Recorded,
    RedactedPackage,
    RedactPackages,
    StepCompiled,
)
from contextbus_protocol.commit_requests import Place, Record
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.events import PackageRedacted
from contextbus_protocol.events import StepCompiled as StepCompiledEvent
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Fetched, Loaded
from contextbus_protocol.package import ContextManifest, Package
from contextbus_protocol.questions import AskItems, Failed, ItemsOffered, Offered, Query
from contextbus_protocol.values import Candidate, SourceResult, SourceSpec

Answer = StepCompiled | Recorded | ErrorReply


class Driven:
    """One instance over a log; ``beside`` makes another over the same log, as a restart or a second process is.

    ``found`` is what each source offers, or the code with which it fails; ``asked`` are the queries that came.
    ``on_scatter`` and ``on_store`` are called once, before the sources answer and before a commit is stored.
    """

    def __init__(self, log: Log | None = None, erasures: Log | None = None) -> None:
        self.bench = Bench(log)
        self.erasures = erasures or Log("erasures")
        self.found: dict[str, Sequence[Candidate] | str] = {}
        self.as_of: int | None = None
        self.asked: list[Query] = []
        self.on_scatter: Callable[[], object] | None = None
        self.on_store: Callable[[], object] | None = None
        self._answers: list[Answer] = []

    def beside(self) -> Driven:
        """Another instance."""
        other = Driven(self.log, self.erasures)
        other.found = self.found
        return other

    @property
    def log(self) -> Log:
        """The run's log."""
        return self.bench.log

    @property
    def fold(self) -> RunState:
        """The run as its log says."""
        return self.log.fold

    def send(self, command: RunCommand) -> Answer:
        """Take a command to its answer."""
        self._answers = []
        queue: deque[AnyEffect] = deque(self.bench.tell(command))
        while queue:
            queue += self._carry_out(queue.popleft())
        (answer,) = self._answers
        return answer

    def compiled(self, command: RunCommand) -> ContextManifest:
        """Take a step to its manifest."""
        answer = self.send(command)
        assert isinstance(answer, StepCompiled), answer
        return decode_json(answer.package, Package).manifest

    def refused(self, command: RunCommand) -> str:
        """The code with which a command is refused."""
        answer = self.send(command)
        assert isinstance(answer, ErrorReply), answer
        return answer.code

    def _carry_out(self, effect: AnyEffect) -> Effects:
        bench = self.bench
        match effect:
            case Load(part="erasures"):
                commits = tuple(c for c in self.erasures.commits if c[0] > effect.after)
                loaded = Loaded(run=RUN, token=effect.token, part="erasures", after=effect.after, commits=commits)
                return bench.tell(loaded)
            case Load():
                return bench.tell(self.log.load(effect))
            case Fetch():
                held = tuple((d, self.log.blobs[d]) for d in effect.digests if d in self.log.blobs)
                return bench.tell(Fetched(run=RUN, token=effect.token, blobs=held))
            case Scatter(queries=asked):
                queries = [q for q in asked if isinstance(q, Query)]
                self.asked += queries
                self._call("on_scatter")
                return tuple(e for q in queries for e in bench.tell(self._answer(q)))
            case Send(message=message):
                return self._deliver(message)
            case Store():
                return self._store(effect)
            case _:
                return ()

    def _deliver(self, message: AnyMessage) -> Effects:
        match message:
            case AskItems():
                return self.bench.tell(ItemsOffered(run=RUN, token=message.token))
            case Place() | Record():
                return self.bench.placement.tell(message)
            case StepCompiled() | Recorded() | ErrorReply():
                self._answers.append(message)
                return ()
            case Committed() | Conflicted():
                return self.bench.tell(message)
            case _:
                return ()

    def _store(self, store: Store) -> Effects:
        self._call("on_store")
        if (store.expected, store.commit.previous) != self.log.last:
            return self.bench.placement.tell(Conflicted(run=RUN, token=store.token, part="run"))
        return self.bench.placement.tell(self.log.store(store))

    def _answer(self, query: Query) -> Offered | Failed:
        found = self.found.get(query.source, ())
        if isinstance(found, str):
            return Failed(run=RUN, token=query.token, source=query.source, code=found)
        return Offered(
            run=RUN,
            token=query.token,
            source=query.source,
            kind="skills" if query.source == "skills" else "rag",
            candidates=tuple(found),
            erasures=self.as_of if query.source == "memory" else None,
        )

    def _call(self, name: str) -> None:
        function = getattr(self, name)
        setattr(self, name, None)
        if function is not None:
            function()

    # -- commands

    def step(self, text: str, *sources: SourceSpec, add: bool = True, **changes: Any) -> ContextManifest:
        """Compile the next step."""
        return self.compiled(self.next(text, *sources, add=add, **changes))

    def next(self, text: str, *sources: SourceSpec, add: bool = True, **changes: Any) -> RunCommand:
        """The command of the next step; it has the text as its id unless it is given one."""
        known: dict[str, Any] = {
            key: changes.pop(key) for key in ("command", "attempt", "number", "refresh") if key in changes
        }
        heads: dict[str, Any] = {"command": text, **known}
        return step(text, options_=options(*(sources or (DOCS,)), **changes), after=self.fold, add=add, **heads)

    def report(self, status: str = "succeeded") -> Answer:
        """Report the last step."""
        last = self.fold.last
        assert last is not None
        return self.send(report(last.step, status, command=f"report-{self.log.last[0]}"))

    def redact(self, record: str, *packages: str, source: str = "docs", command: str = "forget") -> Answer:
        """Forget a record as a memory worker does it: packages get blobs in their place, the run is told, they go.

        Where another forget came first, what that one left is redacted instead.
        """
        done = tuple(self._replace(reference, source, record) for reference in packages)
        erasure = self.erasures.last[0]
        told = RedactPackages(**head(command), source=source, record_id=record, erasure=erasure, packages=done)
        answer = self.send(told)
        if isinstance(answer, ErrorReply) and answer.code == "conflict":
            for package in done:  # no commit names them; they may hold what the other took
                self.log.blobs.pop(package.replacement, None)
            return self.redact(record, *self.holding(record), source=source, command=command + "+")
        for reference in packages:
            self.log.blobs.pop(reference, None)
        return answer

    def _replace(self, reference: str, source: str, record: str) -> RedactedPackage:
        """Put what a forget leaves of a package, or of what an earlier one left, in its place."""
        data = self.log.blobs.get(reference, blobs.encode_redacted(reference, (), ()))
        try:
            output = blobs.decode_output(data)
            offers, of = (*output.results, *output.restored), decode_json(bytes(output.package), Package).blocks
        except ContextBusError:
            left = blobs.decode_redacted(data)
            offers, of = left.results, left.blocks
        offers = tuple(_without(result, record) if result.source == source else result for result in offers)
        kept = tuple(b for b in of if b.placement != "append" or f'id="{record}"' not in str(b))
        replacement = blobs.encode_redacted(reference, offers, kept)
        self.log.blobs[digests.digest_bytes(replacement)] = replacement
        return RedactedPackage(self._step_of(reference), reference, digests.digest_bytes(replacement))

    def _step_of(self, reference: str) -> int:
        events = [e for _, _, c in self.log.commits for e in c.events]
        known = {e.package: e.step for e in events if isinstance(e, StepCompiledEvent)}
        known |= {e.replacement: e.step for e in events if isinstance(e, PackageRedacted)}
        return known[reference]

    def holding(self, record: str) -> tuple[str, ...]:
        """The packages that offer a record by the log, or what forgets left of them."""
        events = [e for _, _, c in self.log.commits for e in c.events]
        left = {e.package: e.replacement for e in events if isinstance(e, PackageRedacted)}
        found: list[str] = []
        for event in events:
            if isinstance(event, StepCompiledEvent) and any(e.record_id == record for e in event.entries):
                reference = event.package
                while reference in left:
                    reference = left[reference]
                found.append(reference)
        return tuple(dict.fromkeys(found))

    @property
    def package(self) -> str:
        """The reference of the last step's package."""
        last = self.fold.last
        assert last is not None
        return last.package

    def verify(self) -> Verdict:
        """Verify the run."""
        commits = tuple(LoggedCommit(*commit) for commit in self.log.commits)
        return verify_run(RunLog(RUN, commits), self.log.blobs.get)


def _without(result: SourceResult, record: str) -> SourceResult:
    left = tuple(c for c in result.candidates if c.record_id != record)
    return msgspec.structs.replace(result, candidates=left)


def overflow(number: int = 0, limit: int | None = None, command: str = "overflow", **heads: Any) -> OverflowStep:
    """A request to compile a step again."""
    return OverflowStep(**head(command, **heads), step=number, input_tokens=limit)


def chosen(manifest: ContextManifest) -> list[tuple[str, bool, str]]:
    """Record, whether it was taken, and why."""
    return [(e.record_id, e.selected, e.reason) for e in manifest.entries]
