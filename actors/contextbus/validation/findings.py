"""What the checks of all providers share: findings, places in a body, and lone surrogates (all.S1)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final, Literal

import msgspec

from contextbus.core.json_text import as_list, as_object

Severity = Literal["error", "warning"]
Object = dict[str, object]

SHAPE: Final = "shape"
"""The code of what has not even the form that the rules speak of, such as a message that is no object."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_PATH: Final = 24
# What stands in these members is the user's own, so its keys are content and never shown.
_FREE: Final = frozenset(("args", "arguments", "input_schema", "metadata", "parameters", "response", "schema"))


class Finding(msgspec.Struct, frozen=True):
    """What a check found.

    ``rule`` is the code, such as ``anthropic.A6``; ``place`` is a path, such as ``messages[3].content[1]``; ``message``
    is one sentence that says what to do, and holds nothing of the content.
    """

    rule: str
    severity: Severity
    place: str
    message: str


def error(rule: str, place: str, message: str) -> Finding:
    """The API refuses the request."""
    return Finding(rule, "error", place, message)


def warning(rule: str, place: str, message: str) -> Finding:
    """Only strict endpoints refuse the request, or quality is lost."""
    return Finding(rule, "warning", place, message)


def member(place: str, key: object) -> str:
    """The place of a member; a key that is no plain name is not shown."""
    name = key if isinstance(key, str) and _PLAIN_KEY.fullmatch(key) else "?"
    return f"{place}.{name}" if place else name


def as_text(value: object) -> str | None:
    """The value if it is a text, else None."""
    return value if isinstance(value, str) else None


def as_count(value: object) -> int | None:
    """The value if it is a whole number, else None; truth values are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_objects(value: object, place: str, what: str) -> Iterator[tuple[str, Object | Finding]]:
    """The objects of a list with their places; a finding in place of what is none, and none for a value that is absent.

    Args:
        value: what stands where a list is expected.
        place: where it stands.
        what: the singular of what the list holds, for messages.
    """
    items = as_list(value)
    if items is None:
        if value is not None:
            yield place, error(SHAPE, place, f"This is no list; write a list of {what}s.")
        return
    for index, item in enumerate(items):
        where = f"{place}[{index}]"
        found = as_object(item)
        yield where, error(SHAPE, where, f"This {what} is no object; write one.") if found is None else found


def find_unknown_keys(value: Object, known: Collection[str], place: str, rule: str, what: str) -> Iterator[Finding]:
    """A finding for each member that the API does not know."""
    for key in value:
        if key not in known:
            yield error(rule, member(place, key), f"{what} has no such member; leave it out.")


class _Step(msgspec.Struct, frozen=True):
    """One step of a path, linked to the one before it, so that a path costs nothing until it is shown."""

    before: _Step | None
    key: str | int


def find_surrogates(body: object) -> Iterator[Finding]:
    """Every text with a lone surrogate, which no JSON in UTF-8 can hold (all.S1); its cost is linear."""
    waiting: list[tuple[object, _Step | None, bool]] = [(body, None, False)]
    while waiting:
        value, step, free = waiting.pop()
        if isinstance(value, str):
            if _SURROGATE.search(value):
                yield _surrogate(step)
        elif (members := as_object(value)) is not None:
            if any(_SURROGATE.search(str(key)) for key in members):
                yield _surrogate(step)
            inner = free or members.get("type") == "tool_use"
            for key, item in reversed(members.items()):
                hidden = free or (inner and key == "input")
                waiting.append((item, step if hidden else _Step(step, key), hidden or key in _FREE))
        elif (items := as_list(value)) is not None:
            last = len(items) - 1
            waiting.extend(
                (item, step if free else _Step(step, last - n), free) for n, item in enumerate(reversed(items))
            )


def _surrogate(step: _Step | None) -> Finding:
    steps: list[str | int] = []
    while step is not None and len(steps) <= _LONGEST_PATH:
        steps.append(step.key)
        step = step.before
    place = "" if step is None else "…"
    for key in reversed(steps):
        place = f"{place}[{key}]" if isinstance(key, int) else member(place, key)
    return error("all.S1", place or "body", "A text holds half of a surrogate pair; replace it by U+FFFD.")
