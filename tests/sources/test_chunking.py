"""Chunks cover their text and are cut where a reader would cut."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.sources.chunking import CHARACTERS_PER_TOKEN, chunk_text

MARKDOWN = """Intro line.

# Cards

All about cards.

## Blue card

The blue card has no fee. It pays one percent.

## Gold card

The gold card has a fee. It pays two percent.

```
# not a heading
```

Plans
=====

Plans come last.
"""
texts = st.text(
    alphabet=st.one_of(st.sampled_from(" \n\t.#-=!`ab\u0301\u200d\U0001f469\u3002"), st.characters(codec="utf-8")),
    max_size=2000,
)


@pytest.mark.rule("D.M.12")
@given(texts, st.integers(1, 80))
def test_slices_cover_the_text_and_keep_to_the_target(text: str, target: int) -> None:
    chunks = chunk_text(text, title="A title", target_tokens=target)
    end = 0
    for chunk in chunks:
        assert not text[end : chunk.start].strip()
        assert end <= chunk.start < chunk.end
        assert chunk.text.endswith(text[chunk.start : chunk.end].strip())
        assert len(chunk.text) <= max(target, 16) * CHARACTERS_PER_TOKEN
        end = chunk.end
    assert not text[end:].strip()
    assert chunks == chunk_text(text, title="A title", target_tokens=target)


@pytest.mark.rule("D.M.12")
def test_four_characters_are_a_token() -> None:
    words = "word " * 400
    assert [chunk.end - chunk.start for chunk in chunk_text(words, target_tokens=100)] == [400] * 5
    assert len(chunk_text(words[:400], target_tokens=100)) == 1


def test_cuts_fall_on_headings_and_the_first_line_names_the_place() -> None:
    chunks = chunk_text(MARKDOWN, title="Bank", target_tokens=32)
    assert [(chunk.heading, MARKDOWN[chunk.start : chunk.end].strip().split("\n")[0]) for chunk in chunks] == [
        ("Bank", "Intro line."),
        ("Bank > Cards", "## Gold card"),
        ("Bank", "Plans"),
    ]
    for chunk in chunks:
        assert chunk.text.split("\n")[0] == chunk.heading


def test_without_headings_cuts_fall_on_paragraphs_then_sentences() -> None:
    paragraphs = f"{'a' * 40}\n\n{'b' * 40}\n\n{'c' * 40}"
    assert [chunk.text for chunk in chunk_text(paragraphs, target_tokens=16)] == ["a" * 40, "b" * 40, "c" * 40]
    sentences = "One sentence that is here. Another one that follows it! And is it a third one? Yes it is."
    assert [chunk.text[-1] for chunk in chunk_text(sentences, target_tokens=16)] == ["!", "."]


@pytest.mark.parametrize("cluster", ["e\u0301\u0323", "\U0001f469\u200d\U0001f52c", "\U0001f44d\U0001f3fd"])
def test_no_cut_falls_inside_of_a_combined_character(cluster: str) -> None:
    for chunk in chunk_text(cluster * 200, target_tokens=17):
        assert not unicodedata.combining(chunk.text[0])
        assert chunk.text[0] == cluster[0]
        assert chunk.text[-1] == cluster[-1]


@pytest.mark.parametrize("unit", ["# ", "#", "=", " ", "a\n=\n", ". ", ".\"'", "```\n", "\n \n", "x", "# a\n"])
def test_cutting_is_linear_in_the_text(unit: str) -> None:
    text = unit * (500_000 // len(unit))
    assert chunk_text(text) or not text.strip()  # quadratic work would run into the test's time limit


def test_a_line_of_number_signs_is_read_once() -> None:
    assert chunk_text(("# " + "#" * 290 + "x\n") * 1_000)  # quadratic work would run into the test's time limit


@pytest.mark.parametrize("text", ["a word " * 20_000, "line\n" * 20_000, "x" * 50_000])
def test_cutting_a_long_text_can_be_ended(text: str) -> None:
    def end() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        chunk_text(text, check=end)
