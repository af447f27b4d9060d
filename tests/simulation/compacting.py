"""Clients whose runs compact their history: their options, what their functions say, what else they do."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

import msgspec

from contextbus.core.estimate import make_estimator
from contextbus.core.handle import RunHandle
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName, Composition
from contextbus_protocol.chat import ChatMessage, assistant
from contextbus_protocol.commands import (
    ClearHistory,
    CompileStep,
    Recorded,
    ReportStep,
    ResetCompaction,
    StepCompiled,
)
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.values import (
    CompactionOptions,
    OnFailure,
    RetentionPolicy,
    StepOptions,
    Trigger,
    Usage,
)
from tests.simulation import scripts
from tests.simulation.clients import Client
from tests.simulation.world import World

TRIGGERS: Final[tuple[tuple[Trigger, ...], ...]] = (
    (Trigger(kind="messages-exceed", limit=8),),
    (Trigger(kind="messages-exceed", limit=14, keep=RetentionPolicy(keep_last_turns=1)),),
    (Trigger(kind="tokens-exceed", limit=500),),
    (Trigger(kind="tokens-exceed", limit=900),),
    (Trigger(kind="custom"), Trigger(kind="messages-exceed", limit=12)),
    (Trigger(kind="cache-likely-cold", limit=40), Trigger(kind="tokens-exceed", limit=1_500)),
    (Trigger(kind="window-exceeded", ratio=0.13, keep=RetentionPolicy(keep_ratio=0.14)), Trigger(kind="custom")),
    (Trigger(kind="usage-exceeded"), Trigger(kind="tokens-exceed", limit=700)),
)
KEEPS: Final = (
    RetentionPolicy(keep_last_messages=2),
    RetentionPolicy(),
    RetentionPolicy(keep_last_messages=1),
    RetentionPolicy(keep_last_turns=2),
    RetentionPolicy(keep_recent_tokens=120),
    RetentionPolicy(keep_ratio=0.02, keep_last_messages=1),
)
FAILURES: Final[tuple[OnFailure, ...]] = ("stop", "continue", "drop")


def compaction_of(chance: random.Random) -> CompactionOptions:
    """How a run compacts: small targets, so that it happens often."""
    reserves = chance.random() < 0.2
    target = chance.choice((400, 700, 1_200, 150))
    return CompactionOptions(
        triggers=chance.choice(TRIGGERS),
        target_tokens=None if reserves else target,
        target_ratio=0.14 if reserves else None,
        keep=chance.choice(KEEPS),
        summariser="simulated",
        summary_input_tokens=200 if chance.random() < 0.15 else None,
        min_shrink=chance.choice((0.1, 0.1, 0.0, 0.3)),
        on_failure=chance.choice(FAILURES),
        counts=chance.random() < 0.2,
        reserves_output=reserves,
    )


def count_composition(messages: list[ChatMessage], composition: Composition) -> int:
    """What a host that counts takes a candidate for, in tokens: the same candidate gives the same count."""
    estimator = make_estimator()
    start = composition.source_count or 0
    counted = (*composition.replacement, *messages[start : composition.until])
    return 3 + estimator.tokens(sum(estimator.message(message) for message in counted))


class CompactingClient(Client):
    """A client whose run compacts."""

    def __init__(self, world: World, name: str, run: str, steps: int, options: CompactionOptions) -> None:
        super().__init__(world, name, run, steps)
        self.compaction = options
        self.cleared = 0
        self.resets = 0
        self._clearing = False

    # -- the script

    def _next(self) -> None:
        draw = self._random.random()
        if self.left > 0 and self._serial > 2 and self.handle.seen and draw < 0.14:
            self._serial += 1
            if draw < 0.015:
                self._clearing = True
                self._ask(ClearHistory(**self._head()))
            elif draw < 0.04:
                self.resets += 1
                self._ask(ResetCompaction(**self._head()))
            else:
                self.handle = self.handle.append((assistant(self._text()),))
                self._ask(self._append())
            return
        super()._next()

    def _text(self) -> str:
        self._words += 1
        fact = f"INV-{self._random.randrange(10_000, 100_000)} " if self._random.random() < 0.3 else ""
        text = scripts.text_of(self._random, self.name, self._words)
        return f"{text} {fact}" + "and more " * self._random.randrange(30)

    def _messages(self) -> tuple[ChatMessage, ...]:
        messages = super()._messages()
        extra = assistant(self._text()) if self._random.random() < 0.3 else None
        return messages if extra is None else (extra, *messages)

    def _options(self) -> StepOptions:
        options = super()._options()
        draw = self._random.random()
        compaction = self.compaction if draw < 0.9 else compaction_of(self._random) if draw < 0.95 else None
        return msgspec.structs.replace(options, compaction=compaction)

    def _callbacks(self) -> tuple[CallbackName, ...]:
        return (*super()._callbacks(), "compaction-trigger", "count-tokens")

    def _report(self, compiled: StepCompiled) -> ReportStep:
        report = super()._report(compiled)
        used = self._random.randrange(100, 1_500)
        cached = Usage(used, 10, self._random.choice((0, 0, 50)), self._random.choice((0, 40)))
        measured = None if self._random.random() < 0.3 else used + cached.cache_read_tokens
        return msgspec.structs.replace(report, usage=cached, measured=measured)

    # -- answers

    def answer_callback(self, ask: AskCallback) -> None:
        """Answer for the host: triggers mostly say no, counts are those of the messages; some fail or never come."""
        if ask.name not in {"compaction-trigger", "count-tokens"}:
            super().answer_callback(ask)
            return
        answer = CallbackAnswered(run=self.run, token=ask.token, name=ask.name)
        if ask.name == "compaction-trigger":
            answer = msgspec.structs.replace(answer, matches=self._random.random() < 0.3)
        else:
            messages = [e.message for e in self.handle.history if e.message is not None]
            answer = msgspec.structs.replace(
                answer, count=count_composition(messages, ask.composition or Composition())
            )
        delay = self._random.expovariate(800)
        outcomes = [(delay, answer)]
        if self._random.random() < self.world.faults.callback:
            failed = CallbackAnswered(
                run=self.run, token=ask.token, name=ask.name, code="error", origin_type="KeyError"
            )
            wrong = msgspec.structs.replace(answer, name="rewrite-query", text="of another")
            outcomes = self._random.choice(
                (
                    [],
                    [(delay, failed)],
                    [(ask.seconds_left * 2, answer)],
                    [(delay / 2, wrong), (delay, answer), (delay * 2, failed)],
                    [(delay, msgspec.structs.replace(answer, count=-1, matches=None))],
                )
            )
        for after, message in outcomes:
            self.world.at(after, partial(self.world.send, ask.reply_to, message))

    def _take(self, answer: AnyMessage) -> None:
        clearing, self._clearing = self._clearing, False
        if clearing and isinstance(answer, Recorded):
            # nothing of before is in the log any more: what this client has goes with it
            self.cleared += 1
            self.handle = RunHandle(seen=self.handle.seen, seen_memory=self.handle.seen_memory)
            self.compiled = None
        super()._take(answer)

    def _used_again(self, last: CompileStep) -> CompileStep:
        return last if self.cleared else super()._used_again(last)
