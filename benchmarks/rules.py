"""A run's compile with the rules alone: no bus, no log, no store and no encoding for them.

What client, selection and placement do of a step is called here as the functions that they call, in their order.  The
package is not encoded and nothing is digested but messages: that is for store and log, and part of a whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from contextbus.client.compiled import CompiledStep
from contextbus.client.given import GivenMessage, read_given
from contextbus.client.given_history import GivenHistory
from contextbus.client.own_blocks import OwnBlocks
from contextbus.client.rendered import BlocksInPlace, RenderedHistory
from contextbus.core.estimate import make_estimator
from contextbus.core.handle import RunHandle
from contextbus.core.history import Bodies
from contextbus.core.new_messages import take_messages
from contextbus.core.payload import Payload
from contextbus.core.placement import place
from contextbus.core.run_state import RunState
from contextbus.core.step import decide_step, plan_step
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.values import EstimatorSpec, Model, Scope, StepOptions

TOKENIZER: Final = "cl100k_base"
MODEL: Final = Model("anthropic", "claude-opus-4-6", 10_000_000, 8_000)
SCOPE: Final = Scope(user_id="ada")
OPTIONS: Final = StepOptions(scope=SCOPE, model=MODEL, estimator=EstimatorSpec("tokenizer", TOKENIZER))
_NO_BLOCKS: Final = BlocksInPlace()

Tokenizers = Mapping[str, Callable[[str], int]]


class RulesRun:
    """One run, compiled by the rules alone.

    Args:
        tokenizers: holds the tokenizer that counts; each message is counted once.
    """

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self._handle: RunHandle = RunHandle()
        self._state: RunState = RunState("run", scope=SCOPE, estimator=OPTIONS.estimator)
        self._rendered: RenderedHistory = RenderedHistory(self._handle.history, _NO_BLOCKS)
        self._own = OwnBlocks()
        self._given = GivenHistory()
        self._step: int = 0
        self._mark: tuple[RunHandle, RunState, RenderedHistory, int] = (self._handle, self._state, self._rendered, 0)

    def append(self, *messages: ChatMessage) -> None:
        """Add what is new."""
        self._handle = self._handle.append(read_given(messages))

    def hand_over(self, messages: Sequence[GivenMessage]) -> None:
        """Take a whole list as the history."""
        self._handle = self._given.hand_over(self._handle, messages, self._own)

    def compile(self) -> Payload:
        """The next step and its payload: count, plan, select, place and render."""
        self._step += 1
        estimator = make_estimator(OPTIONS.estimator, self._tokenizers)
        after, history = take_messages(self._state, self._handle.new_messages(), SCOPE, estimator)
        plan = plan_step(
            after,
            step=self._step,
            options=OPTIONS,
            host_request=False,
            user_text=self._handle.history.user_text,
            snapshot=None,
            estimator=estimator,
        )
        decision = decide_step(after, plan, options=OPTIONS, results=(), snapshot=None, estimator=estimator)
        package = place(decision, (), None, plan.query)
        self._state = after
        self._handle = self._handle.acknowledge(self._step, history.count, history.chain)
        self._rendered = RenderedHistory(self._handle.history, _NO_BLOCKS, self._rendered)
        return CompiledStep(
            run=self._state.run,
            step=self._step,
            command="",
            sequence=self._step,
            commit="",
            reference="",
            text="",
            package=package,
            model=MODEL,
            histories=self._rendered,
        ).payload("anthropic")

    def mark(self) -> None:
        """Keep the present state to come back to."""
        self._mark = (self._handle, self._state, self._rendered, self._step)

    def reset(self) -> None:
        """Come back to the state that was kept.

        The list of bodies that later versions of the history share grew meanwhile; this one gets its own, as it has
        where nobody came back.  What is known of a list that was handed over stays, and is compared again.
        """
        handle, self._state, self._rendered, self._step = self._mark
        history = handle.history
        if history.bodies is not None:
            bodies = Bodies(history.bodies.messages[: history.count])
            handle = msgspec.structs.replace(handle, history=msgspec.structs.replace(history, bodies=bodies))
        self._handle = handle
