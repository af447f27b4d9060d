"""Real conversations as runs over the bus in memory: the whole way from a host's messages to four payloads.

A run has a source, a working memory, a prompt and a small window; its models change between its steps, and what a model
said carries reasoning that only this model takes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

import contextbus.client as contextbus
from contextbus_protocol.chat import ChatMessage, ProviderData, Reasoning, ToolCall
from contextbus_protocol.events import CompactionCompleted
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Candidate, Model, Scope
from contextbus_protocol.working_memory import AddObservation
from tests.payloads.blocks import find_records
from tests.payloads.conversations import FORMS, change, read_all
from tests.payloads.layers import find_faults
from tests.payloads.shapes import SHAPES, TARGETS, Shape, prompt_of
from tests.payloads.sweep import Tally

MODELS: Final = (
    Model("anthropic", "claude-opus-4-6", 16_000, 1_000),
    Model("anthropic", "claude-haiku-4-5", 16_000, 1_000),
    Model("openai", "gpt-5", 16_000, 1_000),
    Model("gemini", "gemini-3-pro", 16_000, 1_000),
    Model("anthropic", "claude-opus-5-5", 16_000, 1_000),
)
"""Models that a run changes between; the last one binds its thinking to the prefix (D.F.8)."""
_SHAPES: Final = tuple(shape for shape in SHAPES if shape.retrieval == shape.memory)


@contextbus.source(id="bank", kind="rag")
def search_documents(query: Query) -> Sequence[Candidate]:
    """The documents that share most words with the query."""
    return find_records(query.text)


def check_runs(number: int) -> Tally:
    """One conversation as two runs: as it was and mixed, the models changing; and, of some, on a bound model alone."""
    tally = Tally()
    for form in FORMS[:2]:
        tally.add(asyncio.run(check_run(number, form)))
    if number % 5 == 0:
        tally.add(asyncio.run(check_run(number, FORMS[2], only=MODELS[-1])))
    return tally


async def check_run(number: int, form: str, *, every: int = 3, only: Model | None = None) -> Tally:
    """Run a conversation in a form; each step's payload is checked for all four targets, and the log at the end.

    Args:
        number: which conversation.
        form: one of ``FORMS``.
        every: after how many steps the model changes.
        only: the model of all steps, in place of those that change.
    """
    tally = Tally()
    messages = change(read_all()[number], form, number)
    async with contextbus.open("memory:", sources=[search_documents], memory=False) as bus:
        run = await bus.run(
            scope=Scope(user_id="ada"),
            sources=["bank"],
            compaction=contextbus.Compaction(
                triggers=[contextbus.messages_exceed(9)],
                target_tokens=12_000,
                keep_last_messages=3,
                min_shrink=0.0,
                media="placeholder",
                on_failure="continue",
            ),
        )
        memory = await run.working_memory.create(goal="Rebook <the flight> & keep the seat.")
        steps = 0
        for message in messages:
            if message.role != "assistant":
                run.append(message)
                continue
            model = MODELS[(number + steps // every) % len(MODELS)] if only is None else only
            shape = _SHAPES[(number + steps) % len(_SHAPES)]
            if run.messages or steps:
                step = await run.before_model_call(model=model, prompt=prompt_of(shape).tools(_tools(messages)))
                _check(step, f"conversation {number} {form!r}, step {steps}, {model.model_id}", shape, tally)
                answer = _think(message, model, steps)
                await run.after_model_call(contextbus.Report(status="succeeded", messages=[answer]))
                steps += 1
            if steps % 2:
                patched = await run.working_memory.patch(
                    AddObservation(text=f"Step {steps} is done."), expected_revision=memory.revision
                )
                memory = patched.snapshot or memory
        log = await bus.log(run.id)
        compactions = sum(isinstance(e, CompactionCompleted) for c in log.commits for e in c.commit.events)
        tally.repairs["compaction of a run"] += compactions
        verdict = await bus.verify(run.id)
        if not verdict.is_clean:
            tally.faults.append(f"conversation {number} {form!r}: verify: {verdict}")
    return tally


def _tools(messages: Sequence[ChatMessage]) -> list[dict[str, object]]:
    names = dict.fromkeys(part.name for m in messages for part in m.content if isinstance(part, ToolCall) and part.name)
    return [{"name": name, "description": "A tool.", "parameters": {"type": "object"}} for name in names]


def _check(step: contextbus.CompiledStep, place: str, shape: Shape, tally: Tally) -> None:
    for target in TARGETS:
        payload = step.payload(target)
        when = "after" if any("Previous conversation summary" in str(p) for p in payload.copy().values()) else "before"
        tally.checked[target, "run", when, shape.name] += 1
        tally.repairs.update({repair.code for repair in payload.repairs})
        tally.faults += [f"{target}, {place}: {fault}" for fault in find_faults(payload)[:3]]


def _think(message: ChatMessage, model: Model, step: int) -> ChatMessage:
    """The answer with reasoning as the step's model would have issued it."""
    if model.provider == "openai":
        origin = ProviderData("openai-responses", f'{{"id":"rs_{step}","summary":[]}}', model.model_id)
        thought = Reasoning(redacted="gAAAAA==", provider_data=origin)
    else:
        origin = ProviderData(model.provider, "{}", model.model_id)
        signature = "c2lnbmVk" if model.provider == "anthropic" else None
        thought = Reasoning(text="Look it up.", signature=signature, provider_data=origin)
    parts = tuple(
        replace(part, provider_data=ProviderData("gemini", '{"thoughtSignature":"c2ln"}', model.model_id))
        if isinstance(part, ToolCall) and model.provider == "gemini"
        else part
        for part in message.content
    )
    return replace(message, content=(thought, *parts))
