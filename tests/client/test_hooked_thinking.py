"""Thinking in a history that a hook gave, for a model that binds it to what stood before it (D.F.20, P.E.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.client.scripted import SCOPE, Scripted, bus_with
from tests.client.test_kept_tails import LOOSE, OPUS, hidden, take, thoughts

import contextbus.client as contextbus
from contextbus.client import PreparedStep, StepContext
from contextbus_protocol.chat import ChatMessage, Reasoning, assistant, system, user
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model

History = tuple[ChatMessage, ...]


class Shortening:
    """Hooks that give ``change`` of the history while it is set."""

    def __init__(self) -> None:
        self.change: Callable[[History], History] | None = None

    def transform(self, messages: History) -> History:
        """As ``transform_context``."""
        return messages if self.change is None else self.change(messages)

    def prepare(self, step: StepContext) -> PreparedStep | None:
        """As ``prepare_step``."""
        return None if self.change is None else PreparedStep(messages=self.change(step.messages))

    def options(self, name: str) -> dict[str, Any]:
        """The option of a run."""
        return {name: self.transform if name == "transform_context" else self.prepare}


HOOKS = ["transform_context", "prepare_step"]


@pytest.mark.rule("D.F.20", "P.E.5", "P.D.4", "D.W.7")
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize(("model", "kept"), [(OPUS, []), (LOOSE, ["sig-1"])])
async def test_no_thinking_goes_out_behind_what_a_hook_dropped(name: str, model: Model, kept: list[str]) -> None:
    hook = Shortening()
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE, **hook.options(name))
        for number in range(2):
            assert thoughts(await take(run, number, model=model)) == [f"sig-{n}" for n in range(number)]
        hook.change = lambda messages: messages[2:]
        step = await take(run, 2, model=model)
        assert (thoughts(step), hidden(step)) == (kept, 1 - len(kept))
        hook.change = None
        step = await take(run, 3, model=model)  # what the given messages were thought over stands behind others now
        bound = model == OPUS
        assert (thoughts(step), hidden(step)) == (["sig-0", "sig-1"] + ([] if bound else ["sig-2"]), int(bound))
        assert thoughts(await take(run, 4, model=model))[-1] == "sig-3"
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.20", "P.E.5")
@pytest.mark.parametrize("name", HOOKS)
async def test_thinking_stays_before_the_first_difference(name: str) -> None:
    hook = Shortening()
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE, **hook.options(name))
        for number in range(3):
            await take(run, number)
        hook.change = lambda messages: (*messages[:3], assistant("Rewritten."), *messages[4:])
        step = await take(run, 3)
        assert (thoughts(step), hidden(step)) == (["sig-0"], 1)
        hook.change = lambda messages: (*messages, user("One more thing."))
        step = await take(run, 4)
        assert (thoughts(step), hidden(step)) == (["sig-0", "sig-1", "sig-2"], 1)  # the fourth was thought over others
        hook.change = lambda messages: (user("Before."), *messages)
        step = await take(run, 5)
        assert (thoughts(step), hidden(step)) == ([], 5)
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.20", "P.D.4")
@pytest.mark.parametrize("name", HOOKS)
async def test_an_unchanged_history_keeps_its_thinking(name: str) -> None:
    hook = Shortening()
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE, **hook.options(name))
        for number in range(2):
            await take(run, number)
        hook.change = tuple
        step = await take(run, 2)
        assert (thoughts(step), hidden(step)) == (["sig-0", "sig-1"], 0)


@pytest.mark.rule("D.F.20", "D.F.9", "P.D.4")
async def test_blocks_and_tails_are_part_of_what_is_compared() -> None:
    hook, rag = Shortening(), Scripted([contextbus.candidate("0", "Record.", 0.5)])
    async with bus_with(rag) as bus:
        for name, kept in (("transform_context", ["sig-0", "sig-1"]), ("prepare_step", [])):
            hook.change = None
            run = await bus.run(scope=SCOPE, sources=["rag"], **hook.options(name))
            await run.working_memory.create(goal="Deploy.")
            for number in range(2):
                await take(run, number)
            hook.change = lambda messages: (*messages, user("One more thing."))
            step = await take(run, 2)  # prepare_step gave it without the block that stood there
            assert (thoughts(step), hidden(step)) == (kept, 2 - len(kept))
            assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.F.20", "P.E.5")
async def test_what_was_stale_in_the_history_is_stale_in_what_a_hook_gives() -> None:
    hook = Shortening()
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE, **hook.options("transform_context"))
        for number in range(2):
            await take(run, number)
        tools = [{"name": "deploy", "input_schema": {"type": "object"}}]
        hook.change = lambda messages: (*messages, user("One more thing."))
        step = await take(run, 2, tools=tools)
        assert (thoughts(step), hidden(step)) == ([], 2)
        assert step.manifest.cache_prefix_cause == "tools"
        (extra,) = [m for m in run.messages if isinstance(m, ChatMessage) and "Answer 1" in str(m)]
        assert any(isinstance(part, Reasoning) for part in extra.content)  # the history itself keeps it


@pytest.mark.rule("D.F.20", "D.W.1", "D.R.7", "P.A.3")
@pytest.mark.parametrize("name", HOOKS)
async def test_another_client_sends_the_same_bytes_of_a_given_history(name: str) -> None:
    hook = Shortening()
    prompt = PromptParts(system=(system("You are terse."),), state=(user("<dynamic_state>a</dynamic_state>"),))
    async with bus_with(Scripted([contextbus.candidate("0", "Record.", 0.5)])) as bus:
        one = await bus.run("r", scope=SCOPE, sources=["rag"], **hook.options(name))
        for number in range(3):
            await take(one, number, prompt=prompt)
        sent: list[list[str]] = []
        changes: list[Callable[[History], History]] = [
            lambda m: m,
            lambda m: (*m[:-1], assistant("Hm."), *m[-1:]),
            lambda m: m[2:],
        ]
        for change in changes:
            hook.change = change
            one.append(user("Last?"))
            step = await one.before_model_call(model=OPUS, prompt=prompt)
            other = await bus.run("r", scope=SCOPE, sources=["rag"])
            again = await other.before_model_call(model=OPUS, prompt=prompt)
            assert (again.stored, again.step) == (True, step.step)
            assert again.payload("anthropic").json() == step.payload("anthropic").json()
            sent.append(thoughts(again))
        everything = ["sig-0", "sig-1", "sig-2"]
        assert sent == ([everything, everything, []] if name == "transform_context" else [[], [], []])
