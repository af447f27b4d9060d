"""``before_compile`` and ``transform_context``: asked in order, placed, counted, recorded, never history (P.D)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted, bus_with, sent, text_in

import contextbus.client as contextbus
from contextbus.client import CompileContext, PreparedStep
from contextbus.core.history import digest_message
from contextbus.core.transformed import place_blocks
from contextbus_protocol.chat import ChatMessage, assistant, system, user
from contextbus_protocol.errors import CallbackTimeoutError, HookFailedError
from contextbus_protocol.events import StepCompiled, StepFailed
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
STATE = user("<dynamic_state>\n  <file>a.py</file>\n</dynamic_state>")
RULE = user("Answer inside <answer>.")
PARTS = PromptParts(system=(system("You are terse."),), state=(STATE,), guardrails=(RULE,))
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])


def contents(step: contextbus.CompiledStep) -> list[Any]:
    return [m["content"] for m in sent(step)]


async def events_of(bus: contextbus.ContextBus, run: contextbus.Run) -> list[object]:
    return [e for c in (await bus.log(run.id)).commits for e in c.commit.events]


@pytest.mark.rule("P.D.1", "P.A.3", "P.A.6", "P.D.2")
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_before_compile_gives_stands_escaped_between_state_and_guardrails(is_async: bool) -> None:
    seen: list[CompileContext] = []

    def before(context: CompileContext) -> str:
        seen.append(context)
        return 'Snippet: a < b && "c"'

    async def later(context: CompileContext) -> str:
        await asyncio.sleep(0)
        return before(context)

    async with bus_with() as bus:
        plain = await bus.run(scope=SCOPE, estimator=CHARACTERS)
        without = await plain.before_model_call([user("How?")], model=MODEL, prompt=PARTS)
        run = await bus.run("r", scope=SCOPE, estimator=CHARACTERS, before_compile=later if is_async else before)
        step = await run.before_model_call([system("Sys."), user("How?")], model=MODEL, prompt=PARTS)
        implicit = "<implicit_context>\nSnippet: a &lt; b &amp;&amp; &quot;c&quot;\n</implicit_context>"
        assert contents(step) == ["Sys.", "You are terse.", "How?", text_in(STATE), implicit, text_in(RULE)]
        more = step.manifest.budget.used_tokens - without.manifest.budget.used_tokens
        assert more == pytest.approx((2 * 72 + 5 * (len(implicit) + len("Sys."))) / 18, abs=1)
        assert (await bus.verify("r")).is_clean
        (context,) = seen
        assert (context.run, context.step, context.model) == ("r", 0, MODEL)
        assert context.system == (system("Sys."), *PARTS.system)
        assert context.history == (user("How?"),)
        assert context.state_xml == text_in(STATE)
        with pytest.raises(AttributeError):
            context.step = 3  # type: ignore[misc]


@pytest.mark.rule("P.D.1")
@pytest.mark.parametrize("text", [None, ""])
async def test_nothing_and_an_empty_text_add_nothing(text: str | None) -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, before_compile=lambda _: text)
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert contents(step) == ["How?"]
        (event,) = [e for e in await events_of(bus, run) if isinstance(e, StepCompiled)]
        assert event.prompt is None
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("P.D.4", "P.D.2", "D.F.22")
async def test_a_transformed_history_is_sent_with_its_blocks_and_never_becomes_history() -> None:
    rag = Scripted([CI])
    shorten = False

    def transform(messages: tuple[ChatMessage, ...]) -> Sequence[ChatMessage]:
        assert all("<retrieved" not in text_in(m) for m in messages)
        return messages[2:] if shorten else messages

    async with bus_with(rag) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], transform_context=transform)
        history = [user("One?"), assistant("1"), user("How?")]
        step = await run.before_model_call(history, model=MODEL)
        block = text_in(step.messages_of("append")[0])
        await run.after_model_call(DONE)
        run.append(user("And?"))
        shorten, rag.answer = True, []
        step = await run.before_model_call(model=MODEL)
        assert contents(step) == ["How?", block, "Run the pipeline.", "And?"]
        assert step.manifest.cache_prefix_cause == "history"
        await run.after_model_call(DONE)
        shorten = False
        run.append(user("More?"))
        step = await run.before_model_call(model=MODEL)
        assert contents(step) == [
            "One?",
            "1",
            "How?",
            block,
            *["Run the pipeline.", "And?"],
            *["Run the pipeline.", "More?"],
        ]
        assert run.messages[:3] == tuple(history)
        events = [e for e in await events_of(bus, run) if isinstance(e, StepCompiled)]
        assert [e.prepared is not None for e in events] == [False, True, False]
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("P.D.4")
async def test_hooks_run_in_their_order_each_on_what_the_one_before_gave() -> None:
    order: list[str] = []
    small = Model("openai", "gpt-small", 20_000, 2_000)

    def prepare(_: contextbus.StepContext) -> PreparedStep:
        order.append("prepare_step")
        return PreparedStep(messages=[user("Prepared?")], model=small)

    def before(context: CompileContext) -> str:
        order.append("before_compile")
        assert (context.history, context.model) == ((user("Prepared?"),), small)
        return "snippet"

    def transform(messages: tuple[ChatMessage, ...]) -> list[ChatMessage]:
        order.append("transform_context")
        assert messages == (user("Prepared?"),)
        return [*messages, assistant("Yes."), user("Transformed?")]

    def rewrite(query: str, _: contextbus.StepContext) -> str:
        order.append("rewrite_query")
        assert query == "Transformed?"
        return query

    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(
            scope=SCOPE,
            sources=["rag"],
            prepare_step=prepare,
            before_compile=before,
            transform_context=transform,
            rewrite_query=rewrite,
        )
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert order == ["prepare_step", "before_compile", "transform_context", "rewrite_query"]
        block = text_in(step.messages_of("append")[0])
        assert contents(step)[:4] == ["Prepared?", "Yes.", "Transformed?", block]
        assert "snippet" in contents(step)[-1]
        assert step.model == small
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("P.D.3", "D.W.2")
@pytest.mark.parametrize("name", ["before_compile", "transform_context"])
async def test_a_hook_that_raises_fails_the_step_and_the_log_says_which(name: str) -> None:
    raised = RuntimeError("secret text")

    def fail(_: object) -> Any:
        raise raised

    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], **{name: fail})  # type: ignore[arg-type]
        with pytest.raises(HookFailedError) as caught:
            await run.before_model_call([user("How?")], model=MODEL)
        assert caught.value.__cause__ is raised
        assert caught.value.data.origin == name
        events = await events_of(bus, run)
        assert [e.origin for e in events if isinstance(e, StepFailed)] == [name]
        assert not any(isinstance(e, StepCompiled) for e in events)
        assert "secret" not in str(events)


@pytest.mark.rule("P.D.3", "P.D.4")
@pytest.mark.parametrize("given", [[], "text", None, [{"role": "nobody"}], 5])
async def test_what_no_request_can_be_made_of_fails_the_step(given: object) -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, transform_context=lambda _: given)  # type: ignore[arg-type, return-value]
        with pytest.raises(HookFailedError) as caught:
            await run.before_model_call([user("How?")], model=MODEL)
        assert caught.value.data.origin_code == "invalid_type"


@pytest.mark.rule("P.D.2", "D.W.4")
@pytest.mark.parametrize("name", ["before_compile", "transform_context"])
async def test_a_hook_has_a_deadline(name: str) -> None:
    async def hang(_: object) -> Any:
        await asyncio.sleep(60)

    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, **{name: hang})  # type: ignore[arg-type]
        with pytest.raises(CallbackTimeoutError) as caught:
            await run.before_model_call([user("How?")], model=MODEL, seconds=0.5)
        assert caught.value.data.origin == name


@pytest.mark.rule("P.D.4")
def test_a_block_whose_message_is_gone_stands_behind_the_nearest_earlier_one_that_is_left() -> None:
    a, b, c, d = (user(letter) for letter in "abcd")
    one, two = user("<one>"), user("<two>")
    own = {digest_message(one), digest_message(two)}
    lead = system("s")
    assert place_blocks([lead, a, b, one, c, two, d], own, [lead, a, c, d]) == (lead, a, one, c, two, d)
    assert place_blocks([lead, a, b, one, c, two, d], own, [lead, d]) == (lead, one, two, d)
    assert place_blocks([lead, a, one, b], own, [lead]) == (lead, one)
    assert place_blocks([a, one, b], own, [b]) == (one, b)
    assert place_blocks([a, one, a, two], own, [a, a]) == (a, one, a, two)
    assert place_blocks([a, one], own, [b, a, c]) == (b, a, one, c)
    assert msgspec.structs.astuple(a) == msgspec.structs.astuple(user("a"))
