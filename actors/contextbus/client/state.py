"""Dynamic state as users have it: validated, then read as a tree of plain values (P.B.1).

What is refused is named by its path and the rule that it breaks, never by its content.  Keys of a mapping are content
too, unless the type or the schema declares them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast, get_origin

import msgspec

from contextbus.client.state_fields import (
    SCALARS,
    PydanticModel,
    StateReader,
    declared_names,
    exact,
    fields_of,
    is_pydantic,
    is_struct_or_dataclass,
    refused,
)
from contextbus.core.json_text import as_object
from contextbus_protocol.errors import InvalidTypeError, word_of

ROOT: Final = "state"
"""How errors call the state itself, as in ``state.todo[0]``."""

_PLACED = re.compile(r"(?P<rule>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
# What msgspec's messages with these beginnings go on with is content.
_QUOTING: Final = {
    "Invalid enum value": "expected one of the values of its type",
    "Invalid value": "expected one of the tags of its type",
    "Object contains unknown field": "has a field that its type does not declare",
}


def read_state(value: object, schema: Mapping[str, object] | None = None) -> dict[str, object]:
    """Validate a state and read it as new dicts, lists, texts, numbers, booleans and None.

    Fields come in the order of their type, those of a dict in the order of its schema's ``properties``.  What neither
    declares comes behind by code point; the items of a set are sorted by their JSON.

    Args:
        value: a msgspec Struct, a dataclass, a pydantic model (2.11 or later), a dict, or a pair of such a type and a
            dict.  Structs and dataclasses are made anew from their fields, pydantic models validated again.
        schema: the JSON Schema of a dict: draft 2020-12, or the one that its ``$schema`` names.  Only references within
            it are followed, nothing is fetched.

    Raises:
        InvalidTypeError: the state breaks its type or schema, or the schema cannot be used.
        RangeError: a number is not finite, or too long.
        LimitError: it has too many elements.
    """
    if isinstance(value, Mapping):
        if schema is None:
            raise refused(ROOT, "a dict goes with a JSON Schema")
        return _read_mapping(cast("Mapping[object, object]", value), schema)
    if schema is not None:
        raise refused(ROOT, "a JSON Schema goes with a dict")
    kind, data = _typed(value)
    if is_pydantic(_class_of(kind)):
        return _read_pydantic(data, cast("type[PydanticModel]", kind))
    return _read_typed(data, kind)


def _typed(value: object) -> tuple[type[object], object]:
    """The type of a state and its data: an instance, or a mapping that is to become one."""
    kind: object = type(value)
    data = value
    name = type(value).__name__
    pair: list[object] = list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else []
    if len(pair) == len(("type", "data")):
        kind, data = pair
        if isinstance(data, _class_of(kind)):
            kind = type(data)
        elif not issubclass(type(data), Mapping):
            raise refused(ROOT, f"the data of a type are a dict, not {type(data).__name__}")
    if not is_pydantic(_class_of(kind)) and not is_struct_or_dataclass(_class_of(kind)):
        raise refused(
            ROOT,
            "expected a msgspec Struct, a dataclass, a pydantic model, a dict beside its JSON Schema, or a pair of "
            f"such a type and a dict, not {name}",
        )
    return cast("type[object]", kind), data  # a generic alias too, which msgspec takes for a type


def _class_of(kind: object) -> type:
    origin = get_origin(kind) or kind
    return origin if isinstance(origin, type) else type(None)


def _record(tree: object) -> dict[str, object]:
    record = as_object(tree)
    if record is None:
        raise refused(ROOT, "expected a record of fields")
    return record


def _read_mapping(value: Mapping[object, object], schema: Mapping[str, object]) -> dict[str, object]:
    from contextbus.client.state_schema import StateSchema  # noqa: PLC0415  # its library loads for those who need it

    checked = StateSchema(schema)
    tree = StateReader(checked.names).read(value, ROOT)
    checked.check(tree, ROOT)
    return _record(checked.order(tree))


def _read_typed(data: object, kind: type[object]) -> dict[str, object]:
    plain = data
    taken: tuple[type, ...] = ()
    try:
        if not isinstance(data, Mapping):
            StateReader().read(data, ROOT)  # what is endless or no value of a state goes no further
            plain = msgspec.to_builtins(data, builtin_types=SCALARS, enc_hook=exact)
            taken = SCALARS  # of an instance, a text where a time belongs is wrong
        typed: object = msgspec.convert(plain, kind, builtin_types=taken or None)
    except msgspec.ValidationError as exc:
        raise _broken(exc) from None
    except RecursionError:
        raise refused(ROOT, "it is nested too deep or contains itself") from None
    except InvalidTypeError:
        raise
    except TypeError as exc:
        raise refused(ROOT, f"msgspec cannot check its type: {exc}") from None
    return _record(StateReader().read(typed, ROOT))


def _broken(exc: msgspec.ValidationError) -> InvalidTypeError:
    placed = _PLACED.fullmatch(str(exc))
    rule, path = (placed["rule"], ROOT + (placed["path"] or "")) if placed else ("", ROOT)
    if exc.__cause__ is not None:  # raised by the type's own code, which may quote anything
        return refused(path, f"the type's own check refused it: {type(exc.__cause__).__name__}")
    fixed = next((text for beginning, text in _QUOTING.items() if rule.startswith(beginning)), None)
    return refused(path, fixed or rule[:1].lower() + rule[1:])


def _read_pydantic(data: object, kind: type[PydanticModel]) -> dict[str, object]:
    try:
        if isinstance(data, Mapping):
            data = kind.model_validate(cast("object", data))
        else:  # by name, since what validates and what serialises may be other aliases
            kind.model_validate(fields_of(data, ROOT), by_alias=False, by_name=True)
    except ValueError as exc:  # pydantic's ValidationError is one
        raise _broken_pydantic(exc, kind) from None
    except RecursionError:
        raise refused(ROOT, "it is nested too deep or contains itself") from None
    return _record(StateReader(_names_of(kind)).read(data, ROOT))


def _names_of(kind: type[PydanticModel]) -> frozenset[str]:
    names = frozenset(kind.model_fields)
    try:
        return names | declared_names(kind.model_json_schema()) | declared_names(kind.model_json_schema(by_alias=False))
    except Exception:  # a type that no JSON Schema can say: its own fields are known all the same
        return names


def _broken_pydantic(exc: ValueError, kind: type[PydanticModel]) -> InvalidTypeError:
    errors = getattr(exc, "errors", None)
    if errors is None:
        return refused(ROOT, f"the type's own check refused it: {type(exc).__name__}")
    first = cast("dict[str, Any]", errors(include_url=False, include_context=False, include_input=False)[0])
    reader, path = StateReader(_names_of(kind)), ROOT
    for key in first["loc"]:
        path = reader.place(path, key)
    return refused(path, f"breaks {word_of(first['type']) or 'a rule of its type'}")
