"""What the calls of the model's tools mean: arguments, operations, operation ids, answers (D.Q)."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.schema_check import fits

from contextbus.core.targets.tools import read_tools, tools_text
from contextbus.core.working_memory import create_working_memory
from contextbus.core.working_memory_patch import PatchReason, PatchResult
from contextbus.core.working_memory_tool_schemas import ToolShape, define_tools
from contextbus.core.working_memory_tools import (
    ToolAction,
    answer_write,
    make_operation_id,
    name_tools,
    read_operations,
    show_snapshot,
)
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import (
    ContextBusError,
    ForbiddenError,
    InvalidRequestError,
    InvalidTypeError,
    LimitError,
    NotFoundError,
    RevisionConflictError,
)
from contextbus_protocol.working_memory import (
    AddDecision,
    AddHypothesis,
    AddObservation,
    AddQuestion,
    AnswerQuestion,
    AnyOperation,
    DropQuestion,
    RecordAttempt,
    RemoveItem,
    SourceRef,
    UpdateAttempt,
)

SHAPES: tuple[ToolShape, ...] = ("anthropic", "openai", "openai-responses", "gemini")
NAMES = name_tools()
DEFINED: dict[ToolShape, str] = {
    "anthropic": "57fa3b95d9af01ed",
    "openai": "c51d339c08de1b00",
    "openai-responses": "a15737279630708c",
    "gemini": "8494298a64f39e6b",
}
SNAPSHOT = create_working_memory(scope="s", now=5, goal="Deploy.")


def read(action: ToolAction, arguments: Any, *known: str) -> tuple[AnyOperation, ...]:
    return read_operations(action, arguments, known.__contains__)


def parameters(shape: ToolShape) -> dict[str, Any]:
    """The JSON Schemas of a provider's definitions, by the name of the tool."""
    tools = define_tools(NAMES, shape)
    match shape:
        case "anthropic":
            return {t["name"]: t["input_schema"] for t in tools}
        case "openai":
            return {t["function"]["name"]: t["function"]["parameters"] for t in tools}
        case "openai-responses":
            return {t["name"]: t["parameters"] for t in tools}
        case "gemini":
            (tool,) = tools
            return {t["name"]: t.get("parameters", {"type": "object"}) for t in tool["functionDeclarations"]}


# -- names


@pytest.mark.rule("D.Q.1", "D.Q.2")
def test_there_are_three_tools_under_a_prefix() -> None:
    assert name_tools() == ("working_memory_read", "working_memory_add", "working_memory_update")
    assert name_tools("notes") == ("notes_read", "notes_add", "notes_update")
    assert [NAMES.find(n) for n in (*NAMES, "working_memory_drop", "read", "")] == ["read", "add", "update"] + [
        None
    ] * 3
    for shape in SHAPES:
        assert list(parameters(shape)) == list(NAMES)


@pytest.mark.parametrize("prefix", ["", "a b", "ä", "a:b", "x" * 58, None, 3, "a\n"])
def test_a_prefix_that_no_provider_takes_is_refused(prefix: Any) -> None:
    with pytest.raises(InvalidTypeError, match="prefix"):
        name_tools(prefix)
    assert max(map(len, name_tools("x" * 57))) == 64


# -- arguments


@pytest.mark.rule("D.Q.3", "D.Q.14")
def test_items_become_additions() -> None:
    items = [
        {"kind": "observation", "text": "a", "evidence": ["c1", "c2", "c1"]},
        {"kind": "hypothesis", "text": "b"},
        {"kind": "decision", "text": "c", "rationale": "d"},
        {"kind": "question", "text": "e"},
        {"kind": "attempt", "text": "f", "outcome": "failed", "detail": "g", "evidence": ["c2"]},
        {"kind": "attempt", "text": "h"},
    ]
    first, second = SourceRef("tool-call", "c1"), SourceRef("tool-call", "c2")
    assert read("add", {"items": items}, "c1", "c2") == (
        AddObservation(text="a", sources=(first, second)),
        AddHypothesis(text="b"),
        AddDecision(text="c", rationale="d"),
        AddQuestion(text="e"),
        RecordAttempt(text="f", outcome="failed", detail="g", sources=(second,)),
        RecordAttempt(text="h", outcome="in-progress"),
    )
    assert read("add", json.dumps({"items": items}), "c1", "c2") == read("add", {"items": items}, "c1", "c2")


@pytest.mark.rule("D.Q.14")
@pytest.mark.parametrize("kind", ["observation", "hypothesis", "decision", "question", "attempt"])
def test_evidence_goes_with_an_item_of_any_kind(kind: str) -> None:
    (operation,) = read("add", {"items": [{"kind": kind, "text": "a", "evidence": ["c1"]}]}, "c1")
    assert getattr(operation, "sources", None) == (SourceRef("tool-call", "c1"),)


@pytest.mark.rule("D.Q.4", "D.Q.14")
def test_changes_become_operations_on_items() -> None:
    changes = [
        {"action": "answer", "id": "q", "answer": "yes", "evidence": ["c1"]},
        {"action": "drop", "id": "r"},
        {"action": "attempt", "id": "a", "outcome": "succeeded"},
        {"action": "attempt", "id": "b", "outcome": "abandoned", "detail": "no time"},
        {"action": "remove", "id": "o"},
    ]
    assert read("update", {"changes": changes}, "c1") == (
        AnswerQuestion(id="q", answer="yes", sources=(SourceRef("tool-call", "c1"),)),
        DropQuestion(id="r"),
        UpdateAttempt(id="a", outcome="succeeded"),
        UpdateAttempt(id="b", outcome="abandoned", detail="no time"),
        RemoveItem(id="o"),
    )


ITEM = {"kind": "observation", "text": "a"}
DROP = {"action": "drop", "id": "a"}


@pytest.mark.rule("D.Q.5")
@pytest.mark.parametrize(
    ("action", "arguments"),
    [
        ("add", {"items": []}),
        ("add", {"items": [ITEM] * 17}),
        ("add", {"items": [{"kind": "constraint", "text": "a"}]}),
        ("add", {"items": [{"text": "a"}]}),
        ("add", {"items": [{"kind": "observation"}]}),
        ("add", {"items": [ITEM, {"kind": "observation", "text": ""}]}),
        ("add", {"items": [{"kind": "observation", "text": "a" * 2001}]}),
        ("add", {"items": [{"kind": "observation", "text": None}]}),
        ("add", {"items": [{"kind": "observation", "text": "a", "writer": "host"}]}),
        ("add", {"items": [{"kind": "observation", "text": "a", "evidence": ["c"] * 17}]}),
        ("add", {"items": ITEM}),
        ("add", {"item": [ITEM]}),
        ("add", {"items": [ITEM], "more": 1}),
        ("add", {}),
        ("add", {"changes": [DROP]}),
        ("update", {"changes": []}),
        ("update", {"changes": [DROP] * 17}),
        ("update", {"changes": [{"action": "set-goal", "id": "a"}]}),
        ("update", {"changes": [{"action": "drop"}]}),
        ("update", {"changes": [{"action": "drop", "id": ""}]}),
        ("update", {"changes": [{"action": "answer", "id": "a"}]}),
        ("update", {"changes": [{"action": "attempt", "id": "a"}]}),
        ("update", {"changes": [{"action": "attempt", "id": "a", "outcome": "won"}]}),
        ("read", {"what": "all"}),
        ("add", "{"),
        ("add", "[]"),
        ("add", "null"),
        ("add", "{'items': []}"),
        ("add", '{"items": ' + "[" * 5000 + "]" * 5000 + "}"),
        ("add", 3),
        ("add", [ITEM]),
        ("add", b'{"items": []}'),
        ("add", ""),
        ("add", None),
    ],
)
def test_arguments_that_are_not_as_the_schema_says_are_refused_with_what_is_wanted(
    action: ToolAction, arguments: Any
) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        read(action, arguments, "c")
    assert {"read": "no arguments", "add": "1 to 16 of {kind", "update": "1 to 16 of {action"}[action] in str(
        caught.value
    )


@pytest.mark.rule("D.Q.13")
@pytest.mark.parametrize("field", ["rationale", "outcome", "detail"])
@pytest.mark.parametrize("kind", ["observation", "hypothesis", "decision", "question", "attempt"])
def test_a_rationale_goes_with_a_decision_and_outcome_and_detail_with_an_attempt(kind: str, field: str) -> None:
    arguments = {"items": [{"kind": kind, "text": "a", field: "failed"}]}
    if kind == ("decision" if field == "rationale" else "attempt"):
        (operation,) = read("add", arguments)
        assert getattr(operation, field) == "failed"
    else:
        with pytest.raises(InvalidTypeError, match=field):
            read("add", arguments)


@pytest.mark.rule("D.Q.14")
@pytest.mark.parametrize(
    ("action", "arguments"),
    [
        ("add", {"items": [{"kind": "question", "text": "a", "evidence": ["c1", "c9"]}]}),
        ("update", {"changes": [{"action": "answer", "id": "q", "answer": "a", "evidence": ["c9"]}]}),
    ],
)
def test_evidence_that_is_no_earlier_call_is_refused(action: ToolAction, arguments: Any) -> None:
    with pytest.raises(NotFoundError, match="'c9' is no earlier tool call"):
        read(action, arguments, "c1")


@pytest.mark.parametrize("arguments", [{}, "{}", "", None, " {} "])
def test_reading_takes_no_arguments(arguments: Any) -> None:
    assert read("read", arguments) == ()


def test_half_a_character_is_replaced_not_refused() -> None:
    assert read("add", {"items": [{"kind": "question", "text": "a\ud83d"}]}) == (AddQuestion(text="a\ufffd"),)
    text = '{"items": [{"kind": "question", "text": "a\\ud83d"}]}'
    assert read("add", text) == (AddQuestion(text="a\ufffd"),)


def test_what_is_quoted_of_the_arguments_is_short() -> None:
    with pytest.raises(InvalidTypeError) as caught:
        read("add", {"items": [{"kind": "x" * 100_000, "text": "a"}]})
    assert len(str(caught.value)) < 1000
    with pytest.raises(InvalidTypeError, match=r"^malformed arguments: .*items\[0\]\.text"):
        read("add", {"items": [{"kind": "question", "text": 5}]})


# -- schemas

Entries = st.SearchStrategy[dict[str, Any]]
TEXTS: st.SearchStrategy[Any] = st.sampled_from(["", "a", "failed", "x" * 2000, "x" * 2001, "ü" * 2000])
JUNK: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | TEXTS | st.lists(TEXTS, max_size=2)
WORDS: st.SearchStrategy[Any] = st.sampled_from(
    ["observation", "hypothesis", "decision", "question", "attempt", "answer", "drop", "remove", "constraint"]
)
ENTRY: Entries = st.fixed_dictionaries(
    {},
    optional={
        "kind": WORDS,
        "action": WORDS,
        "id": TEXTS | JUNK,
        "text": TEXTS | JUNK,
        "answer": TEXTS | JUNK,
        "rationale": TEXTS | JUNK,
        "outcome": st.sampled_from(["in-progress", "failed", "won"]) | JUNK,
        "detail": TEXTS | JUNK,
        "evidence": st.lists(TEXTS, max_size=17) | JUNK,
        "more": JUNK,
    },
)


def entry(required: dict[str, Any], **optional: Any) -> Entries:
    return st.fixed_dictionaries(required, optional=optional)


EVIDENCE = st.lists(TEXTS, max_size=17)
FAILED = st.just("failed")
GOOD_ITEM: Entries = st.one_of(
    entry({"kind": st.sampled_from(["observation", "hypothesis", "question"]), "text": TEXTS}, evidence=EVIDENCE),
    entry({"kind": st.just("decision"), "text": TEXTS}, rationale=TEXTS),
    entry({"kind": st.just("attempt"), "text": TEXTS}, outcome=FAILED, detail=TEXTS),
)
GOOD_CHANGE: Entries = st.one_of(
    entry({"action": st.sampled_from(["drop", "remove"]), "id": TEXTS}),
    entry({"action": st.just("answer"), "id": TEXTS, "answer": TEXTS}, evidence=EVIDENCE),
    entry({"action": st.just("attempt"), "id": TEXTS, "outcome": FAILED}, detail=TEXTS),
)
ARGUMENTS: Entries = st.one_of(
    st.dictionaries(st.sampled_from(["items", "changes"]), JUNK | st.lists(ENTRY, max_size=2)),
    st.fixed_dictionaries({"items": st.lists(GOOD_ITEM, max_size=18)}),
    st.fixed_dictionaries({"changes": st.lists(GOOD_CHANGE, max_size=18)}),
)


def takes(action: ToolAction, arguments: Any) -> bool:
    try:
        read_operations(action, copy.deepcopy(arguments), lambda _: True)
    except InvalidTypeError:
        return False
    return True


@pytest.mark.rule("D.Q.3", "D.Q.4", "D.Q.5", "D.Q.13")
@given(st.sampled_from(("read", "add", "update")), ARGUMENTS)
@example("add", {"items": [ITEM] * 16})
@example("update", {"changes": [DROP] * 16})
@example("read", {})
def test_a_schema_takes_what_the_parser_takes(action: ToolAction, arguments: Any) -> None:
    taken = takes(action, arguments)
    for shape in SHAPES:
        schema = parameters(shape)[f"working_memory_{action}"]
        if shape == "gemini":  # it cannot refuse a field too many
            assert fits(schema, arguments) or not taken
        else:
            assert fits(schema, arguments) == taken


GOOD: list[tuple[ToolAction, dict[str, Any]]] = [
    *(("add", {"kind": kind, "text": "a"}) for kind in ("observation", "hypothesis", "question", "decision")),
    ("add", {"kind": "attempt", "text": "a"}),
    ("update", {"action": "answer", "id": "q", "answer": "a"}),
    ("update", {"action": "attempt", "id": "q", "outcome": "failed"}),
    *(("update", {"action": action, "id": "q"}) for action in ("drop", "remove")),
]


@pytest.mark.rule("D.Q.3", "D.Q.4", "D.Q.5")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("action", "given"), GOOD)
def test_every_entry_has_a_schema_that_wants_all_of_it_and_takes_calls_as_evidence(
    shape: ToolShape, action: ToolAction, given: dict[str, Any]
) -> None:
    schema = parameters(shape)[f"working_memory_{action}"]

    def fitting(entry: dict[str, Any]) -> bool:
        arguments = {"items" if action == "add" else "changes": [entry]}
        assert shape == "gemini" or takes(action, arguments) == fits(schema, arguments)
        return fits(schema, arguments)

    assert fitting(given)
    for field in given:
        assert not fitting({name: value for name, value in given.items() if name != field})
    if action == "add" or given["action"] == "answer":
        assert fitting({**given, "evidence": ["c1", "c2"]})
        assert not any(fitting({**given, "evidence": [wrong]}) for wrong in ("", 3, "x" * 2001, None))


@pytest.mark.rule("D.Q.2")
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_model_reads_of_its_tools_is_what_it_was(shape: ToolShape) -> None:
    # a request begins with them: another word is another prefix for every cache
    digest = digest_text(json.dumps(define_tools(NAMES, shape), sort_keys=True))
    assert digest.removeprefix("sha256:")[:16] == DEFINED[shape]


def test_what_a_provider_does_not_know_is_not_in_its_schema() -> None:
    for shape in SHAPES:
        text = json.dumps(define_tools(NAMES, shape))
        assert not [w for w in ("$ref", "$defs", "const", "oneOf", "allOf", "not", "if") if f'"{w}":' in text]
    assert '"additionalProperties":' not in json.dumps(define_tools(NAMES, "gemini"))
    (tool,) = define_tools(NAMES, "gemini")
    assert "parameters" not in tool["functionDeclarations"][0]
    with pytest.raises(InvalidRequestError, match="anthropic, openai, openai-responses, gemini"):
        define_tools(NAMES, "cohere")  # type: ignore[arg-type]  # what a caller may write


@pytest.mark.parametrize("shape", ["anthropic", "openai", "openai-responses"])
def test_definitions_can_be_handed_to_a_step(shape: ToolShape) -> None:
    text = tools_text(define_tools(NAMES, shape))
    assert text is not None
    assert [tool.name for tool in read_tools(text)] == list(NAMES)
    assert [json.loads(tool.parameters) for tool in read_tools(text)] == list(parameters(shape).values())


# -- operation ids and answers


@pytest.mark.rule("D.Q.7")
@given(
    st.lists(st.tuples(st.sampled_from(name_tools("a") + name_tools("a-1")), st.integers(0), st.text()), unique=True)
)
def test_every_tool_step_and_call_has_an_operation_id_of_its_own(calls: list[tuple[str, int, str]]) -> None:
    ids = [make_operation_id(*call) for call in calls]
    assert len(set(ids)) == len(calls)
    assert ids == [make_operation_id(*call) for call in calls]


@pytest.mark.rule("D.Q.6", "D.T.6")
@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("forbidden", ForbiddenError),
        ("not-found", NotFoundError),
        ("limit", LimitError),
        ("revision-conflict", RevisionConflictError),
    ],
)
def test_a_refusal_is_raised(reason: PatchReason, error: type[ContextBusError]) -> None:
    with pytest.raises(error, match="nothing was written") as caught:
        answer_write(PatchResult("rejected", SNAPSHOT, reason))
    what_to_do = {
        "forbidden": "it is closed to you",
        "not-found": "read working memory for the ids it holds",
        "limit": "remove or shorten something first",
        "revision-conflict": "read it, then call again if the change is still needed",
    }
    assert str(caught.value).endswith(what_to_do[reason])


@pytest.mark.rule("D.Q.6")
def test_a_write_answers_with_status_revision_and_ids() -> None:
    snapshot = msgspec.structs.replace(SNAPSHOT, revision=7)

    def answer(result: PatchResult) -> Any:
        return json.loads(msgspec.json.encode(answer_write(result)))

    assert answer(PatchResult("applied", snapshot, ids=("questions-7-0",), revision=7)) == {
        "status": "applied",
        "revision": 7,
        "ids": ["questions-7-0"],
    }
    assert answer(PatchResult("applied", snapshot, revision=7)) == {"status": "applied", "revision": 7}
    assert answer(PatchResult("duplicate", snapshot, revision=3)) == {"status": "duplicate", "revision": 3}
    assert answer(PatchResult("duplicate", snapshot)) == {"status": "duplicate", "revision": 7}


def test_reading_shows_the_snapshot_without_operation_ids() -> None:
    shown = json.loads(show_snapshot(msgspec.structs.replace(SNAPSHOT, operation_ids=("secret",))))
    assert shown["goal"]["text"] == "Deploy."
    assert "operationIds" not in shown
