"""Hooks in a run that others change, that compacts, overflows or begins anew (P.D, D.W.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.compacting_runs import SMALL, Writing, bus_writing, talk
from tests.client.forgetting import forget
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted, bus_with, sent, text_in
from tests.client.test_kept_tails import request, take

import contextbus.client as contextbus
from contextbus.client import CompileContext, Window
from contextbus.client.callbacks import Callbacks
from contextbus.client.request_view import RequestView
from contextbus.client.step_hooks import HookFunctions, StepHooks
from contextbus.core.history import SourceHistory
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, HistoryState
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.prompt import PromptParts

History = tuple[ChatMessage, ...]
CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])
RULES = PromptParts(guardrails=(user("Answer inside <answer>."),))


class Hooks:
    """Both hooks: what they saw, and what they make of it."""

    def __init__(self) -> None:
        self.before_saw: list[History] = []
        self.transform_saw: list[History] = []

    def before(self, context: CompileContext) -> str:
        """As ``before_compile``."""
        self.before_saw.append(context.history)
        return f"snippet {len(self.before_saw)}"

    def transform(self, messages: History) -> History:
        """As ``transform_context``: another first message, so that each request is a given one."""
        self.transform_saw.append(messages)
        return (user("Changed."), *messages[1:])

    @property
    def options(self) -> dict[str, Any]:
        """The options of a run."""
        return {"before_compile": self.before, "transform_context": self.transform}


def contents(step: contextbus.CompiledStep) -> list[str]:
    return [m["content"] for m in sent(step)]


async def steps_of(bus: contextbus.ContextBus, run: contextbus.Run) -> list[StepCompiled]:
    return [e for c in (await bus.log(run.id)).commits for e in c.commit.events if isinstance(e, StepCompiled)]


@pytest.mark.rule("P.D.4", "D.J.4", "D.J.6")
@pytest.mark.parametrize("restarted", [False, True])
async def test_after_a_forget_no_block_of_before_is_put_among_what_is_given(*, restarted: bool) -> None:
    hooks, rag = Hooks(), Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], **hooks.options)
        step = await run.before_model_call([user("How?")], model=MODEL)
        await run.after_model_call(DONE)
        assert any("green CI" in text for text in contents(step))
        run.append(user("And?"))
        rag.answer = []
        step = await run.before_model_call(model=MODEL)
        assert any("green CI" in text for text in contents(step))
        await run.after_model_call(DONE)
        await forget(bus, "r", "0")
        if restarted:
            run = await bus.run("r", scope=SCOPE, sources=["rag"], **hooks.options)
            await run.load()
        run.append(user("More?"))
        step = await run.before_model_call(model=MODEL)
        assert not any("green CI" in text for text in contents(step))
        assert [m for m in hooks.transform_saw[-1] if "<retrieved" in text_in(m)] == []
        output = (await bus.blobs(await bus.log("r")))[(await steps_of(bus, run))[-1].package]
        assert b"green CI" not in output
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.D.4", "P.J.2", "D.R.3")
async def test_hooks_run_behind_a_compaction_and_see_its_summary() -> None:
    hooks = Hooks()
    async with bus_writing(Writing("All was said.")) as bus:
        options: dict[str, Any] = {"estimator": CHARACTERS, "compaction": Window(summariser="writing")}
        run = await bus.run("r", scope=SCOPE, **options, **hooks.options)
        step = await run.before_model_call(talk(20), model=SMALL)
        assert (len(hooks.before_saw), len(hooks.transform_saw)) == (1, 1)
        for saw in (hooks.before_saw[0], hooks.transform_saw[0]):
            assert "All was said." in text_in(saw[0])
            assert text_in(saw[-1]) == "And now?"
            assert len(saw) < 41
        assert contents(step)[0] == "Changed."
        assert "And now?" in contents(step)
        assert "snippet 1" in contents(step)[-1]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.D.2", "D.I.1")
async def test_a_step_that_is_compiled_again_for_less_keeps_what_the_hooks_gave_and_asks_them_nothing() -> None:
    hooks = Hooks()
    big = contextbus.candidate("big", "word " * 400, 0.95)
    async with bus_with(Scripted([big, CI])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], **hooks.options)
        first = await run.before_model_call([user("How?"), assistant("So."), user("And?")], model=MODEL, prompt=RULES)
        step = await run.on_overflow(first.manifest.budget.used_tokens + 700)
        assert (len(hooks.before_saw), len(hooks.transform_saw)) == (1, 1)
        told, again = contents(first), contents(step)
        assert (again[:3], again[4:]) == (told[:3], told[4:])
        assert "word" in told[3]
        assert "word" not in again[3]
        assert ("snippet 1" in again[4], again[5]) == (True, "Answer inside <answer>.")
        facts = await steps_of(bus, run)
        assert facts[0].prepared == facts[1].prepared
        assert facts[0].prompt == facts[1].prompt
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.D.2", "D.W.4", "D.W.1", "D.R.7")
async def test_a_client_that_begins_anew_gets_what_was_recorded_and_the_next_step_asks_its_own() -> None:
    hooks, others = Hooks(), Hooks()
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], **hooks.options)
        step = await run.before_model_call([user("How?")], model=MODEL, prompt=RULES)
        other = await bus.run("r", scope=SCOPE, sources=["rag"], **others.options)
        again = await other.before_model_call(model=MODEL, prompt=RULES)
        assert again.stored
        assert contents(again) == contents(step)
        assert others.before_saw == others.transform_saw == []
        await other.after_model_call(DONE)
        other.append(user("More?"))
        later = await other.before_model_call(model=MODEL, prompt=RULES)
        assert others.transform_saw == [(user("How?"), *DONE.messages, user("More?"))]
        assert others.before_saw == others.transform_saw
        block = text_in(step.messages_of("append")[0])
        # the message that the block stood behind is gone
        assert contents(later)[:4] == [block, "Changed.", "Run the pipeline.", "More?"]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.D.4", "D.F.9", "D.F.20")
async def test_on_a_bound_model_what_before_compile_gave_stays_and_is_no_history_of_the_hooks() -> None:
    hooks = Hooks()
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE, before_compile=hooks.before, transform_context=lambda m: m)
        for number in range(3):
            step = await take(run, number, prompt=RULES)
            texts = str(request(step))
            assert [texts.count(f"snippet {n}") for n in (1, 2, 3)] == [int(n <= number + 1) for n in (1, 2, 3)]
            assert not step.manifest.cache_prefix_changed
        assert not any("snippet" in str(saw) for saw in hooks.before_saw)
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.W.4", "D.F.19", "P.D.4")
async def test_of_another_history_a_hook_is_asked_anew_and_of_the_same_once() -> None:
    views: list[HistoryState | None] = []

    async def read(state: HistoryState | None) -> RequestView:
        views.append(state)
        assert state is not None
        history = SourceHistory().append([user(str(n)) for n in range(state.count)], (1 for _ in range(state.count)))
        return RequestView(history)

    hooks = Hooks()
    async with bus_with() as bus:
        functions = HookFunctions(before_compile=hooks.before, transform_context=hooks.transform)
        callbacks = Callbacks(bus.host, "r", StepHooks(model=MODEL, functions=functions).answerers(), read)
        answers: list[CallbackAnswered] = []
        for count, sequence in ((1, 3), (1, 6), (2, 9)):  # another commit, and then another message
            for name in callbacks.names:
                address, future = bus.host.reply_address()
                history = HistoryState(count=count, chain=f"of {count}", sequence=sequence)
                ask = AskCallback(
                    run="r",
                    command="c",
                    token="t",
                    reply_to=address,
                    name=name,
                    step=0,
                    seconds_left=5.0,
                    history=history,
                )
                callbacks.take(ask)
                answer = await future
                assert isinstance(answer, CallbackAnswered)
                answers.append(answer)
        callbacks.close()
    assert [len(saw) for saw in hooks.transform_saw] == [1, 2]
    assert [a.text for a in answers[::2]] == ["snippet 1", "snippet 1", "snippet 2"]
    assert [a.messages for a in answers[1::2]] == [
        (user("Changed."),),
        (user("Changed."),),
        (user("Changed."), user("1")),
    ]


@pytest.mark.rule("D.F.19", "P.D.4", "D.W.1")
async def test_what_another_client_added_is_seen_by_the_hooks_and_sent() -> None:
    hooks = Hooks()
    async with bus_with(Scripted([CI])) as bus:
        one = await bus.run("r", scope=SCOPE, sources=["rag"], **hooks.options)
        await one.before_model_call([user("How?")], model=MODEL)
        await one.after_model_call(DONE)
        other = await bus.run("r", scope=SCOPE)
        await other.load()

        async def interrupt(messages: History) -> History:
            if len(hooks.transform_saw) == 1:  # it is recorded behind this step
                other.append(user("And me?"))
                told.append(asyncio.ensure_future(other.flush()))
                await asyncio.sleep(0)
            return hooks.transform(messages)

        told: list[asyncio.Future[None]] = []
        one = await bus.run("r", scope=SCOPE, sources=["rag"], before_compile=hooks.before, transform_context=interrupt)
        await one.load()
        one.append(user("Mine?"))
        step = await one.before_model_call(model=MODEL)
        await asyncio.gather(*told)
        assert contents(step)[-2:] == ["Mine?", "<implicit_context>\nsnippet 2\n</implicit_context>"]
        await one.after_model_call(DONE)
        one.append(user("More?"))
        step = await one.before_model_call(model=MODEL)
        assert "And me?" in contents(step)
        assert user("And me?") in hooks.transform_saw[-1]
        assert user("And me?") in hooks.before_saw[-1]
        assert (await bus.verify("r")).is_clean
