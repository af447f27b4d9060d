"""Cache breakpoints of a request to Anthropic Messages (anthropic.A15)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from contextbus.core.json_text import as_object
from contextbus.validation.anthropic_blocks import THINKING, Block, read_blocks
from contextbus.validation.findings import Finding, Object, error, find_unknown_keys, read_objects

RULE: Final = "anthropic.A15"
MOST: Final = 4
_SECONDS: Final = {"5m": 300, "1h": 3600}


class _Mark(msgspec.Struct, frozen=True):
    """A breakpoint: where it stands, and how long its entry lives in seconds."""

    place: str
    seconds: int


def check_cache(body: Object, blocks: Sequence[Block]) -> Iterator[Finding]:
    """What is wrong with the breakpoints; the API reads tools, then system, then messages, then the automatic one.

    The lookback of 20 blocks bounds what a breakpoint finds, not which requests are taken, and what an earlier request
    wrote cannot be seen in this one; so nothing is found for it.

    Args:
        body: the request.
        blocks: the blocks of its messages, in order.
    """
    marks: list[_Mark] = []
    for place, fields in _find_carriers(body, blocks):
        yield from _read_mark(fields, place, marks)
    yield from _add_automatic(body, blocks, marks)
    if len(marks) > MOST:
        yield error(
            RULE,
            marks[MOST].place,
            f"There are {len(marks)} cache breakpoints, the automatic one included; keep at most {MOST}.",
        )
    shortest = max(_SECONDS.values())
    for mark in marks:
        if mark.seconds > shortest:
            yield error(
                RULE, mark.place, "A longer TTL stands behind a shorter one; raise the earlier breakpoint's TTL."
            )
        shortest = min(shortest, mark.seconds)


def _find_carriers(body: Object, blocks: Sequence[Block]) -> Iterator[tuple[str, Object]]:
    for place, tool in read_objects(body.get("tools"), "tools", "tool"):
        if not isinstance(tool, Finding):
            yield place, tool
    system = body.get("system")
    for block in (*(read_blocks(system, "system") if system else ()), *blocks):
        if isinstance(block, Finding):
            continue
        if block.kind == "tool_result":
            yield from _find_inner(block.fields.get("content"), f"{block.place}.content")
        if block.kind == "document":
            source = as_object(block.fields.get("source")) or {}
            yield from _find_inner(source.get("content"), f"{block.place}.source.content")
        if block.kind not in THINKING:
            yield block.place, block.fields
        elif block.fields.get("cache_control") is not None:
            # Not counted: the block may not carry one at all.
            yield block.place, {"cache_control": block.kind}


def _find_inner(content: object, place: str) -> Iterator[tuple[str, Object]]:
    if isinstance(content, str):
        return
    for where, inner in read_objects(content, place, "block"):
        if not isinstance(inner, Finding):
            yield where, inner


def _read_mark(fields: Object, place: str, marks: list[_Mark]) -> Iterator[Finding]:
    value = fields.get("cache_control")
    if value is None:
        return
    where = f"{place}.cache_control" if place else "cache_control"
    control = as_object(value)
    if value in THINKING:
        yield error(RULE, where, "Thinking takes no cache breakpoint; set it on another block.")
        return
    ttl = "5m" if control is None else control.get("ttl", "5m")
    seconds = _SECONDS.get(ttl) if isinstance(ttl, str) else None
    if control is None or control.get("type") != "ephemeral" or seconds is None:
        yield error(RULE, where, 'A cache breakpoint is {"type": "ephemeral"}, with a ttl of 5m or 1h; write that.')
        return
    yield from find_unknown_keys(control, ("type", "ttl"), where, "anthropic.A19", "A cache breakpoint")
    marks.append(_Mark(where, seconds))


def _add_automatic(body: Object, blocks: Sequence[Block], marks: list[_Mark]) -> Iterator[Finding]:
    """The automatic breakpoint falls on the last block that takes one, and is that block's own if the TTL is equal."""
    before = len(marks)
    yield from _read_mark(body, "", marks)
    if len(marks) == before:
        return
    automatic = marks.pop()
    last = next((block for block in reversed(blocks) if block.kind not in THINKING), None)
    own = None if last is None else f"{last.place}.cache_control"
    if not marks or marks[-1].place != own:
        marks.append(automatic)
    elif marks[-1].seconds != automatic.seconds:
        yield error(
            RULE, automatic.place, "The automatic breakpoint falls on a block with another TTL; give both the same one."
        )
