"""The rules of the state machine that are of steps, histories and the world."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from contextbus.core.handle import RunHandle
from contextbus_protocol.chat import ChatMessage, assistant, system, user
from contextbus_protocol.commands import (
    AppendMessages,
    CreateWorkingMemory,
    OverflowStep,
    PatchWorkingMemory,
    ReportStep,
    RequestRefresh,
)
from contextbus_protocol.events import StepCompiled as StepEvent
from contextbus_protocol.values import Model, Scope, Usage
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
from tests.simulation.harness import MODELS, TOOLS, Harness
from tests.simulation.machine_clients import RUN
from tests.simulation.sources import FORGETTING, SOURCES
from tests.simulation.world import Faults

WHO = st.integers(0, 1)
MODEL = st.sampled_from((MODELS[0],) * 4 + (MODELS[1],) * 4 + MODELS[2:])
TOOL = st.sampled_from(TOOLS[:1] * 5 + TOOLS)
SOURCE_COUNT = st.sampled_from((len(SOURCES),) * 6 + (2, 0))
PASSES = st.sampled_from((30, 30, 30, 2))
MESSAGES = st.sampled_from(("none", "user", "user", "user", "blank", "tool", "skill", "skill-failed"))


class RunRules(RuleBasedStateMachine):
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
            status=status,  # type: ignore[arg-type]  # one of the words
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
