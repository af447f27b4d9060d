"""A state read field by field: records in the order of their type, mappings by code point, scalars as JSON has them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, Final, Protocol, cast

import msgspec

from contextbus.core import json_text
from contextbus.core.dynamic_state import MOST_ELEMENTS, number_text
from contextbus.core.json_text import MAX_DEPTH, as_list, as_object
from contextbus_protocol.errors import ErrorData, InvalidTypeError, LimitError, RangeError

SCALARS: Final = (
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    decimal.Decimal,
    bytes,
    bytearray,
)
"""Types that are no JSON and are written as msgspec writes them: ISO 8601, digits, base64."""
UNKNOWN_PLACE: Final = "[...]"
"""A place in a path whose key is content."""

_WRITTEN: Final[tuple[type, ...]] = (*SCALARS, memoryview)


class PydanticModel(Protocol):
    """What a pydantic model has; pydantic itself is never imported here."""

    model_fields: ClassVar[Mapping[str, Any]]
    model_computed_fields: ClassVar[Mapping[str, Any]]
    model_extra: Mapping[str, object] | None

    def model_dump(self, *, mode: str, warnings: bool) -> object:
        """The model as plain values."""
        ...

    @classmethod
    def model_validate(cls, obj: object, *, by_alias: bool | None = None, by_name: bool | None = None) -> object:
        """A model of plain values."""
        ...

    @classmethod
    def model_json_schema(cls, by_alias: bool = True) -> dict[str, Any]:
        """The JSON Schema of the model."""
        ...


def is_pydantic(kind: type) -> bool:
    """Whether a type is a pydantic model."""
    return all(callable(getattr(kind, name, None)) for name in ("model_dump", "model_validate", "model_json_schema"))


def is_struct_or_dataclass(kind: type[object]) -> bool:
    """Whether msgspec can check values of a type: Structs and dataclasses."""
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)


def declared_names(schema: object) -> frozenset[str]:
    """Every name that a JSON Schema declares as a property, at any depth."""
    if (members := as_object(schema)) is not None:
        properties = as_object(members.get("properties")) or {}
        return frozenset(properties).union(*map(declared_names, members.values()))
    return frozenset[str]().union(*map(declared_names, as_list(schema) or ()))


def refused(path: str, rule: str) -> InvalidTypeError:
    """The error of a field and the rule that it breaks."""
    return InvalidTypeError(f"{path}: {rule}", ErrorData(field=path))


def exact(value: object) -> object:
    """Subclasses of texts and numbers as such, other collections as dicts and lists; the rest as it is."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if _is_collection(value):
        return list(cast("Set[object] | Sequence[object]", value))
    return value


def _is_collection(value: object) -> bool:
    return isinstance(value, Set | Sequence) and not isinstance(value, _WRITTEN)


def fields_of(value: object, path: str, depth: int = 0) -> object:
    """A pydantic model as its fields by name, to be validated again: nested models too, other values as they are.

    Raises:
        InvalidTypeError: it is nested deeper than ``MAX_DEPTH``.
    """
    if depth > MAX_DEPTH:
        raise _too_deep(path)
    if is_pydantic(type(value)):
        model = cast("PydanticModel", value)
        if getattr(value, "__pydantic_root_model__", False):
            return fields_of(getattr(value, "root", None), path, depth + 1)
        names = [name for name in type(model).model_fields if hasattr(value, name)]
        fields = {name: fields_of(getattr(value, name), path, depth + 1) for name in names}
        return fields | {key: fields_of(item, path, depth + 1) for key, item in (model.model_extra or {}).items()}
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value).items()
        return {key: fields_of(item, path, depth + 1) for key, item in pairs}
    if type(value) in (list, tuple):
        items = [fields_of(item, path, depth + 1) for item in cast("Sequence[object]", value)]
        return items if isinstance(value, list) else tuple(items)
    return value


class StateReader:
    """Reads a state as new dicts, lists, texts, numbers, booleans and None.

    Args:
        names: the keys that a path in an error may show; fields of Structs and dataclasses always are.
    """

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self._names = names
        self._elements = 0

    def place(self, path: str, key: int | str) -> str:
        """The path of a child: an index, a declared name, or a key that is content."""
        if isinstance(key, int):
            return f"{path}[{key}]"
        return f"{path}.{key}" if key in self._names else path + UNKNOWN_PLACE

    def read(self, value: object, path: str, depth: int = 0, like: object = None) -> object:
        """Read a value; ``like`` is what it was made from where a library already wrote it as plain values.

        Raises:
            InvalidTypeError: it is no value that JSON can say, or nested deeper than ``MAX_DEPTH``.
            RangeError: a number is not finite or too long.
            LimitError: it has too many elements.
        """
        self._elements += 1
        if self._elements > MOST_ELEMENTS:
            raise LimitError(f"{path}: a state has at most {MOST_ELEMENTS} elements", ErrorData(field=path))
        like = value if like is None else like
        if value is None or value is msgspec.UNSET or isinstance(value, bool):
            return None if value is msgspec.UNSET else value
        if isinstance(value, enum.Enum):
            return self.read(value.value, path, depth + 1)
        if isinstance(value, str | int | float):
            return _number(exact(value), path)
        if isinstance(value, _WRITTEN):
            return msgspec.to_builtins(value)
        if depth > MAX_DEPTH:
            raise _too_deep(path)
        if _is_record(value):
            plain = _written(value, path)
            if as_object(plain) is None:  # a model may write itself as anything
                return self.read(plain, path, depth + 1)
            return self._read_members(cast("dict[object, object]", plain), path, depth, value)
        if isinstance(value, Mapping):
            return self._read_members(cast("Mapping[object, object]", value), path, depth, like)
        if isinstance(value, Set | Sequence):
            items = list(cast("Set[object] | Sequence[object]", value))
            unordered = isinstance(like, Set)
            likes = list(cast("Sequence[object]", like)) if isinstance(like, Sequence) else items
            likes = likes if len(likes) == len(items) else items
            pairs = enumerate(zip(items, likes, strict=True))
            read = [self.read(item, self.place(path, n), depth + 1, source) for n, (item, source) in pairs]
            return sorted(read, key=json_text.encode) if unordered else read
        raise refused(path, f"{type(value).__name__} is no value of a state")

    def _read_members(self, members: Mapping[object, object], path: str, depth: int, like: object) -> dict[str, object]:
        read: dict[str, object] = {}
        for key, item, source, declared in _ordered(members, like, path):
            place = f"{path}.{key}" if declared else self.place(path, key)
            if key in read:
                raise refused(path, "two of its keys are the same text")
            read[key] = self.read(item, place, depth + 1, source)
        return read


def _ordered(members: Mapping[object, object], like: object, path: str) -> Iterator[tuple[str, object, object, bool]]:
    """Key, value, what the value was made from, and whether the type declares the key."""
    if _is_record(like):
        attributes = _attributes(like)
        for key, name in attributes.items():
            if key in members:
                yield key, members[key], getattr(like, name, None), True
        further = {_key(key, path): item for key, item in members.items() if key not in attributes}
        for key in sorted(further):
            yield key, further[key], None, False
        return
    sources = list(cast("Mapping[object, object]", like).values()) if isinstance(like, Mapping) else []
    if len(sources) != len(members):
        sources = list(members.values())
    keyed = [(_key(key, path), item, source) for (key, item), source in zip(members.items(), sources, strict=True)]
    for key, item, source in sorted(keyed, key=lambda found: found[0]):
        yield key, item, source, False


def _is_record(value: object) -> bool:
    return is_pydantic(type(value)) or is_struct_or_dataclass(type(value))


def _written(value: object, path: str) -> object:
    """A record as a mapping; a Struct or dataclass keeps its values, a pydantic model writes them itself."""
    if not is_pydantic(type(value)):
        return {key: getattr(value, name, None) for key, name in _attributes(value).items()} | _tag(value)
    try:
        return cast("PydanticModel", value).model_dump(mode="json", warnings=False)
    except (ValueError, TypeError, RecursionError) as exc:
        raise refused(path, f"pydantic cannot write it: {type(exc).__name__}") from None


def _attributes(value: object) -> dict[str, str]:
    """The name under which a field is written and that of the attribute, in the order of the type."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        tag = {cast("str", key): "" for key in _tag(value)}
        struct = type(value)
        return tag | dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
    if not is_pydantic(kind):
        return {field.name: field.name for field in dataclasses.fields(cast("Any", value))}
    model = cast("type[PydanticModel]", kind)
    written: dict[str, str] = {}
    for name, field in model.model_fields.items():
        written |= {name: name, field.serialization_alias or name: name}
    return written | {name: name for name in model.model_computed_fields}


def _tag(value: object) -> dict[object, object]:
    if not isinstance(value, msgspec.Struct) or value.__struct_config__.tag is None:
        return {}
    return {value.__struct_config__.tag_field: value.__struct_config__.tag}


def _key(key: object, path: str) -> str:
    """The text of a key, as JSON has it."""
    plain = key.value if isinstance(key, enum.Enum) else key
    if isinstance(plain, _WRITTEN):
        plain = msgspec.to_builtins(plain)
    if isinstance(plain, str):
        return str.__str__(plain)
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        return number_text(plain)
    raise refused(path, f"a key is a text, not {type(key).__name__}")


def _number(value: object, path: str) -> object:
    if isinstance(value, int | float):
        try:
            number_text(value)
        except RangeError as exc:
            raise RangeError(f"{path}: {exc.message}", ErrorData(field=path)) from None
    return value


def _too_deep(path: str) -> InvalidTypeError:
    return refused(path[:200], f"a state is nested at most {MAX_DEPTH} levels deep; this one is deeper or endless")
