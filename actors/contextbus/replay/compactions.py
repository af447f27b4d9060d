"""Compactions computed again: what was replaced, by what, and why one came to nothing (C.L, C.O, C.X)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from contextbus.core.checkpoints import COUNTED
from contextbus.core.compaction.composition import read_summary
from contextbus.core.compaction.reduction import CannotFit, Reduction
from contextbus.core.compaction.request_items import RequestItems, missing_blobs, request_items
from contextbus.core.compaction.saving import save
from contextbus.core.estimate import MESSAGE_EIGHTEENTHS, Estimator, make_estimator, recorded_estimator
from contextbus.core.history import digest_message
from contextbus.core.memory_run import MemoryState
from contextbus.core.projection import applied
from contextbus.core.run_state import RunState
from contextbus.replay.checks import BlobMissingError, Check, CheckStatus, FetchBlob
from contextbus.replay.differences import first_difference
from contextbus.replay.evaluations import check_head, check_restored, check_started, estimator_of_run
from contextbus.replay.reductions import Counts, Planned, dropped_range, finish_again, plan_again
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage, Text
from contextbus_protocol.errors import ContextBusError, InvalidRequestError, NotFoundError
from contextbus_protocol.events import (
    AnyEvent,
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
    HistoryCleared,
    HistoryReplaced,
    ReplacementFact,
    StepCompiled,
    SummaryRedacted,
    UnknownEvent,
)
from contextbus_protocol.package import CountFact, WarningCode

_RANGELESS: Final = ("no-safe-boundary", "protected-history")

replace = msgspec.structs.replace


class Begun(msgspec.Struct, frozen=True):
    """A compaction that began: the event, the run behind it, and whether the host rewrote its history since."""

    started: CompactionStarted
    state: RunState
    sequence: int
    rewritten: bool = False

    def is_moved(self, state: RunState) -> bool:
        """Whether others committed between the start and this state."""
        return state.sequence not in (self.state.sequence, self.sequence)


class Compactions:
    """The compactions of one run, checked event by event.

    Args:
        log: the run's log.
        memory: the working memory by sequence.
        fetch: gives the bytes of a blob by reference, None when it is gone.
    """

    def __init__(self, log: RunLog, memory: Mapping[int, MemoryState], fetch: FetchBlob) -> None:
        self._memory = memory
        self._fetch = fetch
        self._begun: dict[str, Begun] = {}
        self._failed: set[int] = set()
        self._summaries: set[tuple[str, str | None]] = set()  # ranges without a summary may share what replaces them
        self._erased: set[str] = set()
        for event in (e for logged in log.commits for e in logged.commit.events):
            if isinstance(event, SummaryRedacted):
                self._erased.update(r for r in (event.replaced_by, event.archive) if r is not None)

    def check_commit(self, state: RunState, logged: LoggedCommit) -> Iterator[Check]:
        """Check what a commit of compaction says as a whole."""
        yield from check_head(state, logged)

    def check(
        self, state: RunState, after: RunState, logged: LoggedCommit, event: AnyEvent | UnknownEvent
    ) -> Iterator[Check]:
        """Check one event.

        Args:
            state: the run before it.
            after: the run behind it.
            logged: its commit.
            event: the event.
        """
        yield from check_restored(state, logged, event)
        match event:
            case CompactionStarted():
                yield from check_started(state, logged, event, self._memory)
                self._begun[event.evaluation] = Begun(event, after, logged.sequence)
            case CompactionCompleted():
                yield self._check_completed(state, logged, event)
                self._summaries.add((event.replaced_by, event.archive))
            case CompactionFailed():
                yield from self._check_failed(state, logged, event)
                self._failed.add(event.step)
            case SummaryRedacted():
                yield from self._check_redacted(logged, event)
            case HistoryReplaced() | HistoryCleared():
                self._begun = {key: replace(begun, rewritten=True) for key, begun in self._begun.items()}
            case StepCompiled(step=step):
                self._failed.discard(step)
            case _:
                return

    def warnings_of(self, state: RunState, event: StepCompiled) -> tuple[WarningCode, ...]:
        """``compaction-failed``, if a step says so that may have gone on with its whole history (C.X.5)."""
        options = event.options if event.overflow is None or state.last is None else state.last.options
        if "compaction-failed" not in event.warnings or options.compaction is None:
            return ()
        goes_on = options.compaction.on_failure == "continue" or event.overflow is not None
        failed = event.step in self._failed or state.failures.told
        return ("compaction-failed",) if goes_on and failed else ()

    def _check_completed(self, state: RunState, logged: LoggedCommit, event: CompactionCompleted) -> Check:
        def check(status: CheckStatus, field: str = "", expected: object = "", got: object = "") -> Check:
            return Check(logged.sequence, status, None, field, str(expected), str(got))

        begun = self._begun.get(event.evaluation)
        if begun is None:
            return check("different", "evaluation", event.evaluation, "no compaction that began")
        # the host counted for the history on which it began and for the one on which it ended, and nobody says which
        moved = begun.started.options.counts and begun.is_moved(state)
        try:
            again = self._complete(state, begun, event)
        except BlobMissingError as exc:
            status: CheckStatus = "redacted" if exc.reference in self._erased else "missing"
            return check(status, "blob", exc.reference, "redacted by a forget" if status == "redacted" else "no blob")
        except InvalidRequestError as exc:
            return check("unverifiable" if moved else "different", "hostCounts", event.host_counts, exc.message)
        except ContextBusError as exc:
            return check("different", "compaction", "a compaction that completes", f"{exc.code}: {exc.message}")
        if isinstance(again, CannotFit):
            status = "unverifiable" if moved else "different"
            return check(status, "compaction", "a compaction that completes", again.reason)
        field, expected, got = first_difference(event, again)
        if field and moved:
            return check("unverifiable", field, "counts of one history", "the host counted beside a race")
        return check("different", field, expected, got) if field else check("same")

    def _complete(self, state: RunState, begun: Begun, event: CompactionCompleted) -> CompactionCompleted | CannotFit:
        started = begun.started
        replacement = blobs.decode_replacement(self._read(event.replaced_by)).messages
        if event.archive is not None:
            self._read(event.archive)
        if event.host:
            return _check_given(state, event, replacement)
        request = self._request(state)
        summary = None if event.dropped else _summary_in(event, replacement)
        estimator = _with_summary(estimator_of_run(begun.state), event, replacement)
        counts = Counts(request, estimator, event.host_counts if started.options.counts else None)
        planned = self._plan(state, begun, event, request, counts)
        if isinstance(planned, CannotFit):
            return planned
        reduction, pieces = planned
        usages = () if event.usage is None else (event.usage,)
        outcome = finish_again(reduction, counts, summary, pieces=pieces, usages=usages)
        if isinstance(outcome, CannotFit):
            return outcome
        memory = self._memory.get(started.memory_sequence)
        again = save(
            state,
            request,
            started,
            outcome,
            estimator=estimator,
            working_memory=None if memory is None else memory.snapshot,
            host_counts=event.host_counts if started.options.counts else (),
        ).event
        return again if counts.is_over else replace(again, host_counts=event.host_counts[:-1])

    def _plan(
        self, state: RunState, begun: Begun, event: CompactionCompleted, request: RequestItems, counts: Counts
    ) -> tuple[Reduction, int] | CannotFit:
        """The range, and how many requests to the summariser there may have been (C.X.2)."""
        started, moved = begun.started, begun.is_moved(state)
        planned = plan_again(state, request, started, counts, self._kept_end(state, begun, event, request))
        if isinstance(planned, CannotFit):
            if event.dropped and planned.end > planned.start:
                return dropped_range(planned, state, request, started), event.pieces
            return planned
        fewest = 0 if event.dropped else planned.pieces if planned.pieces == 1 else planned.pieces + 1
        most_is_fewest = started.options.summary_input_tokens is None and not moved and not event.dropped
        plausible = event.pieces == fewest if most_is_fewest else event.pieces >= fewest
        return planned.reduction, event.pieces if plausible else fewest

    def _kept_end(self, state: RunState, begun: Begun, event: CompactionCompleted, request: RequestItems) -> int | None:
        """The end of a range that was summarised before others went on (C.K.9): as it was when it began."""
        if not begun.is_moved(state) or begun.started.options.counts:
            return None
        end = event.replaced_range.end
        if not 0 < end <= len(request.covers):
            return None
        if begun.rewritten:
            return end
        before = self._request(begun.state)
        planned = plan_again(begun.state, before, begun.started, Counts(before, estimator_of_run(begun.state), None))
        same = isinstance(planned, Planned) and before.source_count(planned.reduction.end) == request.source_count(end)
        return end if same else None

    def _check_failed(self, state: RunState, logged: LoggedCommit, event: CompactionFailed) -> Iterator[Check]:
        def check(field: str, expected: object, got: object, status: CheckStatus = "different") -> Check:
            return Check(logged.sequence, status, None, field, str(expected), str(got))

        begun = self._begun.get(event.evaluation)
        if event.phase != "compact":
            failures = state.failures
            if event.reason == "paused" and (
                (failures.paused_at is None and failures.refused_range is None) or failures.told
            ):
                yield check("reason", event.reason, "told already" if failures.told else "no pause")
            elif event.reason not in ("paused", "error"):
                yield check("reason", event.reason, "error")
            return
        if begun is None:
            yield check("evaluation", event.evaluation, "no compaction that began")
            return
        started = begun.started
        overhead = started.target_tokens - started.envelope_tokens < 1
        if event.step != started.step:
            yield check("step", event.step, started.step)
        if overhead != (event.reason == "request-overhead"):
            yield check("reason", event.reason, "request-overhead" if overhead else "room under the target")
        if event.summariser not in ("", started.options.summariser):
            yield check("summariser", event.summariser, started.options.summariser)
        if (
            event.reason == "paused"
            or overhead
            or started.options.counts
            or (event.reason == "error" and not event.summariser)
        ):
            return
        try:
            yield from self._check_reason(state, begun, event, check)
        except BlobMissingError as exc:
            status: CheckStatus = "redacted" if exc.reference in self._erased else "missing"
            yield check("blob", exc.reference, "no blob", status)
        except ContextBusError as exc:
            yield check("compaction", "a history that can be read", f"{exc.code}: {exc.message}")

    def _check_reason(
        self, state: RunState, begun: Begun, event: CompactionFailed, check: Callable[..., Check]
    ) -> Iterator[Check]:
        """Whether the reason follows from the history on which the compaction began, or on which it ended."""
        found: list[str] = []
        costs: list[int] = []
        for at in (begun.state, state) if begun.is_moved(state) else (begun.state,):
            request = self._request(at)
            planned = plan_again(at, request, begun.started, Counts(request, estimator_of_run(begun.state), None))
            if isinstance(planned, CannotFit):
                found.append(planned.reason)
            else:
                found.append("a range that a summariser is asked for")
                reduction = planned.reduction
                costs.append(sum(item.cost for item in request.items[reduction.start : reduction.end]))
        knows_texts = begun.state.estimator is None or begun.state.estimator.kind == "heuristic"
        if event.reason in _RANGELESS:
            if event.reason not in found and (knows_texts or event.reason == "no-safe-boundary"):
                yield check("reason", event.reason, found[0])
        elif event.reason in COUNTED and not costs:
            yield check("reason", event.reason, found[0])
        refuses = event.reason == "summary-too-large"
        if event.refused is not None and (not refuses or event.refused not in costs):
            yield check("refused", event.refused, costs[0] if refuses and costs else "nothing")

    def _check_redacted(self, logged: LoggedCommit, event: SummaryRedacted) -> Iterator[Check]:
        if all(replaced_by != event.replaced_by for replaced_by, _ in self._summaries):
            yield Check(logged.sequence, "different", None, "replacedBy", event.replaced_by, "no such checkpoint")
        elif (event.replaced_by, event.archive) not in self._summaries:
            yield Check(logged.sequence, "different", None, "archive", str(event.archive), "no such archive")

    def _request(self, state: RunState) -> RequestItems:
        """The request history with its texts.

        Raises:
            BlobMissingError: one of its blobs is gone.
            ContextBusError: one is damaged.
        """
        checkpoint = applied(state)
        texts: dict[str, tuple[ChatMessage, ...]] = {}
        for reference in missing_blobs(state):
            data = self._read(reference)
            is_checkpoint = checkpoint is not None and reference == checkpoint.replaced_by
            read = blobs.decode_replacement(data) if is_checkpoint else blobs.decode_input(data)
            texts[reference] = read.messages
        return request_items(state, texts)

    def _read(self, reference: str) -> bytes:
        data = self._fetch(reference)
        if data is None:
            raise BlobMissingError(reference)
        if digests.digest_bytes(data) != reference:
            raise NotFoundError(f"blob {reference} holds other bytes")
        return data


def _check_given(state: RunState, event: CompactionCompleted, messages: tuple[ChatMessage, ...]) -> CompactionCompleted:
    """What the host gave in place of its history (P.J.8): which messages it is, and how many it stands for."""
    estimator = estimator_of_run(state)
    if len(messages) != len(event.replacement):
        raise NotFoundError(f"{len(messages)} messages are stored, {len(event.replacement)} are named")
    facts: list[ReplacementFact] = []
    for fact, message in zip(event.replacement, messages, strict=True):
        known = fact.source is not None or fact.own or estimator.spec.kind != "heuristic"
        cost = fact.eighteenths if known else estimator.message(message)
        facts.append(replace(fact, digest=digest_message(message), eighteenths=cost))
    source_hash = state.history.keep(event.source_count).chain
    return replace(event, replacement=tuple(facts), source_hash=source_hash)


def _summary_in(event: CompactionCompleted, replacement: tuple[ChatMessage, ...]) -> str:
    """The recorded summary: the first message that is one (C.E.1, C.E.2)."""
    index = next((i for i, fact in enumerate(event.replacement) if fact.own == "summary"), len(replacement))
    if index >= len(replacement):
        raise NotFoundError("the replacement holds no summary")
    part = replacement[index].content[0]
    return read_summary(part.text if isinstance(part, Text) else "", event.archive)


def _with_summary(estimator: Estimator, event: CompactionCompleted, replacement: tuple[ChatMessage, ...]) -> Estimator:
    """The run's counter; of a tokenizer's counts that of the summary is a fact of the event (D.M.14)."""
    if estimator.spec.kind == "heuristic":
        return make_estimator(estimator.spec)
    counts: list[CountFact] = []
    for fact, message in zip(event.replacement, replacement, strict=False):
        part = message.content[0] if message.content else None
        if fact.own == "summary" and isinstance(part, Text):
            counts.append(CountFact(digests.digest_text(part.text), fact.eighteenths - MESSAGE_EIGHTEENTHS))
    return recorded_estimator(estimator.spec, counts)
