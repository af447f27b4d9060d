"""Replay and verify over runs made here: states, facts in blobs, events of a later release, tokenizers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with
from tests.core.logs import make_commit

import contextbus.client as contextbus
from contextbus.actors.flight import SelectionState
from contextbus.actors.memory_requests import WorkingMemoryActorState
from contextbus.actors.step_event import LARGEST_FACTS
from contextbus.client.reading import RunContent, read_run
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import LoggedCommit, RunLog, replay_memory, replay_run, replay_states
from contextbus.replay.verify import first_difference, verify_run
from contextbus_protocol import blobs, codec, digests
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import RefreshRequested, StepCompiled, UnknownEvent
from contextbus_protocol.values import RefreshOptions, SourceSpec
from contextbus_protocol.working_memory import AddObservation

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)


def live_states(bus: contextbus.ContextBus, run: str) -> dict[str, object]:
    """The folds that the actors of the process keep, by actor; the host shows them to nobody else."""
    found: dict[str, object] = {}
    for actor in getattr(bus.host, "_actors"):  # noqa: B009  (private, and read here only)
        state = actor.states.take(run).state
        if isinstance(state, SelectionState | WorkingMemoryActorState):
            found[actor.rule.name] = state.fold
    return found


@pytest.mark.rule("D.W.1", "D.A.6")
async def test_replay_comes_to_the_state_that_the_actors_have() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.working_memory.create(goal="Deploy.")
        for number in range(4):
            run.append(user(f"Question {number}?"))
            await run.before_model_call(model=MODEL, refresh=number == 2)
            log = await bus.log("r")
            assert live_states(bus, "r")["selection"] == replay_run(log)
            await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("So.")]))
            await run.working_memory.patch(AddObservation(text=str(number)), expected_revision=number)
            log = await bus.log("r")
            states = live_states(bus, "r")
            assert states["selection"] == replay_run(log)
            assert states["working-memory"] == replay_memory(log)[-1][1]
            assert (await read_run(bus.driver, RunContent(RunState("r")))).state == replay_run(log)
        log = await bus.log("r")
        for count, (_, state) in enumerate(replay_states(log), 1):
            assert replay_run(RunLog("r", log.commits[:count])) == state
    assert replay_run(RunLog("r")) == RunState("r")


@pytest.mark.rule("D.C.13", "D.D.1")
async def test_entries_too_many_for_a_commit_are_in_a_blob_that_verify_reads() -> None:
    found = [contextbus.candidate(f"record-{n:04}", f"Text {n}.", n / 1000) for n in range(900)]
    async with bus_with(Scripted(found)) as bus:
        many = RefreshOptions(candidates_per_source=1000)
        run = await bus.run("r", scope=SCOPE, sources=[SourceSpec("rag", "rag")], refresh=many)
        step = await run.before_model_call([user("How?")], model=MODEL)
        log = await bus.log("r")
        stored = await bus.blobs(log)
    (event,) = [e for c in log.commits for e in c.commit.events if isinstance(e, StepCompiled)]
    assert event.facts is not None
    assert len(step.manifest.entries) == 900
    assert all(e.selected for e in event.entries)
    assert len(stored[event.facts]) > LARGEST_FACTS
    assert len(blobs.decode_facts(stored[event.facts]).entries) == 900
    assert verify_run(log, stored.get).is_clean
    changed = {**stored, event.facts: stored[event.facts].replace(b"Text", b"text").replace(b"over", b"Over", 1)}
    (check,) = [c for c in verify_run(log, changed.get).checks if c.status != "same"]
    assert (check.status, check.field, check.step) == ("different", "facts", 0)
    del changed[event.facts]
    (check,) = [c for c in verify_run(log, changed.get).checks if c.status != "same"]
    assert (check.status, check.field, check.expected) == ("missing", "facts", event.facts)


def no_blob(reference: str) -> bytes | None:
    """A store from which all is gone."""
    return None if reference else b""


def logged(previous: str, *events: Any, engine: str, sequence: int = 1) -> LoggedCommit:
    _, commit = make_commit(previous, *events)
    commit = msgspec.structs.replace(commit, engine=engine)
    return LoggedCommit(sequence, digests.digest_bytes(codec.encode_commit(commit)), commit)


def test_an_event_of_a_later_release_is_unverifiable_and_one_of_ours_that_cannot_be_read_is_damaged() -> None:
    later = UnknownEvent(name="run-branched", data='{"type":"run-branched"}')
    for event, engine, status in (
        (later, "9.0.0", "unverifiable"),
        (later, "9.0.0rc1", "unverifiable"),
        (later, "0.1.0", "different"),
        (UnknownEvent(name="step-failed", data='{"type":"step-failed"}'), "9.0.0", "different"),
    ):
        verdict = verify_run(RunLog("r", (logged("", event, engine=engine),)), no_blob)
        assert [(c.status, c.field) for c in verdict.checks] == [(status, "events[0]")]
        assert verdict.is_clean == (status == "unverifiable")


def test_a_commit_of_another_run_or_tenant_is_named() -> None:
    first = logged("", RefreshRequested(), engine="0.1.0")
    second = logged(first.digest, RefreshRequested(), engine="0.1.0", sequence=2)
    for field in ("run", "tenant"):
        foreign = msgspec.structs.replace(second.commit, **{field: "other"})
        data = codec.encode_commit(foreign)
        log = RunLog("r", (first, LoggedCommit(2, digests.digest_bytes(data), foreign)))
        assert [(c.field, c.expected, c.got) for c in verify_run(log, no_blob).checks] == [
            (field, "r" if field == "run" else "t", "other")
        ]


def test_blobs_of_a_newer_version_are_refused() -> None:
    data = codec.encode_json({"version": 2, "messages": []})
    with pytest.raises(InvalidTypeError, match="upgrade contextbus"):
        blobs.decode_input(data)
    with pytest.raises(InvalidTypeError):
        blobs.decode_output(b"\xff")
    assert blobs.decode_input(blobs.encode_input((user("a"),))).messages == (user("a"),)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ({"a": 1}, {"a": 1}, ("", "", "")),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ("a[1].b", "2", "3")),
        ({"a": [1]}, {"a": [1, 2]}, ("a.length", "1", "2")),
        ({"a": 1}, {}, ("a", "1", "None")),
        ({"a": 1}, {"a": 1.0}, ("a", "1", "1.0")),
        ({"a": True}, {"a": 1}, ("a", "True", "1")),
    ],
)
def test_the_first_difference_is_a_path_and_both_values(
    one: object, other: object, difference: tuple[str, str, str]
) -> None:
    assert first_difference(one, other) == difference
