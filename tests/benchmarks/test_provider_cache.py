"""The model of the providers' caches: what is read, what is written, and for how long it is there."""

from __future__ import annotations

import json

import pytest
from benchmarks.provider_cache import BreakpointCache, PrefixCache, RequestBlock, Served, count_common
from benchmarks.request_blocks import BlockReader
from hypothesis import given
from hypothesis import strategies as st

import contextbus.client as contextbus
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult

TOOLS = '[{"name":"look","description":"Look it up.","input_schema":{"type":"object"}}]'


def blocks(*names: str, size: int = 500) -> list[RequestBlock]:
    """A block a name, of so many tokens; a name that ends in ``*`` has a breakpoint behind it."""
    found: list[RequestBlock] = []
    for name in names:
        text = name.removesuffix("*")
        tokens = tuple(hash_of(text) for _ in range(size))
        found.append(RequestBlock("user", text, tokens, breakpoint=name.endswith("*")))
    return found


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[:4], "big")


def serve(cache: BreakpointCache | PrefixCache, *requests: list[RequestBlock], every: int = 1) -> list[tuple[int, int]]:
    """What is read and written of each request."""
    served = [cache.serve(request, index * every) for index, request in enumerate(requests)]
    return [(each.read, each.written) for each in served]


def test_without_a_breakpoint_nothing_is_written_or_read() -> None:
    assert serve(BreakpointCache(), blocks("a", "b", "c"), blocks("a", "b", "c")) == [(0, 0), (0, 0)]


def test_a_prefix_is_read_from_the_newest_breakpoint_that_an_earlier_request_had() -> None:
    first = blocks("a", "b", "c*", "tail")
    second = blocks("a", "b", "c", "d", "e*", "other")
    third = blocks("a", "x", "c", "d", "e*")
    assert serve(BreakpointCache(), first, second, third) == [(0, 1_500), (1_500, 1_000), (0, 2_500)]


def test_two_breakpoints_leave_the_shorter_prefix_to_later_requests() -> None:
    assert serve(BreakpointCache(), blocks("a", "b", "c*", "d*"), blocks("a", "b", "c*", "x*")) == [
        (0, 2_000),
        (1_500, 500),
    ]


def test_a_prefix_below_the_minimum_is_not_written() -> None:
    assert serve(BreakpointCache(), blocks("a", "b*"), blocks("a", "b*")) == [(0, 0), (0, 0)]
    assert serve(BreakpointCache(minimum=1_000), blocks("a", "b*"), blocks("a", "b*")) == [(0, 1_000), (1_000, 0)]


@pytest.mark.parametrize(("further", "read"), [(19, 1_500), (20, 0)])
def test_a_breakpoint_looks_back_over_twenty_blocks_itself_among_them(further: int, read: int) -> None:
    begin = blocks("a", "b", "c*")
    more = [f"m{number}" for number in range(further)]
    again = blocks("a", "b", "c", *more[:-1], more[-1] + "*")
    cache = BreakpointCache()
    cache.serve(begin, 0)
    assert cache.serve(again, 1).read == read


def test_a_read_keeps_a_prefix_for_another_retention() -> None:
    request = blocks("a", "b", "c*")
    assert serve(BreakpointCache(retention_ms=10), *[request] * 4, every=10) == [(0, 1_500), *[(1_500, 0)] * 3]
    assert serve(BreakpointCache(retention_ms=10), *[request] * 2, every=11) == [(0, 1_500)] * 2


def test_the_longest_common_prefix_is_served_in_steps_above_the_minimum() -> None:
    first, second = blocks("a", "b", "c", "x"), blocks("a", "b", "c", "y")
    assert serve(PrefixCache(), first, second) == [(0, 0), (1_408, 0)]  # 1,024 and three times 128
    assert serve(PrefixCache(step=1), first, second) == [(0, 0), (1_500, 0)]
    assert serve(PrefixCache(minimum=2_048), first, second) == [(0, 0), (0, 0)]


def test_any_request_within_the_retention_serves_a_prefix() -> None:
    old, other = blocks("a", "b", "c"), blocks("z", "b", "c")
    assert serve(PrefixCache(step=1, retention_ms=20), old, other, old, every=10)[-1] == (1_500, 0)
    assert serve(PrefixCache(step=1, retention_ms=19), old, other, old, every=10)[-1] == (0, 0)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_tokens_are_counted_from_the_beginning(first: list[int], second: list[int]) -> None:
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    assert count_common(first, second) == count


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), min_size=1, max_size=6))
def test_what_is_read_or_written_was_sent_and_only_repeats_are_read(runs: list[list[str]]) -> None:
    requests = [blocks(*names[:-1], names[-1] + "*", size=2_000) for names in runs]
    for cache in (BreakpointCache(), PrefixCache(step=1)):
        for index, request in enumerate(requests):
            served = cache.serve(request, index)
            common = max((_common(request, old) for old in requests[:index]), default=0)
            assert served.read <= common
            assert served.read + served.written <= served.sent == 2_000 * len(request)


def _common(first: list[RequestBlock], second: list[RequestBlock]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one.text != other.text:
            break
        count += len(one.tokens)
    return count


def test_the_cost_of_a_request_weighs_reads_and_writes() -> None:
    assert Served(sent=1_000, read=600, written=100).cost(0.1, 1.25) == pytest.approx(300 + 60 + 125)


@pytest.mark.parametrize(
    ("target", "layers"),
    [
        ("anthropic", ["tools", "system", "user", "assistant", "user", "user"]),
        ("openai", ["tools", "system", "user", "assistant", "tool", "tool", "user"]),
        ("openai-responses", ["tools", "system", "user", "function_call", "function_call_output", "user"]),
        ("gemini", ["tools", "system", "user", "model", "user", "user"]),
    ],
)
def test_a_body_is_read_in_the_order_of_the_cache(target: str, layers: list[str]) -> None:
    """Tools, system layer, messages; a breakpoint is a mark of its block, not a part of its text."""
    call = ChatMessage(role="assistant", content=(ToolCall(id="call_1", name="look", arguments='{"at":1}'),))
    result = ChatMessage(role="tool", content=(ToolResult(id="call_1", content=(Text(text="Found."),)),))
    prompt = contextbus.Prompt().system("You are terse.", cache=True).tools(TOOLS)
    body = prompt.history([contextbus.user("Ask."), call, result, contextbus.user("And?")]).compile(target).json()
    reader = BlockReader(lambda text: list(text.encode()))
    found = reader.read(body)
    assert [block.layer for block in found] == layers
    assert [block.text for block in found if block.breakpoint] == (["You are terse."] if target == "anthropic" else [])
    assert all(bytes(block.tokens).decode() == block.text for block in found)
    assert "cache_control" not in json.dumps([block.text for block in found])
    assert found == reader.read(body)
