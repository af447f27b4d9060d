"""A provider's request as the blocks that its cache sees: tools, then the system layer, then the messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast

from benchmarks.provider_cache import RequestBlock

Encode = Callable[[str], Sequence[int]]
Body = Mapping[str, object]

_CONTROL: Final = "cache_control"
_SYSTEMS: Final = ("system", "instructions", "systemInstruction")
_LISTS: Final = ("messages", "input", "contents")


class BlockReader:
    """Reads bodies; a text that many requests have is encoded once.

    Args:
        encode: the tokens of a text.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._tokens: dict[str, tuple[int, ...]] = {}

    def read(self, body: bytes) -> tuple[RequestBlock, ...]:
        """The blocks of a request's JSON, in the order of the cache."""
        return tuple(self._read(layer, value) for layer, value in _blocks(json.loads(body)))

    def _read(self, layer: str, value: object) -> RequestBlock:
        text = _text_of(_without_control(value))
        if text not in self._tokens:
            self._tokens[text] = tuple(self._encode(text))
        return RequestBlock(layer, text, self._tokens[text], breakpoint=_is_marked(value))


def _is_marked(value: object) -> bool:
    return isinstance(value, dict) and cast("Body", value).get(_CONTROL) is not None


def _without_control(value: object) -> object:
    """A block without its mark, and without those of the parts of a tool result: marks are no content."""
    if not isinstance(value, dict):
        return value
    block = {key: item for key, item in cast("Body", value).items() if key != _CONTROL}
    if isinstance(parts := block.get("content"), list):
        block["content"] = [_without_control(part) for part in cast("list[object]", parts)]
    return block


def _blocks(body: Body) -> Iterator[tuple[str, object]]:
    for tool in _listed(body.get("tools", [])):
        yield "tools", tool
    for name in _SYSTEMS:
        system = body.get(name, [])
        parts = cast("Body", system)["parts"] if isinstance(system, dict) else system
        for block in _listed(parts):
            yield "system", block
    for name in _LISTS:
        for message in _listed(body.get(name, [])):
            yield from _blocks_of(cast("Body", message))


def _blocks_of(message: Body) -> Iterator[tuple[str, object]]:
    """The parts of a message; what stands beside them is a block of its own where there is more than the role."""
    role = str(message.get("role", message.get("type")))
    layer = "system" if role in ("system", "developer") else role
    parts = message.get("content", message.get("parts", []))
    for part in _listed("" if parts is None else parts):
        if part != "":
            yield layer, part
    rest = {key: value for key, value in message.items() if key not in ("role", "content", "parts")}
    if rest and rest != {"type": "message"}:
        yield layer, rest


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _text_of(value: object) -> str:
    """A text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        text = cast("Body", value).get("text")
        if isinstance(text, str):
            return text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
