"""The messages of one call: the caller's own objects, and what each of them says (C.A.5-C.A.7, C.E.7)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NoReturn, cast

import msgspec

from contextbus.client.given import Dumpable, GivenMessage, read_given
from contextbus.core.compaction.composition import is_summary, summary_message, summary_text
from contextbus.core.compaction.items import Item
from contextbus.core.history import digest_message
from contextbus.core.importers import Provider
from contextbus.core.importers.detect import READERS, tell_provider
from contextbus.core.json_text import MAX_DEPTH
from contextbus_protocol.chat import ChatMessage, ToolResult
from contextbus_protocol.errors import ErrorData, InvalidTypeError

_PLACE: Final = re.compile(r"(?:messages|contents|input)\[(\d+)\]")


class Source(msgspec.Struct, frozen=True):
    """The messages of one call; ``given`` are the caller's objects, ``messages`` say the same in our form, by index.

    ``items`` are those with our own blocks marked; ``form`` is whose the dicts are.
    """

    given: tuple[GivenMessage, ...]
    messages: tuple[ChatMessage, ...]
    items: tuple[Item, ...]
    form: Provider | None = None

    def summary_message(self, start: int, summary: str) -> GivenMessage:
        """The message of a summary, in the form of the first message that it stands for (C.E.2)."""
        if isinstance(self.given[start], ChatMessage | ToolResult):
            return summary_message(summary)
        if self.form == "gemini":
            return {"role": "user", "parts": [{"text": summary_text(summary)}]}
        return {"role": "user", "content": summary_text(summary)}


def read_source(messages: object, own_blocks: Collection[str] = ()) -> Source:
    """Read the messages of a call; none of them is changed or copied (C.A.6, C.A.7).

    Args:
        messages: ChatMessages, tool results, a provider's dicts (AI SDK model messages where nothing tells another
            provider), or an SDK's objects; each is one message.  Of OpenAI's Responses only lists in which each item
            is one can be read: what its assistant wrote in a row is one message.
        own_blocks: digests of own blocks (D.G.33).

    Raises:
        InvalidTypeError: a message cannot be read; the text names its index and field (C.A.5).
    """
    given = _as_tuple(messages)
    read: list[ChatMessage | None] = [None] * len(given)
    foreign: list[int] = []
    plain: list[dict[str, object]] = []
    for index, message in enumerate(given):
        match message:
            case ChatMessage():
                read[index] = _check(message, index)
            case ToolResult():
                read[index] = _check(_read_result(message, index), index)
            case _:
                foreign.append(index)
                plain.append(_plain(message, index))
    form = (tell_provider(plain) or "ai-sdk") if plain else None  # what several write alike is the AI SDK's (C.B)
    for index, found in zip(foreign, _read(plain, foreign, form), strict=True):
        read[index] = found
    whole = tuple(message for message in read if message is not None)
    return Source(given, whole, _items(whole, own_blocks), form)


def _as_tuple(messages: object) -> tuple[GivenMessage, ...]:
    kind = _kind(messages)
    if isinstance(messages, str | bytes | bytearray | Mapping) or not isinstance(messages, Iterable):
        raise InvalidTypeError(f"messages: expected a list of messages, found {kind}")
    return tuple(cast("Iterable[GivenMessage]", messages))


def _plain(message: object, index: int) -> dict[str, object]:
    if type(message) is dict:
        return cast("dict[str, object]", message)
    if isinstance(message, Mapping):
        return cast("dict[str, object]", _thaw(cast("object", message)))
    if not isinstance(message, Dumpable) or isinstance(message, type):
        _refuse(index, f"expected a ChatMessage, a ToolResult, a dict or an SDK object, found {_kind(message)}")
    return dict(message.model_dump())


def _thaw(value: object, depth: int = 0) -> object:
    """A frozen message as dicts and lists of our own, which every reader knows; deeper than JSON may be, as it is."""
    if depth <= MAX_DEPTH and isinstance(value, Mapping):
        return {key: _thaw(item, depth + 1) for key, item in cast("Mapping[object, object]", value).items()}
    if depth <= MAX_DEPTH and isinstance(value, list | tuple):
        return [_thaw(item, depth + 1) for item in cast("Sequence[object]", value)]
    return value


def _read_result(result: ToolResult, index: int) -> ChatMessage:
    if not isinstance(cast("object", result.id), str):
        _refuse(index, "the id of a tool result must be a text")
    try:
        read = read_given((result,))
    except InvalidTypeError as exc:
        _refuse(index, exc.message)
    return read[0]


def _check(message: ChatMessage, index: int) -> ChatMessage:
    """The message, whose fields hold what their types say: nothing checks that when one is made."""
    try:
        msgspec.convert(msgspec.to_builtins(message), ChatMessage)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as exc:
        _refuse(index, f"no usable ChatMessage: {exc}" if isinstance(exc, msgspec.ValidationError) else "no message")
    return message


def _read(plain: Sequence[dict[str, object]], indices: Sequence[int], form: Provider | None) -> tuple[ChatMessage, ...]:
    """Dicts of one provider as messages, one for each."""
    if form is None:
        return ()
    try:
        found = READERS[form](plain).messages
    except InvalidTypeError as exc:  # places count the dicts alone
        text = _PLACE.sub(lambda match: f"messages[{indices[int(match[1])]}]", exc.message, count=1)
        raise InvalidTypeError(text, ErrorData(field=text.partition(":")[0])) from None
    if len(found) != len(plain):
        raise InvalidTypeError(f"messages: {len(plain)} dicts read as {len(found)} messages; give one dict a message")
    return found


def _items(messages: Sequence[ChatMessage], own_blocks: Collection[str]) -> tuple[Item, ...]:
    if not own_blocks:
        return tuple(map(Item, messages))
    own = frozenset(own_blocks)
    found: list[Item] = []
    for message in messages:
        if digest_message(message) not in own:
            found.append(Item(message))
        else:
            found.append(Item(message, "summary" if is_summary(message) else "block"))
    return tuple(found)


def _kind(value: object) -> str:
    return type(value).__name__


def _refuse(index: int, text: str) -> NoReturn:
    place = f"messages[{index}]"
    raise InvalidTypeError(f"{place}: {text}", ErrorData(field=place)) from None
