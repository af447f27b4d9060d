"""The played caches: usage adds up, and what is read is what an earlier request wrote."""

from __future__ import annotations

from typing import Any

import pytest

from tests.providers.endpoints import anthropic_body, claude, gpt, openai_body
from tests.providers.prompt_cache import LOOKBACK, SHORTEST, STEP, AnthropicCache, OpenAICache
from tests.providers.turns import Answer

MARK = {"cache_control": {"type": "ephemeral"}}
LONG = "The runner pauses before a rollback. " * 200


def text(said: str, *, mark: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": said, **(MARK if mark else {})}


def asked(*blocks: dict[str, Any]) -> dict[str, Any]:
    return anthropic_body({"role": "user", "content": list(blocks)})


def test_nothing_is_cached_without_a_breakpoint() -> None:
    cache = AnthropicCache()
    uses = [cache.use(asked(text(LONG))) for _ in range(2)]
    assert {(use.read, use.written) for use in uses} == {(0, 0)}


def test_what_was_written_is_read_while_its_bytes_stay() -> None:
    cache = AnthropicCache()
    first = cache.use(asked(text(LONG, mark=True), text("tail one")))
    assert (first.read, first.rest > 0) == (0, True)
    assert first.written > SHORTEST
    again = cache.use(asked(text(LONG), text("a note", mark=True), text("tail two")))
    assert again.read == first.written
    assert 0 < again.written < 50
    changed = cache.use(asked(text(LONG + "x", mark=True), text("tail two")))
    assert changed.read == 0
    other = cache.use({**asked(text(LONG, mark=True)), "model": "claude-haiku-4-5"})
    assert other.read == 0


def test_a_short_prefix_is_not_written() -> None:
    cache = AnthropicCache()
    uses = [cache.use(asked(text("short", mark=True))) for _ in range(2)]
    assert {(use.read, use.written) for use in uses} == {(0, 0)}


@pytest.mark.parametrize(("between", "found"), [(LOOKBACK - 1, True), (LOOKBACK, False)])
def test_the_lookback_is_twenty_blocks(between: int, found: bool) -> None:
    cache = AnthropicCache()
    cache.use(asked(text(LONG, mark=True)))
    blocks = [text(str(number)) for number in range(between - 1)]
    assert (cache.use(asked(text(LONG), *blocks, text("end", mark=True))).read > 0) is found


def test_the_automatic_breakpoint_is_behind_the_last_block() -> None:
    cache = AnthropicCache()
    first = cache.use({**asked(text(LONG)), **MARK})
    assert first.rest == 0
    assert cache.use({**asked(text(LONG), text("more")), **MARK}).read == first.written


def test_openai_reads_in_steps_above_the_shortest() -> None:
    cache = OpenAICache()
    hello = {"role": "user", "content": "Hello."}
    long = {"role": "system", "content": LONG}
    assert cache.use(openai_body(hello)).read == 0
    assert cache.use(openai_body(hello)).read == 0  # too short
    first = cache.use(openai_body(long, hello))
    assert first.read == 0
    again = cache.use(openai_body(long, {"role": "user", "content": "Good evening."}))
    assert (again.read - SHORTEST) % STEP == 0
    assert SHORTEST <= again.read <= len(LONG) // 4 + STEP
    assert cache.use({**openai_body(long, hello), "model": "other"}).read == 0


async def test_usage_adds_up_on_both_wires() -> None:
    body = asked(text(LONG, mark=True), text("tail"))
    async with claude([Answer(text="Good.")] * 2) as (server, client):
        usages = [(await client.messages.create(**body, stream=False)).usage for _ in range(2)]
    totals = {u.input_tokens + (u.cache_read_input_tokens or 0) + (u.cache_creation_input_tokens or 0) for u in usages}
    assert totals == {exchange.used.total for exchange in server.exchanges if exchange.used is not None}
    assert usages[1].cache_read_input_tokens == usages[0].cache_creation_input_tokens
    assert usages[1].cache_creation_input_tokens == 0
    async with gpt([Answer(text="Good.")] * 2) as (_, chat):
        said = openai_body({"role": "user", "content": LONG})
        counted = [(await chat.chat.completions.create(**said, stream=False)).usage for _ in range(2)]
    for usage in counted:
        assert usage is not None
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    cached = [usage.prompt_tokens_details.cached_tokens for usage in counted if usage and usage.prompt_tokens_details]
    assert cached[0] == 0
    assert cached[1] is not None
    assert cached[1] > SHORTEST
