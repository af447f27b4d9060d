"""Segments: messages cut into lines and sentences, and what an earlier summary says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from contextbus.core.media import strip_data_uris
from contextbus.summarisers.extractive.changes import CHANGE
from contextbus.summarisers.extractive.cues import COURTESY
from contextbus.summarisers.extractive.function_words import LABELS
from contextbus_protocol.chat import ChatMessage, Document, Text
from contextbus_protocol.digests import clean_text

Speaker = Literal["user", "assistant", "summary"]
Section = Literal["Goal", "Constraints", "Decisions", "Values", "Open", "Failures", "Tool calls", "Notes", "References"]
SECTIONS: Final[tuple[Section, ...]] = (
    *("Goal", "Constraints", "Decisions", "Values", "Open", "Failures", "Tool calls", "Notes", "References"),
)
"""The labels of a summary, in the order of the text."""

SUMMARY_LABEL: Final = "Previous conversation summary:\n"
LONGEST_STATEMENT: Final = 300
"""Characters that one line of a summary may hold of one statement."""

_SHORTEST_BLOB: Final = 120
_LONGEST_WHOLE: Final = 200
_LONGEST_TEXT: Final = 100_000
_ARCHIVED: Final = re.compile(r"^Archived: context://archive/[0-9a-f]{64}$")
_IMITATION: Final = re.compile(
    r"(?<!\")\b(Archived)\s*:(?=\s*context://)|(?<!\")\b(Previous conversation summary)\s*:", re.IGNORECASE
)
_LABEL_LINES: Final = frozenset(f"{label}:" for label in SECTIONS)
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufffd]+")
_BREAK: Final = re.compile(r"\r\n?|[\u2028\u2029\x0b\x0c\x85]")
_DATA_URI: Final = re.compile(r"data:[\w.+/-]{0,80}(?:;[\w=.+-]{1,80}){0,4},\S*")
_BLOB: Final = re.compile(r"[A-Za-z0-9+/=_-]{121,}")
_FENCED: Final = re.compile(r"^```.*?^```[^\n]*$", re.DOTALL | re.MULTILINE)
_MARKUP: Final = re.compile(r"^(?:\s|#{1,6}\s|[-*•+>|]\s|\d{1,3}[.)]\s)+")
_BELOW: Final = re.compile(r"^(?: {2,}|\t+)[-*•+]\s")
_SENTENCE_END: Final = re.compile(
    r"(?<=[^\W\d_]{3}[.!?])\s+|(?<=[\d)\"'”»%][.!?])\s+(?=[^\s\da-z])|(?<=[。！？])|(?<=[?؟])\s+"
)
_TWO_LETTERS: Final = re.compile(r"[^\W_].*?[^\W_]", re.DOTALL)
_CAPITAL_LABEL: Final = re.compile(r"^((?:[^\W\d_]{1,24}[ -]?){1,3})[:：]\s*(?=\S)")


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A line or sentence.

    ``message`` is the index of its message, ``marked`` says that the writer put a label such as "NOTE:" before it, and
    ``section`` is where an earlier summary had it.
    """

    text: str
    speaker: Speaker
    message: int
    marked: bool = False
    section: Section | None = None


def clean(text: str) -> str:
    """A text without control characters and without base64; lone surrogates and what replaced them go too."""
    if len(text) <= _SHORTEST_BLOB and text.isascii() and text.isprintable() and "data:" not in text.lower():
        return text
    plain = _BREAK.sub("\n", clean_text(text[:_LONGEST_TEXT]))
    plain, _ = strip_data_uris(plain)
    plain = _BLOB.sub(" ", _DATA_URI.sub(" ", plain))
    return _CONTROL.sub(" ", plain)


def clip(text: str, longest: int = LONGEST_STATEMENT) -> str:
    """A text of at most so many characters, on one line, cut between words where it can be."""
    line = " ".join(text.split())
    if len(line) <= longest:
        return line
    cut = line[: longest - 1]
    space = cut.rfind(" ", longest // 2)
    return (cut[:space] if space > 0 else cut) + "…"


def disarm(text: str) -> str:
    """A statement that cannot be taken for a line of the frame: a label, the head of a summary, the archive line.

    Such a text comes from a user or from a tool; its words stay, and quotes around the label show that it is quoted.
    """
    quoted = _IMITATION.sub(lambda m: f'"{m[1] or m[2]}":', text)
    return quoted[:-1] if quoted.endswith(":") and quoted in _LABEL_LINES else quoted


def read_text(message: ChatMessage) -> str:
    """The text parts of a message, and the text of its documents, cleaned."""
    texts = [part.text for part in message.content if isinstance(part, Text | Document) and part.text is not None]
    return clean("\n".join(texts))


def find_summaries(messages: Sequence[ChatMessage]) -> frozenset[int]:
    """The indexes of earlier summaries: they stand before all else that is no system message (C.E.1, C.E.2).

    A later message that begins with the same label only imitates one, and is read like any other.
    """
    found: list[int] = []
    for index, message in enumerate(messages):
        if message.role == "system":
            continue
        first = message.content[0] if message.content else None
        if message.role != "user" or not isinstance(first, Text) or not first.text.startswith(SUMMARY_LABEL):
            break
        found.append(index)
    return frozenset(found)


def cut_summary(text: str, message: int) -> Iterator[Segment]:
    """The lines of an earlier summary, each with the label it stood under; the label and the archive line go (C.X.8).

    A summary that a model wrote has other labels or none; its lines are then read like any other.
    """
    section: Section | None = None
    labels: dict[str, Section] = {f"{label}:": label for label in SECTIONS}
    for line in text.removeprefix(SUMMARY_LABEL).split("\n"):
        stripped = line.strip()
        if not stripped or _ARCHIVED.match(stripped):
            continue
        if stripped in labels:
            section = labels[stripped]
        elif section is not None and line.startswith("- "):
            yield Segment(stripped[2:].strip(), "summary", message, section=section)
        else:
            section = None
            yield from cut_text(stripped, "summary", message)


def cut_text(text: str, speaker: Speaker, message: int) -> Iterator[Segment]:
    """The statements of a text: its short lines as they are, its long ones by sentence.  Code in fences is left out."""
    for line in _join_lists(_FENCED.sub("", text) if "```" in text else text):
        stripped = _drop_heading(line) if line.endswith((":", "：")) else line
        whole = len(stripped) <= _LONGEST_WHOLE and not any(sign in stripped for sign in "?？؟")
        for piece in (stripped,) if whole else _SENTENCE_END.split(stripped):
            segment = _make(piece, speaker, message)
            if segment is not None:
                yield segment


def _drop_heading(line: str) -> str:
    """A line without the last of several sentences, which only announces what comes next."""
    sentences = _SENTENCE_END.split(line)
    return " ".join(sentences[:-1]) if len(sentences) > 1 else line


def _join_lists(text: str) -> Iterator[str]:
    """The lines of a text without markup; indented list items follow the line they stand under, as far as fits."""
    held = ""
    for line in text.split("\n"):
        stripped = " ".join(_MARKUP.sub("", line).replace("**", "").split())
        if not stripped:
            continue
        below = _BELOW.match(line) is not None and len(held) > 0 and len(held) + len(stripped) + 2 <= _LONGEST_WHOLE
        if below:
            held = f"{held.rstrip(':;')}{': ' if held.endswith(':') else '; '}{stripped}"
        else:
            if held:
                yield held
            held = stripped
    if held:
        yield held


def _make(piece: str, speaker: Speaker, message: int) -> Segment | None:
    text = clip(piece)
    label = _CAPITAL_LABEL.match(text)
    marked = False
    if label is not None:
        word = label[1].strip()
        if (word.isupper() and len(word) > 1) or word.lower() in LABELS:
            # A label that tells of a change ("Update:") says something about the value behind it.
            text, marked = (text if CHANGE.is_in(word) else text[label.end() :]), True
    if not marked:
        text = text[m.end() :] if (m := COURTESY.match(text)) is not None else text
    if not _TWO_LETTERS.search(text[:40]):  # one letter or none says nothing
        return None
    return Segment(text, speaker, message, marked)
