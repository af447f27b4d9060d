"""Dynamic state is validated before use; what is refused is named by field and rule, never by its content."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pydantic
import pytest

from contextbus.client.state import read_state
from contextbus_protocol.errors import InvalidTypeError, LimitError, RangeError

SECRET = "s3cret"
"""Content that no error may show."""
T = TypeVar("T")


class Level(enum.Enum):
    """An enum."""

    LOW = "low"
    HIGH = "high"


class Step(msgspec.Struct, rename="camel", tag="step"):
    """A tagged Struct with other names on the wire."""

    step_title: str
    done: bool = False


class Plan(msgspec.Struct, omit_defaults=True):
    """A Struct."""

    zeta: str
    alpha: Annotated[int, msgspec.Meta(ge=1)] = 1
    steps: list[Step] = []
    scores: dict[str, int] = {}
    level: Level = Level.LOW
    hint: str | None = None


class Checked(msgspec.Struct):
    """A Struct whose own check quotes content."""

    name: str

    def __post_init__(self) -> None:
        if self.name == SECRET:
            raise ValueError(f"{self.name} is taken")


class Box(msgspec.Struct, Generic[T]):
    """A generic Struct."""

    inner: T


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    y: int = 0


@dataclasses.dataclass(slots=True)
class Slotted(Point):
    """A subclass with slots and a field of its own making."""

    label: str = "p"
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total = self.x + self.y


@dataclasses.dataclass
class Everything:
    """Fields that are no JSON."""

    when: datetime.datetime
    day: datetime.date
    lasts: datetime.timedelta
    price: decimal.Decimal
    id: uuid.UUID
    raw: bytes
    level: Level
    tags: frozenset[str]
    pair: tuple[int, str]
    anything: Any = None


class Inner(pydantic.BaseModel):
    """A model within another."""

    b: int = pydantic.Field(default=1, ge=1)
    a: str = "x"


class Task(pydantic.BaseModel):
    """A model with aliases, a computed and a hidden field, and whatever else."""

    model_config = pydantic.ConfigDict(extra="allow")

    active_file: str = pydantic.Field(alias="activeFile")
    inner: Inner = Inner()
    scores: dict[str, int] = {}
    tags: set[str] = set()
    key: str = pydantic.Field(default="k", validation_alias="keyIn", serialization_alias="keyOut")
    hidden: str = pydantic.Field(default="h", exclude=True)

    @pydantic.computed_field
    def size(self) -> int:
        return len(self.active_file)


class ByAlias(pydantic.BaseModel):
    """A model that writes aliases."""

    model_config = pydantic.ConfigDict(serialize_by_alias=True)

    zeta: int = pydantic.Field(alias="theZeta")
    alpha: Inner = pydantic.Field(default=Inner(), alias="theAlpha")


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "todo": {"type": "array", "items": {"$ref": "#/$defs/task"}},
        "file": {"type": "string", "maxLength": 20},
        "n": {"type": "number"},
        "free": {"additionalProperties": {"type": "integer"}},
    },
    "required": ["file"],
    "additionalProperties": False,
    "$defs": {
        "task": {"type": "object", "properties": {"title": {"type": "string"}, "done": {}}, "required": ["title"]}
    },
}

DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


def order_of(value: object, schema: Mapping[str, object] | None = None) -> list[str]:
    return list(read_state(value, schema))


@pytest.mark.rule("P.B.1")
def test_every_kind_of_state_is_read() -> None:
    assert read_state(Plan("z", 2, [Step("t")], {"b": 1, "a": 2})) == {
        "zeta": "z",
        "alpha": 2,
        "steps": [{"type": "step", "stepTitle": "t", "done": False}],
        "scores": {"a": 2, "b": 1},
        "level": "low",
        "hint": None,
    }
    assert read_state(Slotted(1, 2)) == {"x": 1, "y": 2, "label": "p", "total": 3}
    assert read_state(Task.model_validate({"activeFile": "f", "extra": 1})) == {
        "active_file": "f",
        "inner": {"b": 1, "a": "x"},
        "scores": {},
        "tags": [],
        "key": "k",
        "size": 1,
        "extra": 1,
    }
    assert read_state({"file": "f"}, SCHEMA) == {"file": "f"}
    assert read_state((Plan, {"zeta": "z"})) == read_state(Plan("z"))
    assert read_state((Slotted, {"x": 1, "y": 2})) == read_state(Slotted(1, 2))
    assert read_state((Task, {"activeFile": "f", "keyIn": "v"}))["key"] == "v"
    assert read_state((Point, Slotted(1, 2))) == read_state(Slotted(1, 2))
    assert read_state((Box[int], {"inner": 1})) == {"inner": 1}


@pytest.mark.rule("P.B.1")
def test_fields_have_the_order_of_their_type() -> None:
    assert order_of(Plan("z")) == ["zeta", "alpha", "steps", "scores", "level", "hint"]
    assert order_of((Slotted, {"label": "a", "y": 1, "x": 2})) == ["x", "y", "label", "total"]
    given = {"zz": 1, "aa": 2, "tags": {"c", "a", "b"}, "scores": {"b": 1, "a": 2}, "activeFile": "f"}
    task = Task.model_validate(given)
    read = read_state(task)
    assert list(read) == ["active_file", "inner", "scores", "tags", "key", "size", "aa", "zz"]
    assert list(read["inner"]) == ["b", "a"]  # type: ignore[call-overload]  # a dict
    assert list(read["scores"]) == ["a", "b"]  # type: ignore[call-overload]  # a dict
    assert read["tags"] == ["a", "b", "c"]
    by_alias = read_state(ByAlias(theAlpha=Inner(), theZeta=1))
    assert list(by_alias) == ["theZeta", "theAlpha"]
    assert list(by_alias["theAlpha"]) == ["b", "a"]  # type: ignore[call-overload]  # a dict


@pytest.mark.rule("P.B.1")
def test_a_dict_has_the_order_of_its_schema_then_of_code_points() -> None:
    state = {"free": {"é": 1, "Z": 2, "a": 3}, "file": "f", "todo": [{"x": 1, "done": 1, "title": "t", "B": 2}]}
    read = read_state(state, SCHEMA)
    assert list(read) == ["todo", "file", "free"]
    assert list(read["free"]) == ["Z", "a", "é"]  # type: ignore[call-overload]  # a dict
    assert list(read["todo"][0]) == ["title", "done", "B", "x"]  # type: ignore[index]  # a list
    inner: list[Any] = [{"properties": {"z": {}}}, {"anyOf": [{"properties": {"y": {}}}]}]
    combined: dict[str, Any] = {"allOf": inner, "properties": {"b": {}}}
    assert order_of({"a": 1, "b": 1, "y": 1, "z": 1}, combined) == ["b", "z", "y", "a"]


@pytest.mark.rule("P.B.1", "P.A.4")
def test_the_order_is_not_that_of_hashes_or_of_insertion() -> None:
    code = (
        "import dataclasses\nfrom contextbus.client import Prompt, user\n"
        "@dataclasses.dataclass\nclass S:\n    tags: set[str]\n    by: dict[str, int]\n"
        "names = {f'n{i}' for i in range(50)}\n"
        "state = S(names, {n: 1 for n in names})\n"
        "print(Prompt().history([user('q')]).state(state).compile('openai').json().decode())"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(written) == 1


@pytest.mark.rule("P.B.1", "P.B.2")
def test_fields_that_are_no_json_are_written_as_msgspec_writes_them() -> None:
    state = Everything(
        datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        datetime.date(2024, 1, 2),
        datetime.timedelta(days=1),
        decimal.Decimal("1.50"),
        uuid.UUID(int=1),
        b"hi",
        Level.HIGH,
        frozenset({"b", "a"}),
        (1, "x"),
        {Level.LOW: deque([1])},
    )
    assert list(read_state(state).values()) == [
        "2024-01-02T03:04:05Z",
        "2024-01-02",
        "P1D",
        "1.50",
        "00000000-0000-0000-0000-000000000001",
        "aGk=",
        "high",
        ["a", "b"],
        [1, "x"],
        {"low": [1]},
    ]


class Word(str):
    """A text."""

    __slots__ = ()


class Count(int):
    """A number."""


@pytest.mark.rule("P.B.1", "P.A.1")
def test_subclasses_are_read_as_what_they_are_made_of() -> None:
    read = read_state({"file": Word("f"), "n": Count(3)}, SCHEMA)
    assert [type(item) for item in read.values()] == [str, int]
    assert read_state(Point(Count(1), Count(2))) == {"x": 1, "y": 2}
    assert read_state((Checked, {"name": Word("a")})) == {"name": "a"}


REFUSED: list[tuple[Callable[[], Any], Mapping[str, object] | None, str, str]] = [
    (lambda: Plan(zeta=3), None, "state.zeta", "expected `str`, got `int`"),  # type: ignore[arg-type]
    (lambda: Plan("z", 0), None, "state.alpha", "expected `int` >= 1"),
    (lambda: Plan("z", scores={SECRET: SECRET}), None, "state.scores[...]", "expected `int`"),  # type: ignore[dict-item]
    (lambda: Plan("z", steps=[Step(1)]), None, "state.steps[0].stepTitle", "expected `str`"),  # type: ignore[arg-type]
    (lambda: (Plan, {"zeta": "z", "level": SECRET}), None, "state.level", "one of the values"),
    (lambda: (Plan, {"zeta": "z", "steps": [{"type": SECRET}]}), None, "state.steps[0].type", "tags"),
    (lambda: (Plan, {}), None, "state", "missing required field `zeta`"),
    (lambda: (Plan, SECRET), None, "state", "a dict, not str"),
    (lambda: (Checked, {"name": SECRET}), None, "state", "own check refused it: ValueError"),
    (lambda: Point("1"), None, "state.x", "expected `int`, got `str`"),  # type: ignore[arg-type]
    (lambda: Slotted(1, label=None), None, "state.label", "expected `str`"),  # type: ignore[arg-type]
    (lambda: Box({SECRET: {1, object()}}), None, "state.inner[...][", "no value of a state"),
    (lambda: Task.model_construct(active_file=SECRET, inner=None), None, "state.inner", "breaks model_type"),
    (lambda: Task.model_construct(active_file="f", inner=Inner.model_construct(b=0)), None, "state.inner.b", "greater"),
    (lambda: Task.model_construct(active_file="f", scores={SECRET: SECRET}), None, "state.scores[...]", "int_parsing"),
    (lambda: (Task, {"active_file": SECRET}), None, "state.activeFile", "breaks missing"),
    (lambda: (Task, {"activeFile": "f", "inner": {"b": 0}}), None, "state.inner.b", "breaks greater_than_equal"),
    (dict, SCHEMA, "state.file", "breaks required"),
    (lambda: {"file": SECRET * 9}, SCHEMA, "state.file", "breaks maxLength 20"),
    (lambda: {"file": 3}, SCHEMA, "state.file", 'breaks type "string"'),
    (lambda: {"file": "f", SECRET: 1}, SCHEMA, "state", "breaks additionalProperties"),
    (lambda: {"file": "f", "free": {SECRET: SECRET}}, SCHEMA, "state.free[...]", 'breaks type "integer"'),
    (lambda: {"file": "f", "todo": [{"title": 1}]}, SCHEMA, "state.todo[0].title", 'breaks type "string"'),
    (lambda: {"file": "f", "todo": [dict[str, str]()]}, SCHEMA, "state.todo[0].title", "breaks required"),
    (lambda: {"file": "f", "todo": (x for x in "ab")}, SCHEMA, "state.todo", "generator is no value"),
    (lambda: {"file": "f", "free": {1: 2, "1": 3}}, SCHEMA, "state.free", "same text"),
    (lambda: {"file": "f", "free": {None: 2}}, SCHEMA, "state.free", "a key is a text"),
    (lambda: {"file": "f"}, None, "state", "JSON Schema"),
    (lambda: Point(1), SCHEMA, "state", "goes with a dict"),
    (lambda: "text", None, "state", "not str"),
    (lambda: None, None, "state", "not NoneType"),
    (lambda: [1, 2], None, "state", "not list"),
    (lambda: (1, 2), None, "state", "a dict, not int"),
    (lambda: (dict, {}), None, "state", "not tuple"),
    (lambda: Point, None, "state", "not type"),
    (dict, {"type": 3}, "schema.type", "breaks anyOf"),
    (dict, {"$schema": "https://example.org/none"}, "schema", "no draft"),
    (dict, {"$ref": "https://example.org/s.json"}, "schema", "nothing is fetched"),
    (dict, {"$ref": "#/$defs/none"}, "schema", "nowhere"),
    (dict, {"$ref": "#"}, "schema", "circle"),
    (dict, {"$schema": 3}, "schema", "no draft"),
    (lambda: {"a": ""}, {"properties": {"a": {"pattern": "("}}}, "schema.properties.a.pattern", "breaks format"),
    (lambda: {"a": ""}, {**DRAFT_4, "patternProperties": {"(": {}}}, "schema", "regular expression"),
    (dict, {"default": object()}, "schema", "not JSON"),
]


@pytest.mark.rule("P.B.1")
@pytest.mark.parametrize(("make", "schema", "path", "rule"), REFUSED)
def test_what_is_refused_is_named_by_field_and_rule(
    make: Callable[[], Any], schema: Mapping[str, object] | None, path: str, rule: str
) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        read_state(make(), schema)
    message = caught.value.message
    assert message.startswith(path)
    assert (caught.value.data.field or "").startswith(path)
    assert rule in message
    assert SECRET not in message
    assert SECRET not in repr(caught.value.data)
    assert caught.value.__cause__ is None


def endless_dict() -> dict[str, object]:
    state: dict[str, object] = {"file": "f"}
    state["self"] = state
    return state


def endless_list() -> list[object]:
    items: list[object] = []
    items.append(items)
    return items


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


class Node(pydantic.BaseModel):
    """A model that may hold itself."""

    next: Node | None = None
    any: Any = None


def endless_model() -> Node:
    node = Node()
    node.next = node
    return node


@pytest.mark.rule("P.B.1", "P.B.2")
@pytest.mark.parametrize(
    ("make", "schema"),
    [
        (endless_dict, {}),
        (lambda: {"a": deep(50_000)}, {}),
        (lambda: Box(endless_list()), None),
        (lambda: Box(deep(50_000)), None),
        (lambda: (Box, {"inner": endless_list()}), None),
        (endless_model, None),
        (lambda: Node(any=deep(50_000)), None),
        (lambda: Node(any=endless_list()), None),
        (lambda: (Node, {"any": deep(50_000)}), None),
    ],
)
def test_endless_and_deep_values_are_refused(make: Callable[[], Any], schema: Mapping[str, object] | None) -> None:
    with pytest.raises(InvalidTypeError):
        read_state(make(), schema)


@pytest.mark.rule("P.B.1")
def test_shared_lists_do_not_unfold_without_end() -> None:
    value: object = 1
    for _ in range(40):
        value = [value, value]
    with pytest.raises(LimitError, match=r"state\.inner"):
        read_state(Box(value))


@pytest.mark.rule("P.B.1", "D.W.6")
@pytest.mark.parametrize("number", [math.nan, math.inf, 1 << 5000])
def test_a_number_that_json_has_not_is_named(number: float) -> None:
    for value, schema in (({"n": number, "file": "f"}, SCHEMA), (Box({"n": number}), None), (Node(any=number), None)):
        with pytest.raises(RangeError, match=r"^state") as caught:
            read_state(value, schema)
        assert caught.value.data.field


@pytest.mark.rule("P.B.1")
def test_a_draft_that_the_schema_names_is_used() -> None:
    draft4 = {**DRAFT_4, "properties": {"n": {"maximum": 3}}}
    exclusive = {"exclusiveMaximum": True, "maximum": 3}  # in draft 4 alone a boolean
    assert read_state({"n": 3}, draft4) == {"n": 3}
    with pytest.raises(InvalidTypeError, match=r"^state\.n: breaks maximum 3$"):
        read_state({"n": 3}, {**draft4, "properties": {"n": exclusive}})
    with pytest.raises(InvalidTypeError, match=r"^schema"):
        read_state({"n": 3}, {"properties": {"n": exclusive}})


@pytest.mark.rule("P.A.1")
def test_what_was_read_shares_nothing_with_what_was_given() -> None:
    todo = [{"title": "a"}]
    state: dict[str, Any] = {"file": "f", "todo": todo}
    read = read_state(state, SCHEMA)
    todo[0]["title"] = "b"
    todo.clear()
    assert read == {"todo": [{"title": "a"}], "file": "f"}


def test_pydantic_and_jsonschema_are_loaded_by_those_who_use_them() -> None:
    code = "import sys, contextbus.client.prompt; print([m for m in ('pydantic', 'jsonschema') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
