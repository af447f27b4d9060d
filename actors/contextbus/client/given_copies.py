"""Private copies of what a caller hands over: equal to it in one comparison as long as it reads the same.

A copy is a plain dict where ``==`` tells every difference that an importer sees: all its leaves are texts or None, and
its members are read by their names, so that their order says nothing.  Everything else is compared by its encoding,
which tells 1, 1.0 and True, lists and tuples, and the order of members apart.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from contextbus.core.importers import Form
from contextbus_protocol.errors import InvalidTypeError

_ENCODING: Final = 2
"""The last format of ``marshal`` that has no references: equal values have equal bytes."""

_MESSAGES: Final[Mapping[Form, tuple[str, ...]]] = {
    "openai": ("role", "content", "name", "tool_calls", "tool_call_id", "refusal"),
    "anthropic": ("role", "content"),
    "ai-sdk": ("role", "content"),
}
_TEXT: Final = ("type", "text")
_PARTS: Final[Mapping[Form, Mapping[str, tuple[str, ...]]]] = {
    "openai": {"text": _TEXT, "image_url": ("type", "image_url")},
    "anthropic": {
        "text": _TEXT,
        "thinking": ("type", "thinking", "signature"),
        "redacted_thinking": ("type", "data"),
        "tool_use": ("type", "id", "name", "input"),
        "tool_result": ("type", "tool_use_id", "content", "is_error"),
        "image": ("type", "source"),
    },
    "ai-sdk": {
        "text": _TEXT,
        "reasoning": _TEXT,
        "tool-call": ("type", "toolCallId", "toolName", "input"),
        "tool-result": ("type", "toolCallId", "toolName", "output"),
    },
}
"""Members of messages and parts that are read by name; of others there may be one, since their order is kept."""
_WITHIN: Final = {"source": ("type", "media_type", "data"), "image_url": ("url", "detail")}
"""Members of the data of images; of a source those that hold base64."""
_CALL: Final = ("id", "type", "function")
_FUNCTION: Final = ("name", "arguments")


class NoEncodingError(Exception):
    """A value has something in it whose changes cannot be seen."""


class _Encoded:
    """A value by its encoding; never equal to one that has none."""

    __slots__ = ("_data",)

    def __init__(self, value: object) -> None:
        try:
            self._data: object = encode(value)
        except NoEncodingError:
            self._data = None

    def __hash__(self) -> int:
        return 0  # it stands for a value that may change

    def __eq__(self, other: object) -> bool:
        try:
            return self._data is not None and encode(self.plain(other)) == self._data
        except NoEncodingError:
            return False

    def plain(self, other: object) -> object:
        return other


class _EncodedMessage(_Encoded):
    """A message that is no dict, or one that ``==`` is not enough for."""

    __slots__ = ("_plain",)

    def __init__(self, value: object, plain: Callable[[object], object]) -> None:
        super().__init__(value)
        self._plain = plain

    def plain(self, other: object) -> object:
        try:
            return self._plain(other)
        except InvalidTypeError:
            raise NoEncodingError from None


def copy_message(
    given: object, read: Mapping[str, object], form: Form | None, plain: Callable[[object], object]
) -> object:
    """What later lists are compared with in place of a message.

    Args:
        given: the message as it was given.
        read: the members that were read of it.
        form: the form of the list that it was read in; None where order may say something anywhere.
        plain: gives the members of a message.
    """
    names = None if form is None else _MESSAGES.get(form)
    if type(given) is dict and form is not None and names is not None and _is_by_name(read, names):
        try:
            return {key: _copy_member(key, value, names, form) for key, value in read.items()}
        except RecursionError:
            pass
    return _EncodedMessage(read, plain)


def _copy_member(key: str, value: object, names: tuple[str, ...], form: Form) -> object:
    items = _as_list(value)
    if key in names and items is not None:
        if key == "content":
            return [_copy_part(item, form) for item in items]
        if key == "tool_calls":
            return [_copy_call(item) for item in items]
    return _copy_strictly(value)


def _copy_part(value: object, form: Form) -> object:
    part = _as_dict(value)
    if part is None:
        return _copy_strictly(value)
    kind = part.get("type")
    names = _PARTS.get(form, {}).get(kind) if type(kind) is str else None
    if names is None or not _is_by_name(part, names):
        return _copy_strictly(part)
    copied = {name: _copy_member(name, item, names, form) for name, item in part.items()}
    for key, within in _WITHIN.items():
        inner = _as_dict(part.get(key))
        if key in names and inner is not None:
            if not _is_by_name(inner, within, more=0) or inner.get("type", "base64") != "base64":
                return _copy_strictly(part)
            copied[key] = {name: _copy_strictly(item) for name, item in inner.items()}
    return copied


def _copy_call(value: object) -> object:
    call = _as_dict(value)
    function = None if call is None else _as_dict(call.get("function"))
    if call is None or function is None or not (_is_by_name(call, _CALL) and _is_by_name(function, _FUNCTION)):
        return _copy_strictly(value)
    copied = {name: _copy_strictly(item) for name, item in call.items()}
    return copied | {"function": {name: _copy_strictly(item) for name, item in function.items()}}


def _copy_strictly(value: object) -> object:
    """A copy of a value whose every detail counts."""
    return _copy_plainly(value) if _is_plain(value) else _Encoded(value)


def _is_plain(value: object) -> bool:
    """Whether ``==`` tells every difference: texts and None, in lists and in dicts of one member."""
    if value is None or type(value) is str:
        return True
    items = _as_list(value)
    if items is not None:
        return all(map(_is_plain, items))
    members = _as_dict(value)
    if members is None or len(members) > 1:
        return False
    return all(type(key) is str and _is_plain(item) for key, item in members.items())


def _copy_plainly(value: object) -> object:
    items = _as_list(value)
    if items is not None:
        return [_copy_plainly(item) for item in items]
    members = _as_dict(value)
    return value if members is None else {key: _copy_plainly(item) for key, item in members.items()}


def _as_list(value: object) -> list[object] | None:
    return cast("list[object]", value) if type(value) is list else None


def _as_dict(value: object) -> dict[str, object] | None:
    return cast("dict[str, object]", value) if type(value) is dict else None


def _is_by_name(members: Mapping[str, object], names: tuple[str, ...], *, more: int = 1) -> bool:
    """Whether the order of members says nothing: all but so many are read by name."""
    if not all(type(key) is str for key in members):
        return False
    return sum(key not in names for key in members) <= more


def encode(value: object) -> object:
    """A value's encoding: equal to another value's if an importer reads both the same.

    Raises:
        NoEncodingError: something in it has none.
    """
    try:
        return marshal.dumps(cast("Any", value), _ENCODING)
    except ValueError:
        pass
    try:
        return "made", marshal.dumps(cast("Any", _describe(value)), _ENCODING)
    except (TypeError, ValueError, RecursionError):
        raise NoEncodingError from None


def _describe(value: object) -> object:
    """A value with dicts and lists of other types, and an SDK's objects, as plain ones with their type's name."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return kind, _describe(dump(mode="json", exclude_unset=True))
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return kind, [(_describe(key), _describe(item)) for key, item in members.items()]
    if isinstance(value, list | tuple):
        return kind, [_describe(item) for item in cast("list[object]", value)]
    if isinstance(value, str):
        return kind, str.__str__(value)
    if value is None or isinstance(value, int | float | bytes):
        return kind, value  # of a subclass marshal takes none
    raise NoEncodingError
