"""Every class of characters has its weight, to the ends of its ranges (D.M.2)."""

from __future__ import annotations

import pytest

from contextbus.core.character_classes import CLASSES_VERSION, weigh_characters, weigh_many

# Weights in eighteenths of a token, version 1: a range ends where the next begins.
STARTS = {
    0x00: 1,  # controls and the space
    0x21: 11,  # digits and punctuation
    0x41: 9,  # capitals
    0x5B: 11,
    0x61: 4,  # small letters
    0x7B: 11,
    0x7F: 1,
    0x80: 20,  # Latin of western Europe
    0x100: 27,  # Latin of central Europe
    0x1C0: 37,
    0x380: 19,  # Greek
    0x400: 11,  # Cyrillic
    0x480: 37,
    0x5C0: 22,  # Hebrew
    0x600: 17,  # Arabic
    0x700: 37,
    0x800: 36,
    0x900: 22,  # Devanagari
    0x980: 25,  # Bengali
    0xA00: 36,
    0xB80: 27,  # Tamil
    0xC00: 36,
    0xE00: 17,  # Thai
    0xE80: 36,
    0x1000: 42,
    0x1E80: 24,  # Vietnamese
    0x1F00: 42,
    0x2000: 19,  # typographic punctuation
    0x2040: 32,
    0x2500: 19,  # box drawing and shapes
    0x25C0: 32,
    0x3000: 21,  # kana, Han, Hangul
    0xD800: 27,  # halves of surrogate pairs count as U+FFFD
    0xE000: 27,
    0x10000: 64,
    0x1F000: 45,  # emoji
    0x20000: 64,
}
RANGES = list(zip(STARTS, [*list(STARTS)[1:], 0x110000], STARTS.values(), strict=True))


@pytest.mark.rule("D.M.2")
@pytest.mark.parametrize(("first", "after", "weight"), RANGES, ids=[f"U+{first:04X}" for first in STARTS])
def test_every_range_has_its_weight_from_end_to_end(first: int, after: int, weight: int) -> None:
    assert CLASSES_VERSION == 1  # other weights are another version
    step = max(1, (after - first) // 64)
    for code in {*range(first, after, step), after - 1}:
        assert weigh_characters(chr(code)) == weight, f"U+{code:04X}"
        assert weigh_characters(chr(code) * 3 + "a") == 3 * weight + 4
        assert weigh_many([chr(code), "", chr(code) * 2]) == [weight, 0, 2 * weight]


@pytest.mark.rule("D.M.2")
def test_many_texts_weigh_what_each_weighs() -> None:
    ascii_ = [chr(code) * (code % 3) for code in range(1, 0x80)]
    for texts in (ascii_, [], [""], ["", ""], ["a\0b", "c"], ["\0"], [*ascii_, "é"], ["Deploy_x1 now!", "b"]):
        assert weigh_many(texts) == [weigh_characters(text) for text in texts]
