"""A prompt on its way through a run: placed, counted, compared, recorded (P.A.3, P.A.4, P.A.6, P.B.4, P.C.4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted, bus_with, sent, state_of, text_in

import contextbus.client as contextbus
from contextbus.core.estimate import make_estimator
from contextbus_protocol.chat import ChatMessage, Reasoning, Text, assistant, system, user
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
CLAUDE = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)
HAIKU = Model("anthropic", "claude-haiku-4-5", 200_000, 8_000)
BOUND = Model("anthropic", "claude-opus-5-5", 200_000, 8_000)
STATE = user("<dynamic_state>\n  <file>a.py</file>\n</dynamic_state>")
RULE = user("Answer inside <answer>.")
PARTS = PromptParts(system=(system("You are terse."),), state=(STATE,), guardrails=(RULE,))
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])


async def steps_of(bus: contextbus.ContextBus, run: contextbus.Run) -> list[StepCompiled]:
    return [e for c in (await bus.log(run.id)).commits for e in c.commit.events if isinstance(e, StepCompiled)]


def costs(*messages: ChatMessage) -> int:
    return sum(map(make_estimator(CHARACTERS).message, messages))


@pytest.mark.rule("P.A.3", "P.A.6", "D.F.21", "D.B.3")
async def test_a_prompts_parts_stand_in_their_order_and_are_counted_before_the_selection() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        await run.working_memory.create(goal="Ship it.")
        history = [system("You deploy."), user("How?")]
        step = await run.before_model_call(history, model=MODEL, prompt=PARTS)
        texts = [m["content"] for m in sent(step)]
        assert texts[:3] == ["You deploy.", "You are terse.", "How?"]
        assert texts[3] == text_in(step.messages_of("append")[0])
        assert texts[4].startswith("<working_memory")
        assert texts[5:] == [text_in(STATE), text_in(RULE)]
        used = -(-costs(*history, *PARTS.system, STATE, RULE) // 18)
        assert step.manifest.budget.used_tokens == used
        (event,) = await steps_of(bus, run)
        assert event.prompt is not None
        assert event.prompt.system_eighteenths == costs(*PARTS.system)
        assert event.prompt.tail_eighteenths == costs(STATE, RULE)
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("P.A.3")
async def test_a_prompt_without_working_memory_or_sources_is_the_tail_by_itself() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)
        step = await run.before_model_call([user("How?")], model=MODEL, prompt=PARTS)
        assert step.manifest.placement.tail
        assert [b.placement for b in step.blocks] == ["ephemeral-tail"]
        assert [m["content"] for m in sent(step)] == ["You are terse.", "How?", text_in(STATE), text_in(RULE)]
        await run.after_model_call(DONE)
        again = await run.before_model_call(model=MODEL)  # nothing of the tail joined the history
        assert [m["content"] for m in sent(again)] == ["How?", "Run the pipeline."]
        assert not again.manifest.placement.tail
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.F.22", "P.A.4")
async def test_a_changed_system_layer_is_the_cause_and_a_changed_state_is_none() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)

        async def turn(prompt: PromptParts | None) -> str | None:
            run.append(user("And?"))
            step = await run.before_model_call(model=MODEL, prompt=prompt)
            await run.after_model_call(DONE)
            return step.manifest.cache_prefix_cause

        assert await turn(PARTS) is None
        assert await turn(PromptParts(system=PARTS.system, state=(user("other"),))) is None
        assert await turn(PromptParts(system=(system("You are verbose."),))) == "system"
        assert await turn(None) == "system"
        assert await turn(None) is None
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("P.B.4")
async def test_state_in_the_system_layer_warns_once() -> None:
    told: list[str] = []
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, on_warning=lambda warning: told.append(warning.code))
        for number in range(3):
            run.append(user(f"{number}?"))
            state = system(f"<dynamic_state>{number}</dynamic_state>")
            prompt = PromptParts(system=(*PARTS.system, state), state_in_system=True)
            step = await run.before_model_call(model=MODEL, prompt=prompt)
            assert [m["content"] for m in sent(step)][:2] == ["You are terse.", text_in(state)]
            assert step.manifest.cache_prefix_cause == ("system" if number else None)
            await run.after_model_call(DONE)
        assert told == ["state-in-system"]
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("P.C.2", "P.C.4", "P.C.3")
@pytest.mark.parametrize(
    ("model", "thinking", "is_sent"),
    [(HAIKU, False, True), (HAIKU, True, False), (CLAUDE, False, False), (BOUND, False, False), (MODEL, False, False)],
)
async def test_a_prefill_ends_the_request_where_the_model_takes_it(model: Model, thinking: bool, is_sent: bool) -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)
        prompt = PromptParts(state=(STATE,), guardrails=(RULE,), prefill="<answer>\n1. ", thinking=thinking)
        history = [user("How?"), assistant("So."), user("And?"), assistant("Thus.")]
        step = await run.before_model_call(history, model=model, prompt=prompt)
        body = json.loads(step.payload().json())
        last = body["messages"][-1]
        (event,) = await steps_of(bus, run)
        assert event.prompt is not None
        assert event.prompt.prefill == ("sent" if is_sent else "degraded")
        texts = json.dumps(body)
        assert "Thus." in texts
        if is_sent:
            assert last == {"role": "assistant", "content": [{"type": "text", "text": "<answer>\n1."}]}
            assert step.package.prefill == "<answer>\n1. "
        else:
            assert last["role"] == "user"
            assert step.package.prefill is None
            assert "&lt;answer&gt;" in texts
            assert text_in(step.messages_of("ephemeral-tail")[-1]) in json.dumps(last, ensure_ascii=False).replace(
                "\\n", "\n"
            ).replace('\\"', '"')
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.F.9", "D.F.20", "D.F.21")
async def test_on_a_bound_model_all_of_the_tail_stays_and_a_changed_system_layer_drops_thinking() -> None:
    thought = ChatMessage(role="assistant", content=(Reasoning(text="Hm.", signature="s"), Text(text="So.")))
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.working_memory.create(goal="Ship it.")
        for number in range(2):
            run.append(user(f"{number}?"))
            prompt = PromptParts(system=PARTS.system, state=(user(f"state {number}"),), guardrails=(RULE,))
            step = await run.before_model_call(model=BOUND, prompt=prompt)
            assert step.manifest.cache_prefix_cause is None
            await run.after_model_call(contextbus.Report(status="succeeded", messages=[thought]))
        run.append(user("2?"))
        step = await run.before_model_call(model=BOUND, prompt=PARTS)
        raw = step.payload().json().decode()
        assert raw.index("state 0") < raw.index("1?") < raw.index("state 1") < raw.index("2?")
        assert raw.count("Answer inside") == 3
        assert raw.count('"signature"') == 2
        await run.after_model_call(contextbus.Report(status="failed"))
        other = PromptParts(system=(system("Other."),), state=(STATE,))
        step = await run.before_model_call(model=BOUND, prompt=other)
        assert step.manifest.cache_prefix_cause == "system"
        assert '"signature"' not in step.payload().json().decode()
        assert [r.code for r in step.payload().repairs].count("thinking") == 2
        await run.load()
        assert run.state == await state_of(bus, run)
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.R.7", "P.A.6")
async def test_a_step_is_reopened_for_the_same_prompt_alone() -> None:
    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"])
        first = await run.before_model_call([user("How?")], model=MODEL, prompt=PARTS)
        same = await run.before_model_call(model=MODEL, prompt=PARTS)
        assert (same.step, same.stored, same.payload().json()) == (0, True, first.payload().json())
        other = await run.before_model_call(model=MODEL, prompt=PromptParts(state=(user("later"),)))
        assert (other.step, other.stored) == (1, False)
        assert "later" in other.payload().json().decode()
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.I.1", "D.W.1")
async def test_an_overflow_keeps_the_prompt_also_for_a_client_that_begins_anew() -> None:
    prompt = PromptParts(system=PARTS.system, state=(STATE,), guardrails=(RULE,), prefill="So:")
    async with bus_with() as bus:
        first = await bus.run("r", scope=SCOPE)
        await first.working_memory.create(goal="Ship it.")
        await first.before_model_call([user("How?")], model=HAIKU, prompt=prompt)
        run = await bus.run("r", scope=SCOPE)
        await run.load()
        step = await run.on_overflow(60_000)
        body: dict[str, Any] = json.loads(step.payload().json())
        assert [block["text"] for block in body["system"]] == ["You are terse."]
        assert [block["text"] for block in body["messages"][0]["content"]][-2:] == [text_in(STATE), text_in(RULE)]
        assert body["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "So:"}]}
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("P.A.6", "D.D.25")
async def test_the_log_holds_no_text_of_a_prompt_and_its_layer_is_stored_once() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)
        for number in range(3):
            run.append(user(f"{number}?"))
            await run.before_model_call(model=MODEL, prompt=PARTS)
            await run.after_model_call(DONE)
        log = await bus.log(run.id)
        raw = "".join(str(c.commit) for c in log.commits)
        assert "terse" not in raw
        assert "a.py" not in raw
        layers = {event.prompt.layer for event in await steps_of(bus, run) if event.prompt is not None}
        assert len(layers) == 1
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("P.A.1", "P.A.3")
async def test_a_built_prompt_gives_a_step_its_history_tools_and_parts() -> None:
    tools = [{"name": "deploy", "description": "d", "input_schema": {"type": "object"}}]
    prompt = (
        contextbus.Prompt()
        .system("You are terse.", cache=True)
        .history([{"role": "user", "content": "How?"}])
        .state({"file": "a.py"}, {"type": "object", "properties": {"file": {"type": "string"}}})
        .guardrails(output_tag="answer")
        .tools(tools)
    )
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)
        step = await run.before_model_call(model=CLAUDE, prompt=prompt)
        assert step.payload().json() == prompt.compile(model=CLAUDE).json()
        assert run.messages == (user("How?"),)
        assert step.manifest.budget.used_tokens > 0
        with pytest.raises(InvalidTypeError):
            await run.before_model_call(model=CLAUDE, prompt="text")  # type: ignore[arg-type]
        assert (await bus.verify(run.id)).is_clean
