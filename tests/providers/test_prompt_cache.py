"""The played caches: how bodies come to the benchmarks' model, and usage that adds up."""

from __future__ import annotations

from typing import Any

from benchmarks.provider_cache import BreakpointCache, PrefixCache

from tests.providers.endpoints import anthropic_body, claude, gpt, openai_body
from tests.providers.prompt_cache import PlayedCache
from tests.providers.turns import Answer

MARK = {"cache_control": {"type": "ephemeral"}}
SHORTEST = 1_024
LONG = "The runner pauses before a rollback. " * 200


def text(said: str, *, mark: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": said, **(MARK if mark else {})}


def asked(*blocks: dict[str, Any]) -> dict[str, Any]:
    return anthropic_body({"role": "user", "content": list(blocks)})


def test_a_mark_is_no_content_and_each_model_has_a_cache_of_its_own() -> None:
    cache = PlayedCache(BreakpointCache)
    first = cache.use(asked(text(LONG, mark=True), text("tail one")))
    assert (first.read, first.rest > 0, first.written > SHORTEST) == (0, True, True)
    again = cache.use(asked(text(LONG), text("a note", mark=True), text("tail two")))
    assert again.read == first.written
    assert 0 < again.written < 50
    assert cache.use(asked(text(LONG + "x", mark=True))).read == 0
    assert cache.use({**asked(text(LONG, mark=True)), "model": "claude-haiku-4-5"}).read == 0


def test_marks_in_a_tool_result_are_no_content_either() -> None:
    cache = PlayedCache(BreakpointCache)

    def result(part: dict[str, Any]) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": "toolu_1", "content": [part]}

    first = cache.use(asked(result(text(LONG, mark=True)), text("end", mark=True)))
    assert cache.use(asked(result(text(LONG)), text("end", mark=True))).read == first.written > SHORTEST


def test_the_automatic_breakpoint_is_behind_the_last_block() -> None:
    cache = PlayedCache(BreakpointCache)
    first = cache.use({**asked(text(LONG)), **MARK})
    assert first.rest == 0
    assert cache.use({**asked(text(LONG), text("more")), **MARK}).read == first.written


def test_a_prefix_of_other_tools_or_another_model_is_not_read() -> None:
    cache = PlayedCache(PrefixCache)
    long = {"role": "system", "content": LONG}
    body = openai_body(long, {"role": "user", "content": "Hello."})
    assert cache.use(body).read == 0
    assert cache.use(openai_body(long, {"role": "user", "content": "Good evening."})).read > SHORTEST
    assert cache.use({**body, "model": "other"}).read == 0
    assert cache.use({**body, "tools": [{"type": "function", "function": {"name": "look"}}]}).read == 0


def test_tokens_are_counted_by_the_given_function() -> None:
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "one two three"}]}
    words = PlayedCache(PrefixCache, lambda said: [len(word) for word in said.split()]).use(body)
    assert (words.sent, PlayedCache(PrefixCache).use(body).sent) == (3, 4)


async def test_usage_adds_up_on_both_wires() -> None:
    body = asked(text(LONG, mark=True), text("tail"))
    async with claude([Answer(text="Good.")] * 2) as (server, client):
        usages = [(await client.messages.create(**body, stream=False)).usage for _ in range(2)]
    totals = {u.input_tokens + (u.cache_read_input_tokens or 0) + (u.cache_creation_input_tokens or 0) for u in usages}
    assert totals == {exchange.used.sent for exchange in server.exchanges if exchange.used is not None}
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
