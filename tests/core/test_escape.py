"""Escaping of block text: a parser gives back what went in."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.escape import are_plain, escape_attribute, escape_text
from contextbus_protocol.digests import clean_text

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=[]))


def _allowed(text: str) -> str:
    def keep(char: str) -> bool:
        code = ord(char)
        return code in {9, 10, 13} or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000

    return "".join(char if keep(char) else "\ufffd" for char in clean_text(text))


@pytest.mark.rule("D.E.7")
@given(ANY_TEXT)
def test_parser_gives_back_escaped_text_and_attribute(text: str) -> None:
    root = ET.fromstring(f'<r a="{escape_attribute(text)}">{escape_text(text)}</r>')  # our own output, no outside XML
    assert (root.text or "") == _allowed(text)
    assert root.attrib["a"] == _allowed(text)


@pytest.mark.rule("D.E.7")
def test_every_special_character_has_its_reference() -> None:
    assert escape_text("&<>\"'\r") == "&amp;&lt;&gt;&quot;&#39;&#13;"
    assert escape_text("a\n\tb") == "a\n\tb"
    assert escape_attribute("a\n\tb") == "a&#10;&#9;b"
    assert escape_text("\x00\ud800\uffff") == "\ufffd\ufffd\ufffd"
    assert escape_text("&amp;") == "&amp;amp;"


@pytest.mark.rule("D.E.7")
def test_text_with_nothing_to_escape_comes_back_as_the_same_object() -> None:
    text = "Deploys need a green run, 你好."
    assert escape_text(text) is text


@pytest.mark.rule("D.E.7")
def test_what_needs_no_escaping_is_told_fast_and_left_as_it_is() -> None:
    """Which characters are plain, to the ends of their ranges: the shortcuts agree with the long way."""
    ends = [0x7F, 0x80, 0xD7FF, 0xE000, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x10FFFF]
    for text in map(chr, [*range(0x80), *ends]):
        plain = escape_text(text) == text
        attribute = escape_attribute(text) == text
        assert plain is (text not in "&<>\"'" and (text >= " " or text in "\t\n") and text not in "\ufffe\uffff")
        assert attribute is (plain and text not in "\t\n")
        assert are_plain([text, "a"]) is (plain and text.isascii())
        assert are_plain(["a", text], lines=True) is (attribute and text.isascii())
    words = "Deploys need a green run, 你好."
    assert escape_attribute(words) is words
    assert are_plain([])
