"""The yardstick of the prompt caches: an agent that writes its memory into the system prompt at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

import contextbus.client as contextbus
from benchmarks.long_run import RunStep, Script
from contextbus.core.payload import Payload
from contextbus_protocol.chat import ChatMessage, Text

Count = Callable[[Payload], int]


def ask_plainly(
    script: Script, steps: Sequence[RunStep], count: Count, *, newest: bool = True
) -> list[dict[str, Payload]]:
    """The requests of a plain agent at the calls of a run, by target.

    It says the same messages.  Its system prompt is the standing instructions, in a block of their own with a
    breakpoint, and behind them what the run knew at that call: the records of the latest retrieval, working memory,
    state and output tag.  Where a request does not fit the window, the oldest turns are dropped.

    Args:
        script: what is said.
        steps: the run's steps.
        count: the tokens of a request.
        newest: ask for a breakpoint behind the newest message as well.
    """
    limit = script.window - script.window // 12
    messages: list[ChatMessage] = []
    records: tuple[ChatMessage, ...] = ()
    asked: list[dict[str, Payload]] = []
    for turn, step in zip(script.turns, steps, strict=True):
        messages += turn.new
        records = step.blocks or records
        known = "\n\n".join(part.text for m in (*records, *step.tail) for part in m.content if isinstance(part, Text))
        standing = replace(contextbus.system(script.system), cache=True)
        prompt = contextbus.Prompt().system(standing, known).tools(script.tools)
        request = _write(prompt, messages, "openai", newest=newest)
        while count(request) > limit:
            messages = _drop_turn(messages)
            request = _write(prompt, messages, "openai", newest=newest)
        asked.append({target: _write(prompt, messages, target, newest=newest) for target in step.requests})
        messages.append(turn.answer)
    return asked


def _write(prompt: contextbus.Prompt, messages: Sequence[ChatMessage], target: str, *, newest: bool) -> Payload:
    return prompt.history([*messages[:-1], replace(messages[-1], cache=newest)]).compile(target)


def _drop_turn(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages from the second one of the user's on, so that no result is left without its call."""
    starts = [index for index, message in enumerate(messages) if message.role == "user" and index]
    assert starts, "one turn alone is larger than the window"
    return list(messages[starts[0] :])
