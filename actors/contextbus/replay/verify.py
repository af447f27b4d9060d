"""Verify a run: compute every step again from its recorded inputs and compare by digest.

Nothing but the log and the blobs is read: no source, no tokenizer, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from contextbus.actors.step_event import compile_event
from contextbus.core.estimate import MESSAGE_EIGHTEENTHS, Estimator, make_estimator, recorded_estimator
from contextbus.core.memory_run import MemoryState
from contextbus.core.owed import demand_missing, restore_results
from contextbus.core.placement import place
from contextbus.core.prepared import digest_tools, fold_prepared, prepared_options, prepared_user_text
from contextbus.core.run import ChainBrokenError, fold_commit, fold_event
from contextbus.core.run_state import RunState
from contextbus.core.step import (
    POLICIES,
    counter_of,
    decide_step,
    plan_overflow,
    plan_step,
    warn_of_state,
    warn_of_usage,
)
from contextbus.replay.checks import BlobMissingError, Check, CheckStatus, FetchBlob
from contextbus.replay.compactions import Compactions
from contextbus.replay.differences import first_difference
from contextbus.replay.form import find_command_flaw, find_flaws
from contextbus.replay.messages import check_messages
from contextbus.replay.prompts import RecordedPrompt, compute_prompt, read_prompt
from contextbus.replay.redactions import Redactions, check_redaction, find_redactions
from contextbus.replay.run_log import LoggedCommit, RunLog, replay_memory
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import Text
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commit_requests import CommitHead, HistoryFact, Place, WorkingMemoryInput
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.events import (
    MessagesAppended,
    PackageRedacted,
    PreparedFact,
    StepCompiled,
    WorkingMemoryPatched,
    WorkingMemoryUsed,
)
from contextbus_protocol.package import CountFact, Package, WarningCode
from contextbus_protocol.subjects import Part


class Verdict(msgspec.Struct, frozen=True):
    """The checks of a run, in log order; a step that is the same has one check."""

    run: str
    checks: tuple[Check, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing differs."""
        return all(c.status != "different" for c in self.checks)

    @property
    def steps(self) -> int:
        """How many steps were computed again and are the same."""
        return sum(1 for c in self.checks if c.status == "same" and c.step is not None)

    @property
    def redacted(self) -> int:
        """How many steps a forget took the package of, so that they cannot be computed again."""
        return len({c.step for c in self.checks if c.status == "redacted" and c.step is not None})


def verify_run(log: RunLog, fetch: FetchBlob) -> Verdict:
    """Compute every step of a run again.

    Args:
        log: both parts of the run's log.
        fetch: gives the bytes of a blob of the run by reference, None when it is gone.
    """
    return Verdict(log.run, tuple(_checks(log, fetch)))


def _checks(log: RunLog, fetch: FetchBlob) -> Iterator[Check]:
    try:
        states = replay_memory(log)
    except ContextBusError as exc:
        field = "working-memory.previous" if isinstance(exc, ChainBrokenError) else "working-memory"
        yield Check(0, "different", field=field, got=exc.message)
        return
    yield from _check_memory(log, states)
    memory = {0: MemoryState(log.run)} | {logged.sequence: state for logged, state in states}
    state = RunState(log.run)
    redactions = find_redactions(log)
    compactions = Compactions(log, memory, fetch)
    for logged in log.commits:
        if logged.commit.previous != state.digest:
            yield Check(
                logged.sequence,
                "different",
                field="previous",
                expected=logged.commit.previous,
                got=state.digest,
            )
            return
        yield from _check_form(log.run, "run", logged, log.commits)
        try:
            yield from _check_commit(state, logged, memory, fetch, redactions, compactions)
            state = fold_commit(state, logged.sequence, logged.digest, logged.commit)
        except ContextBusError as exc:
            yield Check(logged.sequence, "different", field="events", expected="a commit that folds", got=exc.message)
            return


def _check_form(run: str, part: Part, logged: LoggedCommit, commits: Sequence[LoggedCommit]) -> Iterator[Check]:
    for flaw in find_flaws(run, part, logged, commits):
        status: CheckStatus = "unverifiable" if flaw.is_newer else "different"
        yield Check(logged.sequence, status, None, flaw.field, flaw.expected, flaw.got)


def _check_memory(log: RunLog, states: Sequence[tuple[LoggedCommit, MemoryState]]) -> Iterator[Check]:
    """Whether every patch of the log comes to the revision that its event names."""
    for logged, state in states:
        yield from _check_form(log.run, "working-memory", logged, log.memory)
        revisions = [e.revision for e in logged.commit.events if isinstance(e, WorkingMemoryPatched)]
        got = None if state.snapshot is None else state.snapshot.revision
        if revisions and revisions[-1] != got:
            field = "working-memory.revision"
            yield Check(logged.sequence, "different", None, field, str(revisions[-1]), str(got))
        for event in logged.commit.events:
            if isinstance(event, WorkingMemoryPatched) and event.ids:
                known = state.applied.find(event.patch.operation_id)
                ids = () if known is None else known.ids
                if ids != event.ids:
                    field = "working-memory.ids"
                    yield Check(logged.sequence, "different", None, field, ", ".join(event.ids), ", ".join(ids))


def _check_commit(
    state: RunState,
    logged: LoggedCommit,
    memory: dict[int, MemoryState],
    fetch: FetchBlob,
    redactions: Redactions,
    compactions: Compactions,
) -> Iterator[Check]:
    before = state
    yield from compactions.check_commit(state, logged)
    for event in logged.commit.events:
        if isinstance(event, MessagesAppended):
            yield from check_messages(before, logged, event, fetch)
        elif isinstance(event, PackageRedacted):
            yield from check_redaction(logged, event, fetch, redactions)
        elif isinstance(event, StepCompiled):
            if logged.commit.policy not in POLICIES:
                yield Check(
                    logged.sequence,
                    "unverifiable",
                    event.step,
                    "policy",
                    str(logged.commit.policy),
                    ", ".join(map(str, POLICIES)),
                )
            elif event.package in redactions.erased:
                yield Check(logged.sequence, "redacted", event.step, "package", event.package, "redacted by a forget")
            else:
                warnings = compactions.warnings_of(before, event)
                yield _check_step(before, logged, event, memory, fetch, warnings)
        after = fold_event(before, event, logged.sequence, logged.digest, logged.commit.command, logged.commit.at)
        yield from compactions.check(before, after, logged, event)
        before = after


def _check_step(
    state: RunState,
    logged: LoggedCommit,
    event: StepCompiled,
    memory: dict[int, MemoryState],
    fetch: FetchBlob,
    warnings: tuple[WarningCode, ...],
) -> Check:
    def check(status: CheckStatus, field: str = "", expected: object = "", got: object = "") -> Check:
        return Check(logged.sequence, status, event.step, field, str(expected), str(got))

    data = fetch(event.package)
    if data is None:
        return check("missing", "package", event.package, "no blob")
    if digests.digest_bytes(data) != event.package:
        return check("different", "package", event.package, digests.digest_bytes(data))
    if event.facts is not None:
        facts = fetch(event.facts)
        if facts is None:
            return check("missing", "facts", event.facts, "no blob")
        if digests.digest_bytes(facts) != event.facts:
            return check("different", "facts", event.facts, digests.digest_bytes(facts))
    used = event.working_memory
    known = memory.get(0 if used is None else used.sequence)
    if known is None:
        return check("different", "workingMemory.sequence", used, "no such commit")
    if used is not None and used.digest != known.snapshot_digest:
        return check("different", "workingMemory.digest", used.digest, known.snapshot_digest)
    try:
        output = blobs.decode_output(data)
        stored = decode_json(bytes(output.package), Package)
        estimator = _estimator(state, event, stored)
        prompt = read_prompt(event, stored, fetch)
        again, text = _compute(state, logged, event, output, known, estimator, warnings, prompt, stored)
    except BlobMissingError as exc:
        return check("missing", "prompt.layer", exc.reference, "no blob")
    except ContextBusError as exc:
        return check("different", "step", "a compiled step", f"{exc.code}: {exc.message}")
    flaw = find_command_flaw(logged.commit, event, output.user_text, prompt.parts)
    if flaw is not None:
        return check("different", flaw.field, flaw.expected, flaw.got)
    field, expected, got = first_difference(event, again)
    if field:
        return check("different", field, expected, got)
    if text.encode() != bytes(output.package):
        field, expected, got = first_difference(stored, decode_json(text, Package))
        return check("different", f"package.{field}", expected, got)
    return check("same")


def _estimator(state: RunState, event: StepCompiled, stored: Package) -> Estimator:
    """The step's counter; a tokenizer's counts are read, never made again (D.M.14)."""
    spec = counter_of(state, event.options.estimator)
    if spec.kind == "heuristic":
        return make_estimator(spec)
    blocks = [m for b in stored.blocks for m in b.messages]
    counts = list(event.counts)
    for message, fact in zip(blocks, event.blocks, strict=False):
        part = message.content[0]
        if isinstance(part, Text):
            text = digests.digest_text(part.text)
            counts.append(CountFact(text, fact.eighteenths - MESSAGE_EIGHTEENTHS))
    return recorded_estimator(spec, counts)


def _compute(
    state: RunState,
    logged: LoggedCommit,
    event: StepCompiled,
    output: blobs.StepOutput,
    memory: MemoryState,
    estimator: Estimator,
    warnings: tuple[WarningCode, ...],
    recorded_prompt: RecordedPrompt,
    stored: Package,
) -> tuple[StepCompiled, str]:
    snapshot = memory.snapshot if event.working_memory is not None else None
    recorded, hook = event.options, _prepared(event, output, estimator)
    if event.overflow is not None and state.last is not None:  # those of the step that is compiled again
        recorded, hook = state.last.options, state.last.prepared
    options = prepared_options(recorded, hook)
    user_text = output.user_text if output.prepared is None else prepared_user_text(state, output.prepared)
    prompt = compute_prompt(state, event, recorded_prompt, stored, options, estimator)
    if event.overflow is not None:
        plan = plan_overflow(
            state,
            input_tokens=event.overflow,
            query=output.query or "",
            estimator=estimator,
            snapshot=snapshot,
            prompt=prompt,
        )
    else:
        plan = plan_step(
            state,
            step=event.step,
            options=options,
            host_request=event.host_request,
            user_text=user_text,
            snapshot=snapshot,
            estimator=estimator,
            rewritten=output.query if event.rewritten else None,
            prepared=hook,
            messages=output.prepared,
            prompt=prompt,
            policy=logged.commit.policy,
        )
    returning = plan.restore if event.overflow is None else tuple(o for o in state.owed if not o.waits)
    sources = [s.id for s in options.sources]
    restored, missing = restore_results(returning, {o.package: output.restored for o in returning}, sources)
    demands = () if event.overflow is not None else plan.demands + demand_missing(missing, sources)
    decision = decide_step(
        state,
        plan,
        options=options,
        results=output.results,
        restored=restored,
        snapshot=snapshot,
        estimator=estimator,
    )
    used = None
    if snapshot is not None:
        digest = memory.snapshot_digest
        used = WorkingMemoryInput(WorkingMemoryUsed(memory.sequence, snapshot.revision, digest), snapshot)
    commit = logged.commit
    message = Place(
        run=state.run,
        head=CommitHead(
            tenant=commit.tenant,
            run=commit.run,
            command=commit.command,
            command_digest=commit.command_digest,
            attempt=commit.attempt,
            at=commit.at,
            expected=state.sequence,
            previous=commit.previous,
            token="",
            reply_to="",
            notify="",
            seconds_left=0.0,
        ),
        history=HistoryFact(chain=state.history.chain, count=state.history.count),
        options=recorded,
        decision=decision,
        results=output.results,
        restored=restored,
        query=plan.query if plan.refresh.retrieve or event.overflow is not None else "",
        user_text=output.user_text,
        active_task_id=plan.active_task_id,
        host_request=event.host_request,
        working_memory=used,
        rewritten=event.rewritten,
        prepared=output.prepared,
        prepared_fact=hook,
        tools=output.tools,
        demanded=demands,
        overflow=event.overflow,
        erasures=event.erasures,
        usage=event.usage,
        warnings=(
            *warn_of_usage(state, event.usage),
            *warnings,
            *warn_of_state(state, None if event.overflow is not None else recorded_prompt.parts),
        ),
        prompt=prompt,
    )
    package = place(decision, output.results, snapshot, message.query, restored, prompt)
    again, text, _ = compile_event(message, package, estimator)
    return again, text


def _prepared(event: StepCompiled, output: blobs.StepOutput, estimator: Estimator) -> PreparedFact | None:
    """What the host's hook changed, its messages counted and its tools digested again (D.D.25)."""
    fact = event.prepared
    if fact is not None and output.prepared is not None:
        fact = msgspec.structs.replace(fact, messages=fold_prepared(output.prepared, estimator))
    if fact is not None and output.tools is not None:
        fact = msgspec.structs.replace(fact, tools_digest=digest_tools(output.tools))
    return fact
