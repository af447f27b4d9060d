"""What must hold after any simulation, whatever went wrong in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from contextbus.actors.endings import CompactionState
from contextbus.actors.flight import SelectionState
from contextbus.actors.memory_requests import WorkingMemoryActorState
from contextbus.actors.placement import PlacementState
from contextbus.core.prefix import stale_ranges
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import LoggedCommit, RunLog, read_commits, replay_memory, replay_run, replay_states
from contextbus.replay.verify import verify_run
from contextbus_protocol import blobs, subjects
from contextbus_protocol.commands import Recorded
from contextbus_protocol.digests import digest_text
from contextbus_protocol.events import HistoryReplaced, StepCompiled, StepFailed
from tests.simulation.clients import Acknowledged, Client
from tests.simulation.forgetting import Forgetter
from tests.simulation.forgotten import check_forgotten, check_revisions, check_usage
from tests.simulation.host_functions import check_callbacks, check_prompts
from tests.simulation.scripts import BOUND
from tests.simulation.world import TENANT, World


def check_world(world: World, clients: list[Client], forgetter: Forgetter) -> int:
    """Check everything; gives the number of steps in the log.

    Raises:
        AssertionError: something does not hold; the message says what.
    """
    steps = 0
    for client in clients:
        assert client.is_done, f"{client.name} still waits for an answer"
    for run in sorted({c.run for c in clients}):
        log = read_log(world, run)
        steps += check_log(world, log)
        check_histories(log, [c for c in clients if c.run == run])
        check_steps(log)
        check_revisions(log)
        check_usage(log)
        check_callbacks(world, log, [c for c in clients if c.run == run])
        check_prompts(world, log, [c for c in clients if c.run == run])
        check_forgotten(world, log, forgetter)
        for client in clients:
            if client.run == run:
                check_acknowledged(world, log, client)
        check_states(world, log)
    return steps


def read_log(world: World, run: str) -> RunLog:
    """Both parts of a run's log."""
    return RunLog(
        run,
        read_commits(world.server.records(subjects.log(TENANT, run, "run"))),
        read_commits(world.server.records(subjects.log(TENANT, run, "working-memory"))),
    )


def check_log(world: World, log: RunLog) -> int:
    """Every command has one effect, the hash chain holds, and every step computes to the same bytes."""
    seen: dict[str, str | None] = {}
    for logged in log.commits:
        if any(isinstance(e, StepFailed) for e in logged.commit.events):
            continue
        package = next((e.package for e in logged.commit.events if isinstance(e, StepCompiled)), None)
        before = seen.get(logged.commit.command, package)
        # a step is compiled anew once its package is gone (D.H.7, D.R.9)
        gone = before is not None and (log.run, before) in world.server.lost
        assert logged.commit.command not in seen or gone, f"in the log twice: {logged.commit.command}"
        seen[logged.commit.command] = package
    doubled = [c for c, n in Counter(m.commit.command for m in log.memory).items() if n > 1]
    assert not doubled, f"in the working memory twice: {doubled}"
    used = [
        e.working_memory.sequence
        for logged in log.commits
        for e in logged.commit.events
        if isinstance(e, StepCompiled) and e.working_memory is not None
    ]
    assert used == sorted(used), "a step is of an older working memory than one before it"
    verdict = verify_run(log, lambda digest: world.server.blobs.get((log.run, digest)))
    odd = [c for c in verdict.checks if c.status not in {"same", "missing", "redacted"}]
    # only of a host's own counts beside a race is it not known which history they are of
    odd = [c for c in odd if c.status != "unverifiable" or c.step is not None]
    assert not odd, f"computed again, another result: {odd[0]}"
    missing = [c for c in verdict.checks if c.status == "missing" and (log.run, c.expected) not in world.server.erased]
    assert not missing, f"a blob that nobody erased is missing: {missing[0]}"
    return sum(1 for c in verdict.checks if c.step is not None)


def check_histories(log: RunLog, clients: list[Client]) -> None:
    """Nothing of others is replaced by a client that did not mean to (D.F.19)."""
    rewrites = {command for c in clients for command in c.rewrites}
    sequence = 0
    for logged in log.commits:
        replaced = [e for e in logged.commit.events if isinstance(e, HistoryReplaced)]
        # the first commit of an evaluation takes the messages of its step's command (C.K.9)
        evaluations = (evaluation_of(log.run, command, sequence) for command in rewrites) if replaced else ()
        meant = logged.commit.command in rewrites or logged.commit.command.startswith(tuple(evaluations) or ("-",))
        assert not replaced or meant, f"{logged.commit.command} replaced history unread"
        sequence = logged.sequence


def evaluation_of(run: str, command: str, sequence: int) -> str:
    """The id of the evaluation of a command at one state of the log (C.O.1)."""
    return "compaction-" + digest_text(f"{run}\n{command}\n{sequence}").removeprefix("sha256:")[:32]


def check_steps(log: RunLog) -> None:
    """Steps never go back (D.G.3); a reused one asks for nothing but what is owed, and takes only that (D.G.14)."""
    last = 0
    for logged in log.commits:
        for event in logged.commit.events:
            if isinstance(event, StepCompiled):
                assert event.step >= last, f"step {event.step} after {last}"
                last = event.step
                if event.refresh == "reused":
                    asked = {source for source, _ in event.demanded}
                    assert {fact.source for fact in event.sources} <= asked, f"step {event.step} asked others"
                    taken = {e.reason for e in event.entries if e.selected and e.kind != "working-memory"}
                    assert taken <= {"restored", "mandatory"}, f"step {event.step} is reused and takes {taken}"


class Told(Protocol):
    """What a client was told."""

    acknowledged: list[Acknowledged]
    recorded: list[Recorded]
    patched: list[tuple[str, int]]


def check_acknowledged(world: World, log: RunLog, client: Told) -> None:
    """What a client was told is stored is in the log, once, with the bytes that it was given."""
    by_sequence = {logged.sequence: logged for logged in log.commits}
    states = replay_states(log)
    for told in client.acknowledged:
        logged = by_sequence.get(told.sequence)
        assert logged is not None, f"{told.command} is acknowledged and not in the log"
        assert logged.digest == told.commit, f"{told.command} was told another commit"
        step = next(e for e in logged.commit.events if isinstance(e, StepCompiled))
        assert step.package == told.reference, f"{told.command} was told another package"
        check_history_of_answer(states, told)
        data = world.server.blobs.get((log.run, step.package))
        if data is None:
            assert (log.run, step.package) in world.server.erased, f"{told.command}'s package is gone"
            continue
        output = blobs.decode_output(data)
        assert bytes(output.package).decode() == told.package, f"{told.command} got other bytes"
        assert told.stored or logged.commit.command == told.command
    own = [told for told in client.acknowledged if by_sequence[told.sequence].commit.command == told.command]
    given: dict[str, set[str]] = {}
    for told in own:
        given.setdefault(told.command, set()).add(told.reference)
    for command, packages in given.items():
        left = [p for p in packages if (log.run, p) not in world.server.lost]
        assert len(left) <= 1, f"{command} was given two packages"
    for record in client.recorded:
        assert record.sequence in by_sequence, f"{record.command} is acknowledged and not in the log"
    memory = {logged.sequence: logged.commit.command for logged in log.memory}
    commands = set(memory.values())
    for command, _ in client.patched:
        assert not command or command in commands, f"patch {command} is acknowledged and not in the log"


def check_history_of_answer(states: Sequence[tuple[LoggedCommit, RunState]], told: Acknowledged) -> None:
    """An answer names the blocks that stand in the history, and whose thinking stays out (D.F.19, D.F.20)."""
    if told.stored:  # as of the time when it was told, which the client does not know
        later = [state for logged, state in states if logged.sequence >= told.sequence]
    else:
        later = [state for logged, state in states if logged.sequence == told.sequence]
    assert told.blocks in {s.blocks.chain for s in later}, f"{told.command} was told other blocks than the log has"
    stale = {(), *(s.stale_thinking for s in later)}
    # a stored step is told what a request of now leaves out behind what changed since (D.F.20, D.J.6)
    stale |= {
        stale_ranges(s, s.last.options, s.last.count, s.last.prompt)
        for s in later
        if told.stored and s.last is not None
    }
    assert told.stale_thinking in stale, f"{told.command} was told other thinking than the log has"
    if not told.stored:
        state = later[0]
        assert state.last is not None
        bound = state.last.options.model == BOUND
        assert told.stale_thinking == (state.stale_thinking if bound else ()), "thinking of another model"


def check_states(world: World, log: RunLog) -> None:
    """What an instance still knows equals the fold of the log, and nothing is in flight for ever."""
    final = replay_run(log)
    memory = replay_memory(log)
    for node in world.nodes.values():
        state = node.states.get(log.run)
        match state:
            case SelectionState():
                assert state.flight is None, f"{node.name} has {state.flight} in flight"
                assert state.held is None, f"{node.name} has {state.held} beside a compaction"
                assert not state.waiting, f"{node.name} lets commands wait"
                if state.loaded and state.fold.sequence == final.sequence:
                    assert state.fold == final, f"{node.name}'s state is not the fold"
            case WorkingMemoryActorState():
                assert node.rule.is_idle(state), f"{node.name} is not at rest"
                if state.loaded and memory and state.fold.sequence == memory[-1][1].sequence:
                    assert state.fold == memory[-1][1], f"{node.name}'s state is not the fold"
            case CompactionState():
                assert state.job is None, f"{node.name} has {state.job} under way"
                assert not state.waiting, f"{node.name} lets compactions wait"
                if state.fold.sequence == final.sequence:
                    assert state.fold == final, f"{node.name}'s state is not the fold"
            case PlacementState():
                assert not state.jobs, f"{node.name} has {state.jobs[0].head.command} under way"
            case _:
                pass
