"""The providers' prompt caches, played: what of a request was read from an earlier one's prefix, and what written.

A token is four bytes of JSON.  Nothing expires: the servers have no clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

SHORTEST: Final = 1_024
"""Tokens below which nothing is cached."""

LOOKBACK: Final = 20
"""How many blocks before a breakpoint Anthropic looks for what an earlier request wrote (anthropic.A15)."""

STEP: Final = 128
"""OpenAI's cache hits are 1,024 tokens and so many steps more."""

Block = Mapping[str, Any]


class CacheUse(msgspec.Struct, frozen=True):
    """Tokens of one request: read from the cache, written to it, and neither."""

    read: int
    written: int
    rest: int

    @property
    def total(self) -> int:
        """The whole input."""
        return self.read + self.written + self.rest


def count_tokens(size: int) -> int:
    """An estimate: four bytes a token."""
    return -(-size // 4)


def plain(value: object) -> bytes:
    """The JSON bytes of a value in the order of its members, cache marks left out: they are no content."""
    return json.dumps(_unmarked(value), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def blocks_of(content: object) -> list[Block]:
    """Content as blocks; a text is one."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(cast("list[Block]", content or []))


def shared_bytes(one: bytes, other: bytes) -> int:
    """How many bytes two requests begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class AnthropicCache:
    """Entries are written at breakpoints only, and found at most 20 blocks before one."""

    def __init__(self) -> None:
        self._entries: set[bytes] = set()

    def use(self, body: Mapping[str, Any]) -> CacheUse:
        """What a request reads and writes; the next one may read it."""
        digest = hashlib.sha256(str(body["model"]).encode())
        size = 0
        digests: list[bytes] = []
        tokens: list[int] = []
        breakpoints: list[int] = []
        for number, (data, marked) in enumerate(_anthropic_blocks(body)):
            digest.update(data + b"\n")
            size += len(data)
            digests.append(digest.digest())
            tokens.append(count_tokens(size))
            if marked:
                breakpoints.append(number)
        if body.get("cache_control") is not None and tokens:
            breakpoints.append(len(tokens) - 1)
        read = written = 0
        for place in breakpoints:
            near = range(max(0, place - LOOKBACK + 1), place + 1)
            read = max([read, *(tokens[n] for n in near if digests[n] in self._entries)])
        for place in breakpoints:
            if tokens[place] >= SHORTEST:
                self._entries.add(digests[place])
                written = max(written, tokens[place] - read)
        total = tokens[-1] if tokens else 0
        return CacheUse(read, written, total - read - written)


class OpenAICache:
    """Whatever an earlier request began with is read, in steps; nobody asks for it and nothing is charged to write."""

    def __init__(self) -> None:
        self._earlier: list[bytes] = []

    def use(self, body: Mapping[str, Any]) -> CacheUse:
        """What a request reads; the next one may read it."""
        head = (body["model"], body.get("tools"))
        data = b"\n".join([plain(head), *(plain(message) for message in body["messages"])])
        shared = max((shared_bytes(data, earlier) for earlier in self._earlier), default=0) // 4
        read = SHORTEST + (shared - SHORTEST) // STEP * STEP if shared >= SHORTEST else 0
        self._earlier.append(data)
        return CacheUse(read, 0, count_tokens(len(data)) - read)


def _anthropic_blocks(body: Mapping[str, Any]) -> list[tuple[bytes, bool]]:
    """The blocks of a request in the order of the cache, tools first, and whether each has a breakpoint."""
    found = [(b"tool" + plain(tool), _is_marked(tool)) for tool in body.get("tools", ())]
    found += [(b"system" + plain(block), _is_marked(block)) for block in blocks_of(body.get("system"))]
    for message in body["messages"]:
        role = str(message["role"]).encode()
        found += [(role + plain(block), _is_marked(block)) for block in blocks_of(message["content"])]
    return found


def _is_marked(block: Block) -> bool:
    return block.get("cache_control") is not None


def _unmarked(value: object) -> object:
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return {key: _unmarked(item) for key, item in members.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_unmarked(item) for item in cast("list[object]", value)]
    return value
