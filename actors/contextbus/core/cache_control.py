"""The member ``cache_control`` and its neutral form ``_cache_breakpoint``: read, written and left out (P.E.4, P.E.11).

Callers use it in messages of any provider's shape; only Anthropic's target writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from contextbus.core import json_text
from contextbus_protocol.chat import Cache

LONGEST: Final[Cache] = "1h"
CONTROL_KEY: Final = "cache_control"
CACHE_KEY: Final = "_cache_breakpoint"
"""The member of a message, part or tool that asks for a breakpoint behind it (P.E.11)."""

_KEYS: Final = (CONTROL_KEY, CACHE_KEY)


def longer(first: Cache, second: Cache) -> Cache:
    """The one of two that asks for more; the first where they ask for the same."""
    return second if second == LONGEST or not first else first


def read_cache(value: Mapping[str, object], *, tool: bool = False) -> Cache:
    """What a message, part or tool asks for in ``cache_control`` or with ``_cache_breakpoint`` (P.E.11).

    Args:
        value: its members.
        tool: the member ``cache`` is ours as well.
    """
    asked = read_control(value)
    if tool:
        asked = longer(asked, _read_word(value.get("cache")) or value.get("cache") is True)
    return asked or value.get(CACHE_KEY) is True


def read_control(value: Mapping[str, object]) -> Cache:
    """What an object asks for in ``cache_control`` alone."""
    control = value.get(CONTROL_KEY)
    if control is None:
        return False
    ttl = cast("Mapping[str, object]", control).get("ttl") if isinstance(control, Mapping) else None
    return _read_word(ttl) or True


def write_control(cache: Cache) -> dict[str, str]:
    """A breakpoint as Anthropic takes it; True leaves the TTL to the provider, whose default is five minutes."""
    return {"type": "ephemeral"} | ({"ttl": cache} if isinstance(cache, str) else {})


def without_breakpoints(value: dict[str, object]) -> dict[str, object]:
    """A block of a provider's without breakpoints behind it or behind blocks inside it (P.E.4)."""
    kept = {key: item for key, item in value.items() if key not in _KEYS}
    content = json_text.as_list(kept.get("content"))
    if content is not None:
        blocks = [(block, json_text.as_object(block)) for block in content]
        kept["content"] = [block if inner is None else without_breakpoints(inner) for block, inner in blocks]
    source = json_text.as_object(kept.get("source"))
    if source is not None:
        kept["source"] = without_breakpoints(source)
    return kept


def _read_word(word: object) -> Cache:
    match word:
        case "5m":
            return "5m"
        case "1h":
            return "1h"
        case _:
            return False
