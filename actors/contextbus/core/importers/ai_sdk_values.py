"""Members of AI SDK messages and parts: what JSON may hold, and what stays as provider data of "ai-sdk"."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, cast

from contextbus.core import ai_sdk, json_text
from contextbus.core.cache_control import read_cache
from contextbus.core.importers.reading import CACHE_KEY, Object, an_object, fail, rest_of, to_json
from contextbus_protocol.chat import Cache, ProviderData, Unknown
from contextbus_protocol.digests import clean_text

DEEPEST: Final = json_text.MAX_DEPTH - 8
"""Deepest nesting of a member: what is kept of a part wraps it in a few more levels."""


def fields_of(item: object, place: str, but: Collection[str] = ()) -> Object:
    """The members of a message or part, each but ``but`` a value that JSON has.

    Bytes where a file's data stand are base64 from here on.

    Raises:
        InvalidTypeError: it is no object, or a member holds what JSON has not; the text names the member.
    """
    _members(item, place)
    return {
        name: value if name in but else a_json_value(_inline(value, name, f"{place}.{name}"), f"{place}.{name}")
        for name, value in an_object(item, place).items()
    }


def _members(value: object, place: str) -> Mapping[str, object] | None:
    """The value if it is a mapping, whose names must be texts; else None."""
    if not isinstance(value, Mapping):
        return None
    members = cast("Mapping[object, object]", value)
    if not all(isinstance(name, str) for name in members):
        fail(place, "an object with texts as names", members)
    return cast("Mapping[str, object]", members)


def _inline(value: object, name: str, place: str) -> object:
    """Bytes of a file as base64: only ``image`` and ``data`` hold any."""
    if name not in ("image", "data"):
        return value
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    members = _members(value, place)
    if members is not None and isinstance(members.get("data"), bytes | bytearray):
        return {**members, "data": _inline(members["data"], "data", place)}
    return value


def a_json_value(value: object, place: str, depth: int = 1) -> object:
    """A value that JSON has, as dicts and lists of our own, without lone surrogates.

    Raises:
        InvalidTypeError: it holds something else (bytes, NaN, names that are no texts), or is nested too deep.
    """
    if depth > DEEPEST:
        fail(place, f"a value nested at most {DEEPEST} deep", value)
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    members = _members(value, place)
    if members is not None:
        return {clean_text(name): a_json_value(item, place, depth + 1) for name, item in members.items()}
    if isinstance(value, bytes | bytearray) or not isinstance(value, Sequence):
        fail(place, "a JSON value", value)
    return [a_json_value(item, place, depth + 1) for item in cast("Sequence[object]", value)]


def bound(data: str = "{}") -> ProviderData:
    """Provider data of the AI SDK."""
    return ProviderData(ai_sdk.PROVIDER, data)


def rest(value: Object, known: Collection[str]) -> ProviderData | None:
    """The members that we do not model (P.A.5)."""
    return rest_of(value, known, "ai-sdk")


def opaque(value: Object, place: str) -> Unknown:
    """A part that we keep whole and do not look into."""
    kept = {name: item for name, item in value.items() if name != CACHE_KEY}
    return Unknown(data=to_json(kept, place), provider_data=bound(), cache=asks_for_cache(value))


def asks_for_cache(value: Object) -> Cache:
    """The breakpoint that is asked for, with our mark or with Anthropic's option in ``providerOptions``."""
    options = json_text.as_object(value.get("providerOptions")) or {}
    anthropic = json_text.as_object(options.get("anthropic")) or {}
    controls = [anthropic[name] for name in ("cacheControl", "cache_control") if anthropic.get(name) is not None]
    return read_cache(value) or (read_cache({"cache_control": controls[0]}) if controls else False)
