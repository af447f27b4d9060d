"""The working_memory actor: writes one after the other, each once, read back by whoever wrote (D.N, D.O)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.bench import CLIENT, INBOX, RUN, TENANT, Actor, Log, head, only, refusal, sent

from contextbus.actors.effects import Cancel, Effects, Load, Send, Store, Timer
from contextbus.actors.memory_requests import Write, digest_request
from contextbus.actors.working_memory import CONFLICTS, LONGEST_QUEUE, WorkingMemory
from contextbus.core.memory_run import MemoryState, fold_memory_commits
from contextbus.core.working_memory import create_working_memory
from contextbus_protocol.commands import (
    CancelCommand,
    CreateWorkingMemory,
    PatchWorkingMemory,
    ReadWorkingMemory,
    WorkingMemoryState,
)
from contextbus_protocol.events import UnknownEvent, WorkingMemoryCreated, WorkingMemoryPatched
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Fetched, Loaded, Unstored
from contextbus_protocol.questions import AskItems, ItemsOffered
from contextbus_protocol.working_memory import AddObservation, SetGoal, Task, TaskList, TasksInput, WorkingMemoryPatch


def create(goal: str = "Ship it.", **heads: Any) -> CreateWorkingMemory:
    return CreateWorkingMemory(**head(**heads), scope="acme", goal=goal)


def patch(text: str = "seen", revision: int = 0, operation: str | None = None, **heads: Any) -> PatchWorkingMemory:
    fields = head(**heads)
    made = WorkingMemoryPatch(
        operation_id=operation or fields["command"],
        expected_revision=revision,
        writer="host",
        operations=(AddObservation(text=text),),
    )
    return PatchWorkingMemory(**fields, patch=made)


def read(**heads: Any) -> ReadWorkingMemory:
    return ReadWorkingMemory(**head(**heads))


def ask(token: str = "q", seen: int = 0, *, load: bool = False) -> AskItems:
    return AskItems(run=RUN, tenant=TENANT, token=token, reply_to=INBOX, seen=seen, load=load)


def cancel(command: str) -> CancelCommand:
    return CancelCommand(run=RUN, tenant=TENANT, command=command)


def elapsed(command: str) -> Elapsed:
    return Elapsed(run=RUN, token=command + "#deadline")


class Memory:
    """An actor over a log of its part."""

    def __init__(self, log: Log | None = None, instance: str = "me") -> None:
        self.log = log or Log("working-memory")
        self.actor = Actor(WorkingMemory(TENANT, instance))

    @property
    def state(self) -> Any:
        return self.actor.state

    def tell(self, *messages: AnyMessage) -> Effects:
        """Tell it messages, answering its loads."""
        effects = self.actor.tell(*messages)
        for load in [e for e in effects if isinstance(e, Load)]:
            effects += self.tell(self.log.load(load))
        return effects

    def write(self, *commands: AnyMessage) -> Effects:
        """Tell it writes and commit them, one after the other."""
        effects = self.tell(*commands)
        stores = [e for e in effects if isinstance(e, Store)]
        for store in stores:
            effects += self.write(self.log.store(store))
        return effects

    def begin(self, command: AnyMessage) -> Store:
        """Tell it a write; what it wants stored."""
        return only(self.tell(command), Store)


def ready() -> Memory:
    """A run with a working memory at revision 0."""
    memory = Memory()
    memory.write(create(command="c0"))
    return memory


def conflict(store: Store) -> Conflicted:
    return Conflicted(run=RUN, token=store.token, part="working-memory")


def answers(effects: Effects) -> list[tuple[str, str]]:
    messages = [e.message for e in effects if isinstance(e, Send)]
    return [(m.command, m.status) for m in messages if isinstance(m, WorkingMemoryState)]


def test_the_first_request_reads_the_log_and_the_next_does_not() -> None:
    memory = Memory()
    effects = memory.tell(ask())
    assert only(effects, Load).after == 0
    offered = sent(effects, ItemsOffered, INBOX)
    assert (offered.token, offered.sequence, offered.snapshot, offered.code) == ("q", 0, None, None)
    assert [type(e) for e in memory.tell(ask("q2"), read())] == [Send, Send]
    assert memory.actor.idle


@pytest.mark.rule("D.N.3")
def test_it_is_created_once() -> None:
    memory = ready()
    assert isinstance(memory.log.commits[0][2].events[0], WorkingMemoryCreated)
    assert refusal(memory.tell(create("Other.", command="c2"))) == "invalid_request"
    assert memory.actor.idle


def test_what_is_offered_names_its_sequence() -> None:
    memory = ready()
    memory.write(patch())
    offered = sent(memory.tell(ask()), ItemsOffered)
    assert offered.snapshot is not None
    assert (offered.sequence, offered.snapshot.revision) == (memory.log.last[0], 1)
    assert offered.digest == memory.state.fold.snapshot_digest


@pytest.mark.parametrize("request_", [read(seen_memory=99), read(attempt=2), ask(seen=99), ask(load=True)])
def test_what_a_client_knows_of_is_looked_for(request_: AnyMessage) -> None:
    memory = ready()
    other = Memory(memory.log, "other")
    other.write(patch())
    effects = memory.tell(request_)
    assert next(e for e in effects if isinstance(e, Load)).after == 3
    assert memory.state.fold == other.state.fold
    assert memory.actor.idle


@pytest.mark.rule("D.O.3")
def test_a_patch_is_a_commit_and_its_answer_the_snapshot() -> None:
    memory = ready()
    effects = memory.write(patch("seen"))
    answer = sent(effects, WorkingMemoryState, CLIENT)
    assert answer.snapshot is not None
    assert (answer.status, answer.sequence, answer.snapshot.revision) == ("applied", memory.log.last[0], 1)
    assert len(answer.ids) == 1
    assert isinstance(memory.log.commits[-1][2].events[0], WorkingMemoryPatched)


@pytest.mark.rule("D.O.3")
@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        (patch(revision=7, command="c3"), "rejected", "revision-conflict"),
        (patch(revision=1, operation="c1", command="c2"), "duplicate", None),
    ],
)
def test_a_patch_that_is_not_applied_is_answered_and_not_committed(
    command: PatchWorkingMemory, status: str, reason: str | None
) -> None:
    memory = ready()
    memory.write(patch())
    answer = sent(memory.tell(command), WorkingMemoryState)
    assert (answer.status, answer.reason) == (status, reason)
    assert len(memory.log.commits) == 2
    assert memory.actor.idle


def test_a_patch_without_a_working_memory_is_not_found() -> None:
    assert refusal(Memory().tell(patch())) == "not_found"


@pytest.mark.rule("D.O.18")
def test_a_malformed_patch_is_refused() -> None:
    memory = ready()
    wrong = msgspec.structs.replace(patch(), patch=msgspec.structs.replace(patch().patch, operation_id=""))
    assert refusal(memory.tell(wrong)) == "invalid_type"
    assert memory.actor.idle


# -- the same command again


def test_a_retry_has_one_effect_here_and_elsewhere() -> None:
    memory = ready()
    first = sent(memory.write(patch()), WorkingMemoryState)
    for instance in (memory, Memory(memory.log, "other")):
        again = sent(instance.write(patch(attempt=2)), WorkingMemoryState)
        assert (again.status, again.ids, again.sequence) == ("applied", first.ids, first.sequence)
    assert sent(memory.write(create(command="c0", attempt=2)), WorkingMemoryState).status == "created"
    assert len(memory.log.commits) == 2


@pytest.mark.rule("D.Q.12", "D.Q.8")
@pytest.mark.parametrize("attempt", ["same command", "another command"])
def test_what_a_patch_came_to_is_answered_whatever_came_after_it(attempt: str) -> None:
    memory = ready()
    first = sent(memory.write(patch()), WorkingMemoryState)
    assert (first.revision, first.ids) == (1, ("observations-1-0",))
    memory.write(patch("b", revision=1, command="c2"))
    event = memory.log.commits[1][2].events[0]
    assert isinstance(event, WorkingMemoryPatched)
    assert (event.revision, event.ids) == (1, first.ids)
    again = patch(attempt=2) if attempt == "same command" else patch(revision=2, command="c3", operation="c1")
    for instance in (memory, Memory(memory.log, "other")):
        answer = sent(instance.write(again), WorkingMemoryState)
        assert answer.snapshot is not None
        assert (answer.revision, answer.ids, answer.snapshot.revision) == (1, first.ids, 2)
        assert answer.status == ("applied" if attempt == "same command" else "duplicate")
    assert len(memory.log.commits) == 3


@pytest.mark.rule("D.R.12")
@pytest.mark.parametrize(
    "given",
    [{"goal": ""}, {"constraints": ("a",)}, {"goal_ref": "g"}, {"tasks": TasksInput(TaskList("g", (Task("a", "A"),)))}],
)
def test_a_snapshot_beside_what_a_new_one_is_made_of_is_refused(given: dict[str, Any]) -> None:
    snapshot = create_working_memory(scope="s", now=5, goal="Deploy.")
    memory = Memory()
    both = CreateWorkingMemory(**head(), scope="s", snapshot=snapshot, **given)
    assert refusal(memory.write(both)) == "invalid_type"
    assert memory.log.commits == []
    assert sent(memory.write(CreateWorkingMemory(**head(), scope="s", snapshot=snapshot)), WorkingMemoryState).snapshot


@pytest.mark.parametrize("where", ["log", "writing", "waiting"])
def test_the_same_id_for_something_else_is_refused(where: str) -> None:
    memory = ready()
    if where == "log":
        memory.write(patch())
    elif where == "writing":
        memory.begin(patch())
    else:
        memory.tell(patch(command="c9"), patch())
    before = memory.state
    assert refusal(memory.tell(patch("other"))) == "command_mismatch"
    assert msgspec.structs.replace(memory.state, serial=before.serial) == before


def test_a_retry_of_what_is_here_changes_where_it_is_answered() -> None:
    memory = ready()
    store = memory.begin(patch())
    assert memory.tell(patch(attempt=2, to=CLIENT + ".2"), patch()) == ()
    memory.tell(patch(command="c2", revision=1), patch(command="c3"), patch(command="c2", revision=1, attempt=2))
    assert [(w.command, w.attempt) for w in memory.state.writes] == [("c2", 2), ("c3", 1)]
    assert sent(memory.tell(memory.log.store(store)), WorkingMemoryState, CLIENT + ".2").status == "applied"


def test_what_is_asked_for_is_the_digest_of_a_command() -> None:
    commands: list[Write | ReadWorkingMemory] = [
        create(),
        create("Other."),
        patch(),
        patch("other"),
        patch(revision=1),
        read(),
    ]
    assert len({digest_request(c) for c in commands}) == len(commands)
    assert digest_request(patch(attempt=3, seconds=1.0, to="x")) == digest_request(patch())


# -- turns


def test_writes_of_a_run_are_one_after_the_other_and_reads_do_not_wait() -> None:
    memory = ready()
    first = memory.begin(patch("a"))
    effects = memory.tell(patch("b", 1, command="c2"), read(command="c3"), ask())
    assert [type(e) for e in effects] == [Timer, Send, Send]
    effects = memory.tell(memory.log.store(first))
    second = only(effects, Store)
    assert second.expected == memory.log.last[0]
    assert answers(memory.tell(memory.log.store(second))) == [("c2", "applied")]
    assert memory.actor.idle


def test_a_patch_of_another_instance_in_between_is_a_conflict_that_is_decided_again() -> None:
    memory = ready()
    store = memory.begin(patch("a"))
    Memory(memory.log, "other").write(patch("b", command="c2"))
    effects = memory.tell(conflict(store))
    answer = sent(effects, WorkingMemoryState)
    assert (answer.status, answer.reason) == ("rejected", "revision-conflict")
    assert memory.actor.idle


def test_a_conflict_is_decided_again_five_times_within_the_time_of_the_command() -> None:
    memory = ready()
    effects = memory.actor.tell(patch())
    assert only(effects, Timer).seconds == 10.0
    for _ in range(CONFLICTS):
        load = only(memory.actor.tell(conflict(only(effects, Store))), Load)
        assert load.at_least > load.after
        memory.log.add(UnknownEvent(name="newer", data='{"type":"newer"}'))
        effects = memory.actor.tell(memory.log.load(load))
        assert not any(isinstance(e, Timer) for e in effects)
    assert refusal(memory.tell(conflict(only(effects, Store)))) == "conflict"
    assert memory.actor.idle
    assert only(memory.tell(read(command="r"))[:2], Load).after == 0


def test_the_loser_of_its_own_retry_answers_as_the_log_says() -> None:
    memory = ready()
    store = memory.begin(patch())
    Memory(memory.log, "other").write(patch(attempt=2))
    assert answers(memory.tell(conflict(store))) == [("c1", "applied")]


def test_a_stored_attempt_behind_commits_that_are_not_known_is_answered_from_the_log() -> None:
    memory = ready()
    store = memory.begin(patch())
    other = Memory(memory.log, "other")
    other.log.add(UnknownEvent(name="newer", data='{"type":"newer"}'))
    other.write(patch(attempt=2))
    sequence, digest, commit = memory.log.commits[-1]
    stored = Committed(
        run=RUN, token=store.token, part="working-memory", sequence=sequence, digest=digest, commit=commit
    )
    answer = sent(memory.tell(stored), WorkingMemoryState)
    assert answer.snapshot is not None
    assert (answer.status, answer.sequence, answer.snapshot.revision) == ("applied", sequence, 1)
    assert memory.actor.idle


def test_commits_of_others_that_do_not_follow_make_it_look_again() -> None:
    memory = ready()
    Memory(memory.log, "other").write(patch(command="c2"))
    sequence, digest, commit = memory.log.commits[-1]
    far = msgspec.structs.replace(commit, previous="sha256:unknown")
    message = Committed(run=RUN, token="x", part="working-memory", sequence=99, digest=digest, commit=far)
    assert memory.tell(message) == ()
    assert not memory.state.loaded
    assert sent(memory.tell(read()), WorkingMemoryState).sequence == sequence


# -- what goes wrong


@pytest.mark.parametrize("code", ["deadline_exceeded", "invalid_type"])
def test_when_the_log_cannot_be_read_nobody_is_left_waiting(code: str) -> None:
    memory = ready()
    store = memory.begin(patch("a"))
    memory.tell(patch("b", command="c2"), patch("c", command="c3"))
    effects = memory.actor.tell(Unstored(run=RUN, token=store.token, part="working-memory", code="limit"))
    assert refusal(effects) == "limit"
    load = only(effects, Load)
    memory.actor.tell(ask("q"), read(command="c4"))
    effects = memory.actor.tell(Loaded(run=RUN, token=load.token, part="working-memory", after=3, code=code))
    told = [e.message for e in effects if isinstance(e, Send)]
    assert [getattr(m, "code", None) for m in told] == [code] * 4
    assert memory.actor.idle
    assert only(memory.actor.tell(patch("b", command="c2", attempt=2)), Load).after == 3


def test_a_log_that_does_not_fit_is_read_anew() -> None:
    memory = ready()
    memory.log.add(UnknownEvent(name="x", data="{}"), previous="sha256:other")
    assert refusal(memory.tell(read(attempt=2))) == "invalid_type"
    assert memory.state.fold == MemoryState(RUN)
    assert memory.actor.idle


@pytest.mark.parametrize("phase", ["commit", "load"])
def test_a_write_whose_outcome_is_not_known_makes_the_next_look(phase: str) -> None:
    memory = ready()
    store = memory.begin(patch())
    if phase == "load":
        memory.actor.tell(conflict(store))
    assert refusal(memory.actor.tell(elapsed("c1"))) == "deadline_exceeded"
    assert not memory.state.loaded
    assert memory.actor.idle
    assert memory.actor.tell(conflict(store), elapsed("c1")) == ()
    memory.tell(memory.log.store(store))
    assert answers(memory.tell(patch(attempt=2))) == [("c1", "applied")]


@pytest.mark.parametrize("loading", [True, False])
def test_the_time_of_what_waits_runs_from_its_arrival(loading: bool) -> None:
    memory = Memory() if loading else ready()
    if not loading:
        memory.begin(patch(command="c9"))
    effects = memory.actor.tell(patch(seconds=2.0))
    assert only(effects, Timer).seconds == 2.0
    assert refusal(memory.actor.tell(elapsed("c1"))) == "deadline_exceeded"
    assert memory.state.pending == memory.state.writes == ()


@pytest.mark.rule("D.W.5")
def test_a_cancelled_command_that_waits_is_dropped_and_one_being_written_stays() -> None:
    memory = ready()
    store = memory.begin(patch())
    memory.tell(patch(command="c2"))
    assert memory.tell(cancel("c1"), cancel("unknown")) == ()
    assert memory.tell(cancel("c2")) == (Cancel(RUN, "c2#deadline"),)
    assert memory.state.writes == ()
    assert answers(memory.tell(memory.log.store(store))) == [("c1", "applied")]
    assert memory.actor.idle


def test_a_queue_has_an_end_and_reads_of_what_is_known_do_not_stand_in_it() -> None:
    memory = ready()
    memory.begin(patch(command="first"))
    memory.tell(*(patch(command=f"w{n}") for n in range(LONGEST_QUEUE)))
    assert refusal(memory.tell(patch(command="one-more"))) == "busy"
    assert sent(memory.tell(ask()), ItemsOffered).code is None
    assert sent(memory.tell(ask(load=True)), ItemsOffered).code == "busy"


@pytest.mark.parametrize(
    "message",
    [
        Loaded(run=RUN, token="x", part="working-memory", after=0),
        Conflicted(run=RUN, token="x", part="working-memory"),
        Unstored(run=RUN, token="x", part="working-memory", code="limit"),
        Elapsed(run=RUN, token="x"),
        Fetched(run=RUN, token="x"),
        cancel("x"),
    ],
)
def test_what_nobody_asked_for_changes_nothing(message: AnyMessage) -> None:
    memory = ready()
    memory.begin(patch())
    before = memory.state
    assert memory.tell(message) == ()
    assert memory.state == before


def test_a_write_waits_for_the_load_that_is_under_way() -> None:
    memory = Memory()
    effects = memory.actor.tell(ask(), create(command="c0"))
    load = only(effects, Load)
    effects = memory.actor.tell(memory.log.load(load))
    assert [type(e) for e in effects] == [Send, Store]
    assert not memory.state.pending


def test_one_that_knows_of_more_than_was_read_has_it_read_again() -> None:
    memory = ready()
    other = Memory(memory.log, "other")
    load = only(memory.actor.tell(read(attempt=2)), Load)
    other.write(patch(command="c5"))
    early = memory.log.load(load)
    other.write(patch(command="c6", revision=1))
    memory.actor.tell(ask(seen=memory.log.last[0]))
    effects = memory.actor.tell(early)
    offered = sent(effects + memory.tell(memory.log.load(only(effects, Load))), ItemsOffered)
    assert offered.sequence == memory.log.last[0]


def test_the_fold_of_the_log_is_the_state() -> None:
    memory = ready()
    memory.write(patch())
    goal = WorkingMemoryPatch(
        operation_id="g", expected_revision=1, writer="host", operations=(SetGoal(text="Ship it now."),)
    )
    memory.write(msgspec.structs.replace(patch(command="c2"), patch=goal))
    assert fold_memory_commits(MemoryState(RUN), memory.log.commits) == memory.state.fold


@pytest.mark.rule("D.R.7")
@pytest.mark.parametrize("waits", [False, True])
def test_the_same_command_from_another_address_is_answered_there(waits: bool) -> None:
    memory = ready()
    store = memory.begin(patch("first", command="c5", operation="first") if waits else patch())
    revision = 1 if waits else 0
    if waits:
        memory.tell(patch(revision=revision))
    memory.tell(patch(revision=revision, to=CLIENT + ".other"))
    effects = memory.write(memory.log.store(store))
    assert sent(effects, WorkingMemoryState, CLIENT + ".other").status == "applied"
