"""Dynamic state as XML: what was put in comes out of a parser, and nothing else does."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.dynamic_state import (
    CURRENT_STATE,
    MOST_ELEMENTS,
    STATE_VERSION,
    WIDEST_INTEGER,
    element_name,
    render_state,
    state_message,
    state_system_message,
)
from contextbus.core.json_text import MAX_DEPTH
from contextbus_protocol.chat import system, user
from contextbus_protocol.errors import InvalidTypeError, LimitError, RangeError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))
STATES = st.dictionaries(TEXTS, TREES, max_size=5)

Parsed = tuple[str, Any]
"""A name beside a text, or the parsed children."""


def parse(text: str) -> Parsed:
    xml, line = text.rsplit("\n", 1)
    assert line == CURRENT_STATE
    return parsed(ET.fromstring(xml))


def parsed(element: ET.Element) -> Parsed:
    children = [parsed(child) for child in element]
    if not children:
        return element.tag, element.text or ""
    gaps = [element.text, *(child.tail for child in element)]
    assert all(gap is not None and not gap.strip() for gap in gaps)
    return element.tag, children


def allowed(text: str) -> str:
    return "".join("\ufffd" if (ord(c) < 0x20 and c not in "\t\n\r") or c in "\ufffe\uffff" else c for c in text)


def expected(name: str, value: object) -> Parsed | None:
    """What the rules say of a value, by another way than lines."""
    if value is None or value == []:
        return None
    if isinstance(value, Mapping):
        children = [expected(element_name(key), child) for key, child in value.items()]
        return name, [child for child in children if child is not None] or ""
    if isinstance(value, list):
        kept = [child for child in (expected("item", child) for child in value) if child is not None]
        return (name, kept) if kept else None
    if isinstance(value, bool):
        return name, "true" if value else "false"
    return name, allowed(value) if isinstance(value, str) else repr(value)


@pytest.mark.rule("P.B.2", "P.B.3", "D.E.7")
@given(STATES)
def test_a_parser_gives_back_structure_and_texts(state: dict[str, object]) -> None:
    assert parse(render_state(state)) == expected("dynamic_state", state)


@pytest.mark.rule("P.B.2", "P.B.3", "P.B.5")
def test_the_form_byte_for_byte() -> None:
    """Changing it changes every request: then ``STATE_VERSION`` has to change."""
    state: dict[str, object] = {
        "active file": "a<b> & 'c'\r\nd",
        "todo": ["one", {"title": "two", "done": False}, [3, 4.0], None],
        "nothing": None,
        "empty": [],
        "blank": [None, []],
        "open": {},
        "text": "",
        "limits": {"low": -1, "high": 1e22},
    }
    assert STATE_VERSION == 1
    assert render_state(state) == (
        "<dynamic_state>\n"
        "  <active_file>a&lt;b&gt; &amp; &#39;c&#39;&#13;\nd</active_file>\n"
        "  <todo>\n"
        "    <item>one</item>\n"
        "    <item>\n"
        "      <title>two</title>\n"
        "      <done>false</done>\n"
        "    </item>\n"
        "    <item>\n"
        "      <item>3</item>\n"
        "      <item>4.0</item>\n"
        "    </item>\n"
        "  </todo>\n"
        "  <open></open>\n"
        "  <text></text>\n"
        "  <limits>\n"
        "    <low>-1</low>\n"
        "    <high>1e+22</high>\n"
        "  </limits>\n"
        "</dynamic_state>\n"
        "This is the current state; it supersedes every earlier one."
    )


@pytest.mark.rule("P.B.2")
@given(st.text())
def test_names_are_names_of_the_allowed_characters(key: str) -> None:
    name = element_name(key)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        assert name == key


@pytest.mark.rule("P.B.2")
def test_keys_that_come_to_one_name_both_stay_in_order() -> None:
    text = render_state({"a-b": 1, "a.b": 2, "1": 3, "_1": 4, "": 5})
    assert parse(text) == ("dynamic_state", [("a_b", "1"), ("a_b", "2"), ("_1", "3"), ("_1", "4"), ("_", "5")])


@pytest.mark.rule("P.B.2", "P.B.5")
@pytest.mark.parametrize("state", [{}, {"a": None}, [], None])
def test_a_state_of_nothing_is_an_empty_element(state: object) -> None:
    assert render_state(state) == f"<dynamic_state></dynamic_state>\n{CURRENT_STATE}"


@pytest.mark.rule("P.B.2")
def test_halves_of_surrogate_pairs_and_forbidden_characters_are_replaced() -> None:
    assert parse(render_state({"\ud800": "\ud800 \x00 </dynamic_state>"})) == (
        "dynamic_state",
        [("_", "\ufffd \ufffd </dynamic_state>")],
    )


def nested(depth: int, leaf: object) -> object:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@pytest.mark.rule("P.B.2")
def test_depth_is_bounded() -> None:
    assert render_state(nested(MAX_DEPTH, "x")).count("<item>") == MAX_DEPTH
    endless: list[object] = []
    endless.append(endless)
    for value in (nested(MAX_DEPTH + 1, "x"), nested(100_000, "x"), endless):
        with pytest.raises(InvalidTypeError, match="100 levels"):
            render_state(value)


@pytest.mark.rule("P.B.2")
def test_shared_lists_do_not_unfold_without_end() -> None:
    value: object = "x"
    for _ in range(50):
        value = [value, value]
    with pytest.raises(LimitError, match=str(MOST_ELEMENTS)):
        render_state(value)


@pytest.mark.rule("P.B.2", "D.W.6")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1 << WIDEST_INTEGER])
def test_numbers_are_finite_and_not_endless(number: float) -> None:
    with pytest.raises(RangeError):
        render_state({"n": number})
    assert str((1 << WIDEST_INTEGER) - 1) in render_state({"n": (1 << WIDEST_INTEGER) - 1})


@pytest.mark.rule("P.B.2")
@pytest.mark.parametrize("value", [{1: 2}, {"a": object()}, {"a": b"x"}, {"a": {1, 2}}, {"a": iter([1])}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(InvalidTypeError):
        render_state(value)


@pytest.mark.rule("P.B.4")
def test_the_block_is_a_message_of_its_own() -> None:
    text = render_state({"a": 1})
    assert state_message(text) == user(text)
    assert state_system_message(text) == system(text)
