"""A sample of ``python -m tests.payloads``, and any mix of what it sends: three layers accept every payload."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

import contextbus.client as contextbus
from contextbus.core.blocks import render_record, render_retrieved, user_block
from contextbus.core.payload import start_rendering
from contextbus.core.wire import Written
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, assistant, system, user
from contextbus_protocol.values import Model
from tests.payloads.__main__ import describe
from tests.payloads.blocks import Blocks, compiled_blocks
from tests.payloads.conversations import CHANGES, FORMS, change, read_forms
from tests.payloads.layers import find_faults
from tests.payloads.runs import MODELS, check_run
from tests.payloads.shapes import PRODUCT, SHAPES, TARGETS, Shape, Target, model_of, prompt_of, shape_request
from tests.payloads.sweep import Tally, compact_history, sweep_conversation

SAMPLE = (0, 34, 68)
EVERY = 7
RECORD = render_record("bank", "rag", contextbus.candidate("r<1>", "Fees & limits\nNone.", 0.5))
BLOCKS = Blocks((user_block(render_retrieved(1, 0, [RECORD])),), (user("<working_memory>\nGoal\n</working_memory>"),))
TOOLS: tuple[dict[str, object], ...] = ({"name": "f", "parameters": {"type": "object", "additionalProperties": False}},)


@pytest.mark.data
@pytest.mark.rule("P.E.1", "P.E.2", "P.E.3", "P.E.4", "P.E.5", "P.E.8", "P.E.21", "P.E.23", "P.A.2", "P.A.3", "P.C.2")
@pytest.mark.rule("all.S1", "C.E.1", "C.E.7", "C.D.13")
def test_three_layers_accept_real_conversations_cut_anywhere(record_property: Callable[[str, object], None]) -> None:
    tally, started = Tally(), time.perf_counter()
    for number in SAMPLE:
        tally.add(sweep_conversation(number, EVERY))
    record_property("payloads", describe(tally, time.perf_counter() - started)[0])
    assert tally.faults == []
    assert {key[0] for key in tally.checked} == set(TARGETS)
    assert {key[1] for key in tally.checked} == set(FORMS)
    assert {key[2] for key in tally.checked} == {"before", "after"}
    assert {key[3] for key in tally.checked} == {shape.name for shape in (*SHAPES, PRODUCT[0])}
    assert {
        "missing-result",
        "repeated-id",
        "late-system",
        "bad-arguments",
        "thinking",
        "merged",
    } <= tally.repairs.keys()


@pytest.mark.data
@pytest.mark.rule("P.E.1", "P.E.5", "P.A.3", "P.A.6", "C.E.1", "D.F.20", "D.I.1")
@pytest.mark.parametrize(
    ("number", "form", "only"), [(4, FORMS[0], None), (9, FORMS[1], None), (2, FORMS[2], MODELS[-1])]
)
async def test_three_layers_accept_what_real_runs_send(number: int, form: str, only: Model | None) -> None:
    tally = await check_run(number, form, only=only)
    assert tally.faults == []
    assert sum(tally.checked.values()) > 20
    assert {key[0] for key in tally.checked} == set(TARGETS)
    assert {key[2] for key in tally.checked} == {"before", "after"}
    assert tally.repairs["compaction of a run"] > 0


@pytest.mark.data
@pytest.mark.rule("P.A.2", "P.A.3")
@pytest.mark.parametrize("target", TARGETS)
def test_a_prompt_compiles_to_the_same_payload(target: Target) -> None:
    conversation = next(read_forms(8))
    for shape in (shape for shape in PRODUCT if not shape.retrieval and not shape.memory):
        model = model_of(shape, target)
        history = start_rendering(target, model).extend(conversation.messages)
        shaped = shape_request(history, shape, target, compiled_blocks()[0], conversation.tools)
        prompt = prompt_of(shape).history(conversation.messages).tools(conversation.tools)
        assert prompt.compile(target, model).json() == shaped.json()


def _result(*ids: str) -> ChatMessage:
    return ChatMessage(role="tool", content=tuple(ToolResult(id=i, content=(Text(text=f"done {i}"),)) for i in ids))


def _calls(*ids: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=tuple(ToolCall(id=i, name="f", arguments='{"q": 1}') for i in ids))


_BASE = (
    *(user("Rebook me."), user("Yes."), system("Be brief."), assistant("Which one?"), assistant("Done.")),
    *(_calls("a"), _calls("a", "b"), _calls("a", "a"), _result("a"), _result("b"), _result("a", "b")),
)


@st.composite
def mixes(draw: st.DrawFn) -> list[ChatMessage]:
    """Messages of a conversation in any order, each changed in one of the ways, and all of them in a form."""
    messages: list[ChatMessage] = []
    for message in draw(st.lists(st.sampled_from(_BASE), min_size=1, max_size=14)):
        changes = CHANGES.get(message.role, ())
        changed = draw(st.booleans())
        if changes and changed:
            messages += draw(st.sampled_from(changes))(message, draw(st.integers(0, 9)))
        else:
            messages.append(message)
    return [*change(messages, draw(st.sampled_from(FORMS)), draw(st.integers(0, 9)))]


@pytest.mark.rule("P.E.1", "P.E.2", "P.E.6", "P.E.7", "P.E.12", "P.E.13", "P.E.14", "P.E.16", "P.E.17", "P.E.18")
@pytest.mark.rule("P.E.19", "P.E.20", "P.E.21", "P.E.22", "P.E.23", "P.A.5", "P.C.4", "all.S1")
@pytest.mark.parametrize("target", TARGETS)
@given(messages=mixes(), shape=st.sampled_from((*SHAPES, *PRODUCT)), keep=st.none() | st.integers(1, 5))
def test_three_layers_accept_any_mix(
    target: Target, messages: list[ChatMessage], shape: Shape, keep: int | None
) -> None:
    if keep is not None:
        summariser = contextbus.extractive_summariser()
        shorter = asyncio.run(compact_history(messages, (), keep, summariser))
        messages = messages if shorter is None else shorter
    history = start_rendering(target, model_of(shape, target)).extend(messages)
    assume(not history.empty)
    assert find_faults(shape_request(history, shape, target, BLOCKS, TOOLS)) == ()


WRONG: dict[Target, tuple[bytes, bytes]] = {
    "anthropic": (
        b'{"role":"user","content":[{"type":"text","text":"q"}],"timestamp":5}',
        b'{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}',
    ),
    "openai": (
        b'{"role":"user","content":"q","timestamp":5}',
        b'{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}',
    ),
    "openai-responses": (
        b'{"role":"user","content":"q","timestamp":5}',
        b'{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}',
    ),
    "gemini": (
        b'{"role":"user","parts":[{"text":"q"}],"timestamp":5}',
        b'{"role":"model","parts":[{"functionCall":{"name":"f","args":{}},"thoughtSignature":"c2ln"}]}',
    ),
}
"""A message with a member that the provider does not know, and a call that nothing answers."""


@pytest.mark.rule("P.A.2")
@pytest.mark.parametrize("target", TARGETS)
def test_each_layer_refuses_what_is_wrong(target: Target) -> None:
    history = start_rendering(target).extend([user("q"), assistant("a"), user("go")])
    payload = shape_request(history, SHAPES[0], target, BLOCKS, ())

    def refusing(last: bytes) -> set[str]:
        changed = replace(payload, last=(*payload.last, Written(last)))
        return {fault.partition(":")[0] for fault in find_faults(changed)}

    unknown, unanswered = WRONG[target]
    assert find_faults(payload) == ()
    assert {"types", "check_types"} <= refusing(unknown)
    assert refusing(unanswered) == {"order", "validate"}, "types see no order"
