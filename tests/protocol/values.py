"""Any value of a protocol type: one strategy for each type, made of what msgspec knows about it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from contextbus_protocol.events import AnyEvent, UnknownEvent
from contextbus_protocol.messages import AnyMessage

MESSAGES: Final[tuple[type[msgspec.Struct], ...]] = get_args(AnyMessage)
EVENTS: Final[tuple[type[msgspec.Struct], ...]] = get_args(AnyEvent)

TEXT: Final = st.text(max_size=8)  # hypothesis draws no lone surrogates here


def _unknown_event(name: str, fields: dict[str, object]) -> UnknownEvent:
    tag = "later-" + name
    return UnknownEvent(name=tag, data=msgspec.json.encode({**fields, "type": tag}).decode())


UNKNOWN_EVENT: Final = st.builds(
    _unknown_event, TEXT, st.dictionaries(TEXT, st.none() | TEXT | st.integers(-9, 9), max_size=2)
)

_SIMPLE: Final[Mapping[type[inspect.Type], st.SearchStrategy[Any]]] = {
    inspect.NoneType: st.none(),
    inspect.BoolType: st.booleans(),
    inspect.IntType: st.integers(-(2**53) + 1, 2**53 - 1),
    inspect.FloatType: st.floats(allow_nan=False, allow_infinity=False),
    inspect.StrType: TEXT,
    inspect.BytesType: st.binary(max_size=8),
}


@functools.cache
def values_of(type_: Any) -> st.SearchStrategy[Any]:
    """Values of a protocol type."""
    return _strategy(inspect.type_info(type_))


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            if cls is UnknownEvent:
                return UNKNOWN_EVENT
            return st.builds(cls, **{field.name: _field(field) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of([_strategy(t) for t in types])
        case inspect.VarTupleType(item_type=item):
            return st.lists(_strategy(item), max_size=2).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*[_strategy(item) for item in items])
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case _:
            return _SIMPLE[type(info)]


def _field(field: inspect.Field) -> st.SearchStrategy[Any]:
    found = _strategy(field.type)
    return found if field.required else st.just(field.default) | found
