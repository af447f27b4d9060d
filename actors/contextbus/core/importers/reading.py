"""What the importers share: a conversation, and readers of fields that name the place of what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NoReturn, cast

import msgspec

from contextbus.core import cache_control, json_text
from contextbus.core.cache_control import read_cache, without_breakpoints
from contextbus_protocol.chat import AnyPart, ChatMessage, Document, Image, ProviderData, ResultPart, Text, Unknown
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import ErrorData, InvalidTypeError

Provider = Literal["openai", "openai-responses", "anthropic", "gemini", "ai-sdk"]
Form = Literal[Provider, "claude-code", "codex"]
"""Whose form a file of conversations has: a provider's, or that of a coding agent's sessions."""
Object = dict[str, object]

CACHE_KEY: Final = cache_control.CACHE_KEY
LONGEST_SHOWN: Final = 20
_BREAKPOINTS: Final = (CACHE_KEY, cache_control.CONTROL_KEY)


class Conversation(msgspec.Struct, frozen=True):
    """What an importer read; the system prompt, where there is one, leads the messages.

    ``tools`` is the JSON text of the definitions as the provider has them.
    """

    messages: tuple[ChatMessage, ...]
    tools: str | None = None
    id: str | None = None


def fail(place: str, expected: str, value: object) -> NoReturn:
    """Say what a field should hold and what type it has; never its content.

    Raises:
        InvalidTypeError: always.
    """
    found = "nothing" if value is None else type(value).__name__
    raise InvalidTypeError(f"{place}: expected {expected}, found {found}", ErrorData(field=place))


def fail_word(place: str, words: Iterable[str], word: str) -> NoReturn:
    """Say which words a field may hold, and the one that it holds, cut short: it is no content but a name.

    Raises:
        InvalidTypeError: always.
    """
    shown = word if len(word) <= LONGEST_SHOWN else f"{word[:LONGEST_SHOWN]}…"
    raise InvalidTypeError(f"{place}: expected one of {', '.join(words)}, found {shown!r}", ErrorData(field=place))


def load(data: object) -> object:
    """JSON text or bytes as values; an SDK's own objects as dicts; everything else as it is.

    Raises:
        InvalidTypeError: the text is no JSON; the message names line and column.
    """
    if isinstance(data, bytes | bytearray):
        data = bytes(data).decode("utf-8-sig", "replace")
    if isinstance(data, str):
        try:
            return json.loads(data.removeprefix("\ufeff"))
        except json.JSONDecodeError as exc:
            raise InvalidTypeError(f"not JSON: {exc.msg} in line {exc.lineno}, column {exc.colno}") from None
        except (RecursionError, ValueError):
            raise InvalidTypeError("not JSON that can be read: nested too deep, or a number too long") from None
    return _plain(data)


def _plain(data: object) -> object:
    dump = getattr(data, "model_dump", None)
    return dump(mode="json", exclude_unset=True) if callable(dump) else data


def an_object(value: object, place: str) -> Object:
    """A JSON object."""
    value = _plain(value)
    if not isinstance(value, Mapping):
        fail(place, "an object", value)
    found = cast("Mapping[object, object]", value)
    return {clean_text(str(key)): item for key, item in found.items()}


def a_list(value: object, place: str) -> list[object]:
    """A JSON list."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        fail(place, "a list", value)
    return list(cast("Sequence[object]", value))


def a_text(value: object, place: str) -> str:
    """A text, without lone surrogates."""
    if not isinstance(value, str):
        fail(place, "a text", value)
    return clean_text(value)


def a_text_or_none(value: object, place: str) -> str | None:
    """A text, or None for nothing."""
    return None if value is None else a_text(value, place)


def conversation_id(top: Object) -> str | None:
    """The id of a conversation, where it has one that is a text or a number."""
    value = top.get("id")
    return clean_text(str(value)) if isinstance(value, str | int) else None


def arguments(value: object) -> str:
    """Arguments of a call as JSON text; a text stays as the model wrote it, broken or not (P.E.6)."""
    if isinstance(value, str):
        return clean_text(value)
    return "{}" if value is None else to_json(value, "arguments")


def to_json(value: object, place: str) -> str:
    """Compact JSON text of a value.

    Raises:
        InvalidTypeError: the value holds something that JSON has not.
    """
    try:
        return json_text.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        fail(place, "a JSON value", value)


def rest_of(value: Object, known: Collection[str], provider: Provider) -> ProviderData | None:
    """The fields of an object that we do not model, as provider data; None if there are none (P.A.5)."""
    left = {
        key: item for key, item in value.items() if key not in known and key not in _BREAKPOINTS and item is not None
    }
    return ProviderData(provider, to_json(left, "provider data")) if left else None


def unknown(value: Object, provider: Provider, place: str) -> Unknown:
    """A part of a type that we do not know.

    Raises:
        InvalidTypeError: it has no type.
    """
    a_text(value.get("type"), f"{place}.type")
    kept = without_breakpoints(value)
    return Unknown(data=to_json(kept, place), provider_data=ProviderData(provider, "{}"), cache=read_cache(value))


def result_content(
    content: object, read: Callable[[object, str], tuple[AnyPart, ...]], place: str
) -> tuple[ResultPart, ...]:
    """Content of a tool result: parts as ``read`` reads them, or JSON text of whatever else a tool returned."""
    if content is None or isinstance(content, str) or json_text.as_list(content) is not None:
        return tuple(part for part in read(content, place) if isinstance(part, Text | Image | Document | Unknown))
    return (Text(text=to_json(content, place)),)


def data_url(url: str) -> tuple[str | None, str] | None:
    """Media type and base64 data of a data URL; None for any other URL."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        return None
    return head[5:-7].partition(";")[0] or None, data
