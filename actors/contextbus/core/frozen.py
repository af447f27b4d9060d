"""Read-only dicts and lists that every JSON encoder and SDK still takes for dicts and lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from contextbus.core.json_text import as_list, as_object


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError("this message is shared with later steps and read-only; payload.copy() gives dicts of your own")


class FrozenDict(dict[str, object]):
    """A dict that refuses every change with ``TypeError``; its copies are plain dicts."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse

    def __deepcopy__(self, memo: dict[int, object]) -> object:
        return thaw(self)

    def __copy__(self) -> dict[str, object]:
        return dict(self)

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[()], None, None, Iterator[tuple[str, object]]]:
        return (dict, (), None, None, iter(self.items()))


class FrozenList(list[object]):
    """A list that refuses every change with ``TypeError``; its copies are plain lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __deepcopy__(self, memo: dict[int, object]) -> object:
        return thaw(self)

    def __copy__(self) -> list[object]:
        return list(self)

    def __reduce__(self) -> tuple[type[list[object]], tuple[()], None, Iterator[object]]:
        return (list, (), None, iter(self))


def freeze(value: object) -> object:
    """The value with every dict and list in it made read-only."""
    if (members := as_object(value)) is not None:
        return FrozenDict({key: freeze(item) for key, item in members.items()})
    if (items := as_list(value)) is not None:
        return FrozenList([freeze(item) for item in items])
    return value


def thaw(value: object) -> object:
    """The value with every dict and list in it plain and its owner's."""
    if (members := as_object(value)) is not None:
        return {key: thaw(item) for key, item in members.items()}
    if (items := as_list(value)) is not None:
        return [thaw(item) for item in items]
    return value
