"""The prompt caches of the played providers: the benchmarks' model of them, fed with whole bodies.

A token is four bytes of JSON.  Nothing expires: the servers have no clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from benchmarks.provider_cache import ProviderCache, Served
from benchmarks.request_blocks import BlockReader, Encode

Block = Mapping[str, Any]


class PlayedCache:
    """Serves bodies, each from the cache of its model.

    Args:
        make: makes the cache of a model.
        encode: the tokens of a text.
    """

    def __init__(self, make: Callable[[], ProviderCache], encode: Encode | None = None) -> None:
        self._make = make
        self._reader = BlockReader(_four_bytes if encode is None else encode)
        self._caches: dict[str, ProviderCache] = {}

    def use(self, body: Mapping[str, Any]) -> Served:
        """What a request reads and writes; the next one may read it.

        An automatic breakpoint stands behind the last block.
        """
        model = str(body["model"])
        if model not in self._caches:
            self._caches[model] = self._make()
        blocks = list(self._reader.read(_json(body)))
        if body.get("cache_control") is not None and blocks:
            blocks[-1] = msgspec.structs.replace(blocks[-1], breakpoint=True)
        return self._caches[model].serve(blocks, 0)


def count_tokens(size: int) -> int:
    """An estimate: four bytes a token."""
    return -(-size // 4)


def plain(value: object) -> bytes:
    """The JSON bytes of a value in the order of its members, cache marks left out: they are no content."""
    return _json(_unmarked(value))


def blocks_of(content: object) -> list[Block]:
    """Content as blocks; a text is one."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(cast("list[Block]", content or []))


def _four_bytes(text: str) -> Sequence[int]:
    data = text.encode("utf-8", "surrogatepass")
    return [int.from_bytes(data[start : start + 4], "big") for start in range(0, len(data), 4)]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _unmarked(value: object) -> object:
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return {key: _unmarked(item) for key, item in members.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_unmarked(item) for item in cast("list[object]", value)]
    return value
