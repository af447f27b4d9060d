"""Exact identifiers: which ones a range holds, and how many of them a summary or working memory still has (C.X.7)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Final, NamedTuple

from contextbus.core.media import strip_data_uris
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from contextbus_protocol.digests import clean_text

LONGEST_IDENTIFIER: Final = 512
"""Code points; what is longer is data, no identifier."""
LONGEST_NAME: Final = 64
"""Code points of a quoted name."""
MOST_NAME_WORDS: Final = 5
"""A quoted text of more words is a sentence, no name."""
FEWEST_DIGITS: Final = 4
"""Digits of a number that is an identifier (C.X.7)."""
FEWEST_PARTS: Final = 3
"""Parts of a path that neither begins nor ends like one."""

# Every repeat is possessive or bounded, and what begins a match is decided by the character before it: each search
# reads a text once, whatever is in it.
_ADDRESS: Final = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,15}+://[^\s<>\"'`|\\^{}\u201c\u201d]++"
    r"|(?<!\w)[A-Za-z]:\\[\w./\\-]++"
    r"|[\w./~@+%-]++"
)
_NUMBER: Final = re.compile(r"[0-9]++(?:[.,][0-9]++)*+")
_QUOTED: Final = re.compile(
    r"\"([\w@#$/~.][^\"\s\\]*+(?: [^\"\s\\]++){0,4}+)\\?\""
    r"|(?<![\w'])'([\w@#$/~.][^'\s\\]*+(?: [^'\s\\]++){0,4}+)\\?'(?!\w)"
    r"|`([\w@#$/~.-][^`\s]*+(?: [^`\s]++){0,4}+)`"
    r"|\u201c([^\u201c\u201d\s]++(?: [^\u201c\u201d\s]++){0,4}+)\u201d"
    r"|\u2018([^\u2018\u2019\s]++(?: [^\u2018\u2019\s]++){0,4}+)\u2019"
)
_EXTENSION: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}\Z")
_ESCAPE: Final = re.compile(r"\\(?:([\"\\/])|[bfnrt]|u([0-9a-fA-F]{4}))")
_WORD: Final = re.compile(r"[^\s\"'`<>()\[\]{}|,;:!?\u201c\u201d\u2018\u2019]++")
_BEHIND_URL: Final = ".,;:!?)]*_"
_BEHIND_PATH: Final = ".-+%@~"


class _Found(NamedTuple):
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def find_identifiers(texts: Iterable[str]) -> tuple[str, ...]:
    """Find paths, URLs, numbers with four or more digits and quoted names, in order, each once (C.X.7).

    A path has a slash, and begins with one, ``~`` or ``.``, or has three parts, or a file name with an extension at its
    end; or it begins with a drive.  A number may hold points and commas between digits and may stand inside a word; one
    inside a path or URL does not count by itself.  A name has at most 64 code points and five words; the keys of JSON
    objects are none.  Data URIs hold no identifier.  The work is linear.
    """
    found: dict[str, None] = {}
    for text in texts:
        clean = strip_data_uris(text)[0]
        addresses = tuple(_addresses(clean))
        for one in merge(addresses, _numbers(clean, addresses), _names(clean)):
            if len(one.text) <= LONGEST_IDENTIFIER:
                found[one.text] = None
    return tuple(found)


def count_survivors(
    range_messages: Iterable[ChatMessage], summary: str, memory_texts: Iterable[str], cited_calls: Iterable[str]
) -> tuple[int, int]:
    """How many exact identifiers a range holds, and how many of them summary or working memory still has (C.X.7).

    An identifier survives if it is found there as one, or if its words stand there one behind the other.

    Args:
        range_messages: the messages that were replaced, without own blocks.
        summary: what stands in their place.
        memory_texts: the texts of working memory.
        cited_calls: the ids of tool calls that working memory cites; those of the range's calls are identifiers.

    Returns:
        The identifiers seen in the range, and those of them that are kept.
    """
    messages = tuple(range_messages)
    calls = {part.id for message in messages for part in message.content if isinstance(part, ToolCall | ToolResult)}
    texts = (text for message in messages for part in message.content for text in _texts(part))
    seen = dict.fromkeys((*find_identifiers(texts), *(call for call in cited_calls if call in calls)))
    left = (summary, *memory_texts)
    kept, phrases = frozenset(find_identifiers(left)), _phrases(left)
    return len(seen), sum(one in kept or _phrase(one) in phrases for one in seen)


def _addresses(text: str) -> Iterator[_Found]:
    """URLs and paths."""
    for match in _ADDRESS.finditer(text):
        word = match[0]
        if "://" in word:
            yield _Found(match.start(), word.rstrip(_BEHIND_URL))
        elif _is_path(word):
            yield _Found(match.start(), word.rstrip(_BEHIND_PATH))


def _numbers(text: str, addresses: Sequence[_Found]) -> Iterator[_Found]:
    """Numbers of four or more digits that stand outside of addresses."""
    place = 0
    for match in _NUMBER.finditer(text):
        start = match.start()
        while place < len(addresses) and addresses[place].end <= start:
            place += 1
        inside = place < len(addresses) and addresses[place].start <= start
        if not inside and sum(map(str.isdigit, match[0])) >= FEWEST_DIGITS:
            yield _Found(start, match[0])


def _is_path(word: str) -> bool:
    if word[1:3] == ":\\":
        return True
    if "/" not in word or not any(map(str.isalnum, word)):
        return False
    parts = word.rstrip(_BEHIND_PATH).split("/")
    is_rooted = parts[0] in ("", "~", ".", "..")
    return is_rooted or len(parts) >= FEWEST_PARTS or _EXTENSION.search(parts[-1]) is not None


def _names(text: str) -> Iterator[_Found]:
    for match in _QUOTED.finditer(text):
        name = match[match.lastindex or 0]
        is_key = text.startswith(":", match.end())
        if not is_key and len(name) <= LONGEST_NAME:
            yield _Found(match.start(), name)


def _phrases(texts: Sequence[str]) -> frozenset[str]:
    """All runs of one to five words."""
    found: set[str] = set()
    for text in texts:
        words = [word.rstrip(".") for word in _WORD.findall(text)]
        for size in range(1, MOST_NAME_WORDS + 1):
            found.update(" ".join(words[at : at + size]) for at in range(len(words) - size + 1))
    return frozenset(found)


def _phrase(identifier: str) -> str:
    return " ".join(word.rstrip(".") for word in _WORD.findall(identifier))


def _texts(part: AnyPart) -> Iterator[str]:
    match part:
        case Text():
            yield _unescape(part.text) if part.text.startswith(("{", "[")) else part.text
        case Reasoning():
            yield part.text
        case ToolCall():
            yield _unescape(part.arguments)
        case ToolResult():
            for item in part.content:
                yield from _texts(item)
        case Image():
            yield part.url or ""
        case Document():
            yield from (part.title or "", part.text or "", part.url or "")
        case ApprovalResponse():
            yield part.reason or ""
        case _:
            return


def _unescape(text: str) -> str:
    """JSON text with its escapes undone, so that a line break is no letter of the path behind it.

    A quote within a string becomes a single one: it ends no string.
    """

    def undo(match: re.Match[str]) -> str:
        if match[2]:
            return clean_text(chr(int(match[2], 16)))
        return "'" if match[1] == '"' else match[1] or "\n"

    return _ESCAPE.sub(undo, text) if "\\" in text else text
