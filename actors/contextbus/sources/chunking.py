"""Texts in chunks: slices of the text, each cut at the best boundary near the target size.

Tokens are counted as four characters each (D.M.12), so the boundaries do not move with the estimator.
"""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Callable
from typing import Final

import msgspec

CHARACTERS_PER_TOKEN: Final = 4
DEFAULT_TARGET_TOKENS: Final = 300
SMALLEST_TARGET_TOKENS: Final = 16
LONGEST_HEADING: Final = 120
HEADING_SEPARATOR: Final = " > "

_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)$")
_UNDERLINE = re.compile(r"([=\-~^\"'+*#])\1{2,}[ \t]*$")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_SENTENCE = re.compile(r"\n|(?<=[.!?\u2026])[\"')\]\u201d\u2019]*\s+|(?<=[\u3002\uff01\uff1f])")
_SPACE = re.compile(r"\s+")
_UNDERLINE_LEVELS: Final = "=-~^\"'+*#"
_JOINERS: Final = frozenset("\u200d\ufe0e\ufe0f")
_LONGEST_CLUSTER: Final = 32
_LONGEST_HEADING_LINE: Final = 300
_CHECK_EVERY: Final = 4096


class Chunk(msgspec.Struct, frozen=True):
    """One slice of a text.

    ``start`` and ``end`` are offsets in code points; ``heading`` names the document and the sections that the slice
    begins in, and ``text`` is that line, if any, with the slice below it.
    """

    start: int
    end: int
    heading: str
    text: str


def _go_on() -> None:
    """Let the work go on."""


def chunk_text(
    text: str, *, title: str = "", target_tokens: int = DEFAULT_TARGET_TOKENS, check: Callable[[], None] = _go_on
) -> tuple[Chunk, ...]:
    """Cut a text into chunks of at most ``target_tokens``, the heading line included (D.M.12).

    The slices cover the text without gap or overlap, but for slices of white space alone, which are left out.
    Boundaries are, best first: a heading, a paragraph, a sentence or line, a space; if there is none, between two
    characters that do not combine.  ``check`` is called again and again; what it raises ends the work.
    """
    target = max(target_tokens, SMALLEST_TARGET_TOKENS) * CHARACTERS_PER_TOKEN
    longest = min(LONGEST_HEADING, target // 3)
    headings = _find_headings(text, check)
    starts = [offset for offset, _ in headings]
    breaks = (
        starts,
        *(_find_ends(pattern, text, check) for pattern in (_PARAGRAPH, _SENTENCE, _SPACE)),
    )
    chunks: list[Chunk] = []
    start = 0
    while start < len(text):
        check()
        heading = _name_place(title, headings, starts, start, longest)
        room = target - len(heading) - 1 if heading else target
        end = len(text) if len(text) - start <= room else _find_end(text, breaks, start, room)
        body = text[start:end].strip()
        if body:
            chunks.append(Chunk(start, end, heading, f"{heading}\n{body}" if heading else body))
        start = end
    return tuple(chunks)


def _find_ends(pattern: re.Pattern[str], text: str, check: Callable[[], None]) -> list[int]:
    ends: list[int] = []
    for found in pattern.finditer(text):
        ends.append(found.end())
        if not len(ends) % _CHECK_EVERY:
            check()
    return ends


def _find_end(text: str, breaks: tuple[list[int], ...], start: int, room: int) -> int:
    """The best place to cut behind ``start``, at most ``room`` characters on."""
    for offsets, least in zip(breaks, (room // 3, room // 2, room // 2, room // 4), strict=True):
        index = bisect.bisect_right(offsets, start + room) - 1
        if index >= 0 and offsets[index] > start + least:
            return offsets[index]
    end = start + room
    lowest = max(start + 1, end - _LONGEST_CLUSTER)
    while end > lowest and (_combines(text[end]) or text[end - 1] == "\u200d"):
        end -= 1
    return end


def _combines(character: str) -> bool:
    """Whether a character belongs to the one before it."""
    return (
        unicodedata.combining(character) != 0
        or character in _JOINERS
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
    )


def _find_headings(text: str, check: Callable[[], None]) -> list[tuple[int, tuple[str, ...]]]:
    """Where sections begin, and the headings above each, its own last."""
    found: list[tuple[int, tuple[str, ...]]] = []
    path: list[tuple[int, str]] = []
    fence = ""
    offset = 0
    before, before_offset = "", 0
    for line in text.splitlines(keepends=True):
        check()
        mark = _FENCE.match(line)
        if mark and (not fence or fence == mark.group(1)):
            fence = "" if fence else mark.group(1)
        section = None if fence else _read_heading(line, before)
        if section is not None:
            level, name, above = section
            place = before_offset if above else offset
            path = [*(entry for entry in path if entry[0] < level), (level, name)]
            if found and found[-1][0] == place:
                found.pop()
            found.append((place, tuple(entry[1] for entry in path)))
        before, before_offset = line, offset
        offset += len(line)
    return found


def _read_heading(line: str, before: str) -> tuple[int, str, bool] | None:
    """Level and name of a heading that ends with a line, and whether its name stands in the line before."""
    line = line.rstrip("\r\n")
    if max(len(line), len(before)) > _LONGEST_HEADING_LINE:
        return None
    if found := _ATX.match(line):
        # A closing row of "#" is no part of the name.
        heading = found.group(2).rstrip(" \t").rstrip("#").strip()
        return (len(found.group(1)), heading, False) if heading else None
    name = before.strip()
    if name and (found := _UNDERLINE.match(line)) and len(line.rstrip()) * 2 >= len(name) and not _ATX.match(before):
        return _UNDERLINE_LEVELS.index(found.group(1)) + 1, name, True
    return None


def _name_place(
    title: str, headings: list[tuple[int, tuple[str, ...]]], starts: list[int], start: int, longest: int
) -> str:
    """The title and the headings above a place; a heading that begins right there is in the slice itself."""
    index = bisect.bisect_right(starts, start) - 1
    path: tuple[str, ...] = ()
    if index >= 0:
        offset, path = headings[index]
        if offset == start:
            path = path[:-1]
    names = [_SPACE.sub(" ", name).strip() for name in (title, *path)]
    line = HEADING_SEPARATOR.join(name for i, name in enumerate(names) if name and name not in names[:i])
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "\u2026"
