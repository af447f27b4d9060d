"""One run without faults that compacts, driven by hand: for what is to happen exactly so."""

from __future__ import annotations

import msgspec

from contextbus_protocol import codec
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.commands import AppendMessages, ReportStep, ResetCompaction
from contextbus_protocol.events import CompactionCompleted, CompactionFailed
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.values import CompactionOptions, OnFailure, RetentionPolicy, Scope, Trigger, Usage
from tests.simulation.clients import read_messages
from tests.simulation.harness import LOG, MODELS, Harness
from tests.simulation.machine_clients import RUN, MachineClient
from tests.simulation.projected import Projected
from tests.simulation.summarisers import Behaviour, texts_of
from tests.simulation.world import NO_FAULTS

OPUS = MODELS[0]


class Compacting:
    """One run without faults that compacts, driven by hand; the plain model checks every commit of it."""

    def __init__(
        self, *, on_failure: OnFailure = "stop", limit: int = 6, target: int = 4_000, shrink: float = 0.1
    ) -> None:
        self.harness = Harness(0, NO_FAULTS, calibrates=False)
        self.world = self.harness.world
        self.ada, self.bob = self.harness.clients
        self.options = CompactionOptions(
            triggers=(Trigger(kind="messages-exceed", limit=limit),),
            target_tokens=target,
            keep=RetentionPolicy(keep_last_messages=2),
            summariser="simulated",
            min_shrink=shrink,
            on_failure=on_failure,
        )

    def say(self, *texts: str, client: MachineClient | None = None) -> None:
        """Have messages stored, the user's and the assistant's in turn."""
        client = client or self.ada
        talk = [(user if place % 2 == 0 else assistant)(text) for place, text in enumerate(texts)]
        client.handle = client.handle.append(talk)
        self.harness.send(client, self.appended(client))

    def appended(self, client: MachineClient) -> AppendMessages:
        return AppendMessages(
            **self.harness.head(client),
            scope=Scope(user_id="ada"),
            estimator=self.harness.estimator,
            history=client.handle.new_messages(),
        )

    def begin(self, *behaviours: Behaviour, seconds: float = 1.0) -> None:
        """Send a step whose summariser takes its requests like that."""
        self.world.behaviours += behaviours
        command = self.harness.step_of(self.ada, OPUS, None, False, 0, 30, self.options)
        self.harness.start(self.ada, msgspec.structs.replace(command, seconds_left=seconds))

    def step(self, *behaviours: Behaviour) -> AnyMessage:
        """One step, and its answer."""
        self.begin(*behaviours)
        self.harness.rest()
        self.world.behaviours = []
        assert self.ada.answer is not None
        return self.ada.answer

    def report(self, status: str = "succeeded") -> None:
        """The call of the last step, without an answer in the history."""
        assert self.ada.compiled is not None
        step = self.ada.compiled.step
        report = ReportStep(**self.harness.head(self.ada), step=step, status=status, usage=Usage(10, 1))  # type: ignore[arg-type]  # the three words are given as texts
        self.harness.send(self.ada, report)

    def reset(self) -> None:
        """The host ends a pause."""
        self.harness.send(self.ada, ResetCompaction(**self.harness.head(self.ada)))

    def spent(self) -> int:
        """The input tokens of every summary that arrived in time."""
        asked = [s for s in self.world.summaries if s.over < s.asked + s.request.seconds_left]
        return sum(sum(map(len, texts_of(s.request.messages))) // 4 + 40 for s in asked)

    def told(self) -> int:
        """The input tokens of summaries that the log tells of."""
        ends: list[CompactionCompleted | CompactionFailed] = [*self.completed(), *self.harness.events(CompactionFailed)]
        return sum(0 if e.usage is None else e.usage.input_tokens for e in ends)

    @property
    def bought(self) -> int:
        """How many summaries were asked for."""
        return len(self.world.summaries)

    def failures(self) -> list[tuple[str, str, str | None]]:
        """Phase, reason and code of every failure in the log."""
        return [(e.phase, e.reason, e.origin_code) for e in self.harness.events(CompactionFailed)]

    def completed(self) -> list[CompactionCompleted]:
        return self.harness.events(CompactionCompleted)

    def sent(self) -> list[ChatMessage]:
        """What the client would send: from the log's events and blobs alone."""
        plain = Projected(lambda digest: self.world.server.blobs[RUN, digest])
        for _, data in self.world.server.records(LOG):
            for event in codec.decode_commit(data).events:
                plain.fold(event)
        return [s.message for s in plain.request() if s.message is not None]

    def stored(self) -> list[ChatMessage]:
        """The source messages that the log holds."""
        return read_messages(self.world, RUN)[0]


def long_talk(count: int, word: str = "talk") -> list[str]:
    return [f"{word} {number}: " + "a word or two " * 20 for number in range(count)]
