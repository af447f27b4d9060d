"""A run under faults that Hypothesis draws, against the plain model: ``python -m tests.simulation.machine``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from contextbus.core.handle import RunHandle
from contextbus_protocol.chat import ChatMessage, assistant, system, user
from contextbus_protocol.commands import (
    AppendMessages,
    ClearHistory,
    CreateWorkingMemory,
    OverflowStep,
    PatchWorkingMemory,
    ReportStep,
    RequestRefresh,
    ResetCompaction,
)
from contextbus_protocol.events import StepCompiled as StepEvent
from contextbus_protocol.values import CompactionOptions, Model, OnFailure, RetentionPolicy, Scope, Trigger, Usage
from contextbus_protocol.working_memory import (
    AddHypothesis,
    AddObservation,
    AnyOperation,
    SetActiveTask,
    SetGoal,
    WorkingMemoryPatch,
)
from tests.simulation import scripts
from tests.simulation.clients import read_messages
from tests.simulation.harness import MODELS, RUN, TOOLS, Harness
from tests.simulation.sources import FORGETTING, SOURCES
from tests.simulation.summarisers import BEHAVIOURS, Behaviour
from tests.simulation.world import Faults

PHASES = (Phase.generate, Phase.shrink)
WHO = st.integers(0, 1)
MODEL = st.sampled_from((MODELS[0],) * 4 + (MODELS[1],) * 4 + MODELS[2:])
TOOL = st.sampled_from(TOOLS[:1] * 5 + TOOLS)
SOURCE_COUNT = st.sampled_from((len(SOURCES),) * 6 + (2, 0))
PASSES = st.sampled_from((30, 30, 30, 2))
BEHAVIOUR = st.sampled_from(("good",) * 12 + BEHAVIOURS)
FAILURE = st.sampled_from(("stop", "continue", "drop"))
MESSAGES = st.sampled_from(("none", "user", "user", "user", "blank", "tool", "skill", "skill-failed"))


class RunMachine(RuleBasedStateMachine):
    """One run, two clients, and what they and the world may do."""

    steps: ClassVar[int] = 0
    compactions: ClassVar[int] = 0
    examples: ClassVar[int] = 0

    @initialize(
        seed=st.integers(0, 2**16),
        drop=st.sampled_from((0.0, 0.0, 0.02)),
        kill=st.sampled_from((0.0, 0.0, 0.01)),
        source=st.sampled_from((0.0, 0.1, 0.3)),
        replicated=st.booleans(),
        calibrates=st.booleans(),
        memory=st.booleans(),
    )
    def begin(
        self, seed: int, drop: float, kill: float, source: float, replicated: bool, calibrates: bool, memory: bool
    ) -> None:
        """A new world."""
        faults = Faults(
            drop=drop,
            repeat=drop,
            delay=drop,
            lost_request=drop,
            lost_reply=drop,
            kill=kill,
            stale=0.05 if drop else 0.0,
            source=source,
            replicated=replicated,
        )
        self.harness = Harness(seed, faults, calibrates=calibrates)
        self.world = self.harness.world
        type(self).examples += 1
        if memory:
            self.create()

    def create(self) -> None:
        """The working memory exists from the beginning."""
        client = self.harness.clients[0]
        command = CreateWorkingMemory(
            **self.harness.head(client),
            scope="acme",
            goal="Deploy the billing service.",
            constraints=("No deploys on Friday.",),
            tasks=scripts.tasks(),
        )
        self.harness.send(client, command)

    def messages(self, kind: str) -> tuple[ChatMessage, ...]:
        """What comes before a step."""
        text = self.harness.text()
        match kind:
            case "none":
                return ()
            case "blank":
                return (user("  "),)
            case "tool":
                return scripts.look(f"call-{self.harness.words}", text)
            case "skill" | "skill-failed":
                skill = scripts.LOADED[self.harness.words % len(scripts.LOADED)]
                return scripts.load_skill(f"call-{self.harness.words}", skill, failed=kind == "skill-failed")
            case _:
                return (user(text),)

    # -- rules of a run

    @rule(who=WHO, kind=MESSAGES, model=MODEL, tools=TOOL, refresh=st.booleans(), sources=SOURCE_COUNT, passes=PASSES)
    def step(
        self, who: int, kind: str, model: Model, tools: str | None, refresh: bool, sources: int, passes: int
    ) -> None:
        """A client's model step."""
        client = self.harness.clients[who]
        client.handle = client.handle.append(self.messages(kind))
        self.harness.send(client, self.harness.step_of(client, model, tools, refresh, sources, passes))

    @rule(
        who=WHO,
        kind=MESSAGES,
        model=MODEL,
        limit=st.sampled_from((2, 4, 7)),
        most=st.sampled_from((4_000, 4_000, 900, 300, 10)),
        keep=st.integers(1, 4),
        shrink=st.sampled_from((0.0, 0.0, 0.1)),
        on_failure=FAILURE,
        behaviour=BEHAVIOUR,
        reports=st.booleans(),
    )
    def compact(
        self,
        who: int,
        kind: str,
        model: Model,
        limit: int,
        most: int,
        keep: int,
        shrink: float,
        on_failure: OnFailure,
        behaviour: Behaviour,
        reports: bool,
    ) -> None:
        """A step that compacts its history first, with a summariser that behaves in a chosen way."""
        client = self.harness.clients[who]
        client.handle = client.handle.append(self.messages(kind))
        options = CompactionOptions(
            triggers=(Trigger(kind="messages-exceed", limit=limit),),
            target_tokens=most,
            keep=RetentionPolicy(keep_last_messages=keep),
            summariser="simulated",
            min_shrink=shrink,
            on_failure=on_failure,
        )
        self.world.behaviours = [behaviour]
        self.harness.send(client, self.harness.step_of(client, model, None, False, len(SOURCES), 30, options))
        self.world.behaviours = []
        if reports:
            self.report(who, "succeeded")

    @rule(who=WHO, back=st.integers(1, 12), compiles=st.booleans(), model=MODEL)
    def rewind(self, who: int, back: int, compiles: bool, model: Model) -> None:
        """The host goes back, perhaps behind the boundary of a checkpoint, and forward again (C.L.4, C.L.5)."""
        client = self.harness.clients[who]
        known = [e.message for e in client.handle.history if e.message is not None]
        client.handle = client.handle.hand_over(known[: max(0, len(known) - back)])
        if compiles:
            self.harness.send(client, self.harness.step_of(client, model, None, False, len(SOURCES), 30))
        else:
            self.store(who)
        client.handle = client.handle.hand_over(known)
        self.store(who)

    def store(self, who: int) -> None:
        """The client's messages, without a step."""
        client = self.harness.clients[who]
        command = AppendMessages(
            **self.harness.head(client),
            scope=Scope(user_id="ada"),
            estimator=self.harness.estimator,
            history=client.handle.new_messages(),
        )
        self.harness.send(client, command)

    @rule(who=WHO, topic=st.sampled_from((False, False, False, True)))
    def reset(self, who: int, topic: bool) -> None:
        """The host ends a pause (C.X.5), or begins a new topic (P.J.9): then both clients start from the log."""
        client = self.harness.clients[who]
        if not topic:
            self.harness.send(client, ResetCompaction(**self.harness.head(client)))
            return
        self.harness.send(client, ClearHistory(**self.harness.head(client)))
        for other in self.harness.clients:
            messages, sequence = read_messages(self.world, RUN)
            other.handle = RunHandle(seen_memory=other.handle.seen_memory).rebase(messages, sequence)
            other.compiled = None

    @rule(
        who=WHO,
        kinds=st.lists(MESSAGES, min_size=1, max_size=5),
        model=MODEL,
        behaviour=BEHAVIOUR,
        on_failure=FAILURE,
        limit=st.sampled_from((2, 2, 5)),
    )
    def talk(
        self, who: int, kinds: list[str], model: Model, behaviour: Behaviour, on_failure: OnFailure, limit: int
    ) -> None:
        """Several turns in a row, each with a step and its report, then one that compacts."""
        for kind in kinds:
            self.turn(who, kind, model, succeeded=True)
        self.compact(who, "user", model, limit, 4_000, 1, 0.0, on_failure, behaviour, reports=True)

    @rule(who=WHO, kind=MESSAGES, model=MODEL, succeeded=st.sampled_from((True, True, True, False)))
    def turn(self, who: int, kind: str, model: Model, succeeded: bool) -> None:
        """A step and its report, as hosts do it most of the time."""
        self.step(who, kind, model, None, False, len(SOURCES), 30)
        self.report(who, "succeeded" if succeeded else "failed")

    @rule(kinds=st.tuples(MESSAGES, MESSAGES), model=MODEL, refresh=st.booleans())
    def race(self, kinds: tuple[str, str], model: Model, refresh: bool) -> None:
        """Both clients step at once."""
        self.harness.alone = False
        for client, kind in zip(self.harness.clients, kinds, strict=True):
            client.handle = client.handle.append(self.messages(kind))
            command = self.harness.step_of(client, model, None, refresh, len(SOURCES), 30)
            self.harness.start(client, command)
        self.harness.rest()
        self.harness.alone = True

    @rule(who=WHO, status=st.sampled_from(("succeeded", "succeeded", "failed", "overflow", "cancelled")))
    def report(self, who: int, status: str) -> None:
        """How the model call went."""
        client = self.harness.clients[who]
        if client.compiled is None:
            return
        succeeded = status == "succeeded"
        if succeeded:
            client.handle = client.handle.append((scripts.answer_of(self.harness.text()),))
        command = ReportStep(
            **self.harness.head(client),
            step=client.compiled.step,
            status=status,  # type: ignore[arg-type]
            history=client.handle.new_messages() if succeeded else None,
            usage=Usage(100 + 37 * (self.harness.words % 60), 10),
        )
        client.compiled = None
        self.harness.send(client, command)

    @rule(who=WHO, limit=st.sampled_from((None, None, 2_000, 100)), behind=st.sampled_from((0, 0, 0, 1)))
    def overflow(self, who: int, limit: int | None, behind: int) -> None:
        """The request was too large."""
        client, last = self.harness.clients[who], self.harness.model.last
        step = max(0, (last.step if last is not None else 0) - behind)
        self.harness.send(client, OverflowStep(**self.harness.head(client), step=step, input_tokens=limit))

    @rule(who=WHO)
    def refresh(self, who: int) -> None:
        """The host asks for a retrieval at the next step."""
        client = self.harness.clients[who]
        self.harness.send(client, RequestRefresh(**self.harness.head(client)))

    @rule(who=WHO, with_system=st.booleans())
    def append(self, who: int, with_system: bool) -> None:
        """Messages without a step."""
        client = self.harness.clients[who]
        message = system if with_system and not client.handle.history.count else assistant
        client.handle = client.handle.append((message(self.harness.text()),))
        self.store(who)

    @rule(who=WHO, keep=st.integers(0, 12), behind=st.booleans(), model=MODEL, outcome=st.booleans())
    def rewrite(self, who: int, keep: int, behind: bool, model: Model, outcome: bool) -> None:
        """The host compacts its history, or edits it, and goes on with a step or a report."""
        client = self.harness.clients[who]
        known = [e.message for e in client.handle.history if e.message is not None]
        keep = max(0, len(known) - keep)
        rest = known[keep + 1 :] if behind else []
        client.handle = client.handle.hand_over([*known[:keep], user(self.harness.text()), *rest])
        if outcome and client.compiled is not None:
            self.report(who, "succeeded")
        else:
            self.harness.send(client, self.harness.step_of(client, model, None, False, len(SOURCES), 30))

    @rule(who=WHO, which=st.integers(0, 5))
    def patch(self, who: int, which: int) -> None:
        """A patch of the working memory."""
        client, text = self.harness.clients[who], self.harness.text()
        operations: tuple[AnyOperation, ...] = (
            AddObservation(text=text),
            AddHypothesis(text=text),
            SetGoal(text=text),
            SetActiveTask(id="a"),
            SetActiveTask(id="b"),
            SetActiveTask(id=None),
        )
        head = self.harness.head(client)
        patch = WorkingMemoryPatch(
            operation_id=head["command"],
            expected_revision=client.revision,
            writer="host",
            operations=(operations[which],),
        )
        self.harness.send(client, PatchWorkingMemory(**head, patch=patch))

    @rule(who=WHO)
    def repeat(self, who: int) -> None:
        """The last command once more, with nothing changed: it has no second effect."""
        client = self.harness.clients[who]
        mine = [c for c, _ in self.harness.sent.values() if c.command.startswith(f"{RUN}/{client.name}/")]
        if mine:
            self.harness.again(client, mine[-1])

    # -- rules of the world

    @rule(node=st.integers(0, 7))
    def restart(self, node: int) -> None:
        """An actor starts again with nothing."""
        self.world.kill(list(self.world.nodes.values())[node])

    @rule(deliveries=st.integers(0, 12), effects=st.integers(0, 3))
    def doom(self, deliveries: int, effects: int) -> None:
        """An actor dies in the middle of what comes next."""
        self.world.doom(deliveries, effects)

    @rule(who=WHO)
    def reload(self, who: int) -> None:
        """A client starts again from the log."""
        client = self.harness.clients[who]
        client.handle = RunHandle().rebase(*read_messages(self.world, RUN))
        client.compiled = None

    @rule(which=st.integers(0, 40), during=st.sampled_from((None, 0, 1)), model=MODEL)
    def forget(self, which: int, during: int | None, model: Model) -> None:
        """A record is forgotten, perhaps while a step is under way."""
        known = self.world.records.known(FORGETTING)
        if not known:
            return
        if during is not None:
            client = self.harness.clients[during]
            client.handle = client.handle.append((user(self.harness.text()),))
            self.harness.alone = False
            self.harness.start(client, self.harness.step_of(client, model, None, True, len(SOURCES), 30))
        record = known[which % len(known)]
        self.world.at(0.001 * (which % 5), lambda: self.harness.forgetter.forget(FORGETTING, record))
        self.harness.rest()
        self.harness.alone = True

    @rule(behind=st.integers(0, 4))
    def lose(self, behind: int) -> None:
        """Retention takes the package of a step."""
        packages = [e.package for e in self.harness.events(StepEvent)]
        if behind < len(packages):
            self.world.server.erase(RUN, packages[-1 - behind])

    @rule(seconds=st.sampled_from((0.5, 2.5)))
    def outage(self, seconds: float) -> None:
        """The server does not answer for a while."""
        self.world.take_server_down(seconds)

    def teardown(self) -> None:
        """What must hold in the end."""
        if hasattr(self, "harness"):
            type(self).steps += self.harness.steps
            type(self).compactions += self.harness.compactions
            self.harness.finish()


def main() -> int:
    """Run the machine and print how many examples and steps were checked."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.machine", description=main.__doc__)
    parser.add_argument("--examples", type=int, default=2_000, help="examples (default: 2000)")
    parser.add_argument("--rules", type=int, default=40, help="the most rules of an example (default: 40)")
    options = parser.parse_args()
    started = time.perf_counter()
    failures = 0
    try:
        run_state_machine_as_test(RunMachine, settings=settings_of(options.examples, options.rules))
    except Exception:  # whatever fails is a finding
        failures = 1
        traceback.print_exc()
    seconds = time.perf_counter() - started
    done = f"{RunMachine.examples} examples, {RunMachine.steps} compiled steps and {RunMachine.compactions} summaries"
    done += f" checked, {seconds:.0f} s"
    sys.stdout.write(f"{done}, failures: {failures or 'none'}\n")
    return 1 if failures else 0


def settings_of(examples: int, rules: int) -> settings:
    """Settings of a run of the machine."""
    return settings(
        max_examples=examples,
        stateful_step_count=rules,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=PHASES,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
    )


if __name__ == "__main__":
    sys.exit(main())
