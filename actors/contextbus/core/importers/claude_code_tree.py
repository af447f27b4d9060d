"""Which lines of a Claude Code session are the conversation: its lines are a tree, by ``uuid`` and ``parentUuid``.

Resumed and edited sessions branch; the conversation is the chain that ends at the last message of the file.  The chain
alone is not enough: blocks of one answer and the results of its parallel calls hang beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from contextbus.core.importers.reading import Object
from contextbus.core.importers.session_lines import Line
from contextbus.core.json_text import as_list, as_object
from contextbus_protocol.digests import clean_text

_MESSAGES: Final = ("user", "assistant")


class Entry(NamedTuple):
    """One line of the tree.  ``before`` is the message that the file has before it, the parent where none is known."""

    number: int
    key: str
    parent: str | None
    before: str | None
    line: Object

    @property
    def kind(self) -> object:
        """What the line calls itself."""
        return self.line.get("type")

    @property
    def is_message(self) -> bool:
        """Whether it is a user's or assistant's message; other lines are links of the chain at most."""
        return self.kind in _MESSAGES

    @property
    def is_boundary(self) -> bool:
        """Whether a compaction put everything before it out of the conversation."""
        return self.kind == "system" and self.line.get("subtype") == "compact_boundary"


class Answer(NamedTuple):
    """Which response of the API an assistant's line is a piece of."""

    message: str
    request: str | None


class Chosen(NamedTuple):
    """The lines of the conversation in order, and results that stand beside it: call id to line."""

    entries: tuple[Entry, ...]
    beside: dict[str, Entry]


def choose_entries(lines: Sequence[Line]) -> Chosen:
    """The lines that make up the main conversation, from its start or the newest compaction on.

    A sub-agent's lines are left out; where there is nothing else, the file is the sub-agent's own.
    """
    main = [line for line in lines if line[1].get("isSidechain") is not True]
    entries = _read_entries(main)
    if not any(entry.is_message for entry in entries):
        entries = _read_entries(lines)
    chain = _walk_back(entries)
    return _add_beside(entries, chain)


def answer_of(entry: Entry) -> Answer | None:
    """The response that a line belongs to; None for a user's line and for one without an id."""
    message = as_object(entry.line.get("message"))
    name = None if message is None else message.get("id")
    if entry.kind != "assistant" or not isinstance(name, str):
        return None
    request = entry.line.get("requestId")
    return Answer(name, request if isinstance(request, str) else None)


def _read_entries(lines: Iterable[Line]) -> list[Entry]:
    entries: list[Entry] = []
    seen: set[str] = set()
    before: str | None = None
    for number, line in lines:
        uuid = line.get("uuid")
        is_message = line.get("type") in _MESSAGES
        if not isinstance(uuid, str):
            if not is_message:
                continue
            uuid = f"line {number}"
        if uuid in seen:  # a resumed session may hold lines of the former one again
            continue
        seen.add(uuid)
        parent = line.get("parentUuid", before)
        entries.append(Entry(number, uuid, parent if isinstance(parent, str) else None, before, line))
        before = uuid if is_message else before
    return entries


def _walk_back(entries: Sequence[Entry]) -> list[Entry]:
    """The chain to the last message, in order; it starts at a root or behind the newest boundary."""
    known = {entry.key: entry for entry in entries}
    kept = _kept_segments(entries, known)
    chain: list[Entry] = []
    seen: set[str] = set()
    head: str | None = None
    anchor: str | None = None
    key = next((entry.key for entry in reversed(entries) if entry.is_message), None)
    while key is not None and key not in seen:
        if anchor is None and key in kept and kept[key][1] not in seen:
            # What a compaction kept stands before its boundary in the file, and behind the anchor for the model.
            anchor = key
            head, key = kept.pop(anchor)
        entry = known[key]
        if entry.is_boundary and anchor is None:
            break
        seen.add(key)
        if not entry.is_boundary:
            chain.append(entry)
        key = entry.parent if entry.parent is None or entry.parent in known else entry.before
        if entry.line.get("isCompactSummary") is True and not (key is not None and known[key].is_boundary):
            key = None
        if anchor is not None and (entry.key == head or key is None):
            key, head, anchor = anchor, None, None
    chain.reverse()
    return chain


def _kept_segments(entries: Iterable[Entry], known: dict[str, Entry]) -> dict[str, tuple[str, str]]:
    """Anchor to head and tail of the messages that a compaction kept behind that anchor."""
    kept: dict[str, tuple[str, str]] = {}
    for entry in entries:
        if not entry.is_boundary:
            continue
        segment = as_object((as_object(entry.line.get("compactMetadata")) or {}).get("preservedSegment")) or {}
        anchor, head, tail = (segment.get(name) for name in ("anchorUuid", "headUuid", "tailUuid"))
        if isinstance(anchor, str) and isinstance(head, str) and isinstance(tail, str) and {head, tail} <= known.keys():
            kept[anchor] = (head, tail)
    return kept


def _add_beside(entries: Sequence[Entry], chain: Sequence[Entry]) -> Chosen:
    """Add the other pieces of the chain's answers, and find results of their calls that the chain lacks."""
    pieces = {entry.key: answer_of(entry) for entry in chain}
    answers = {answer for answer in pieces.values() if answer is not None}
    answered = {name for entry in chain for name in result_ids(entry)}
    callers = {name: entry.key for entry in chain for name in _call_ids(entry)}
    results = {entry.key: entry.key for entry in chain if result_ids(entry)}  # each with the line that it hangs from
    nearest: dict[str, str] = {}  # each line's nearest message, itself or above it
    added: dict[str, list[Entry]] = {}
    beside: dict[str, Entry] = {}
    for entry in entries:
        above = nearest.get(entry.parent) if entry.parent is not None else None
        if entry.is_message:
            nearest[entry.key] = entry.key
        elif above is not None:
            nearest[entry.key] = above
        if entry.key in pieces:
            continue
        answer = answer_of(entry)
        if answer in answers and above is not None and (pieces.get(above) == answer or above in results):
            calls = _call_ids(entry)
            if not any(name in callers for name in calls):  # else a copy of what is there
                pieces[entry.key] = answer
                added.setdefault(results.get(above, above), []).append(entry)
                callers.update(dict.fromkeys(calls, entry.key))
        for name in result_ids(entry):
            if name in callers and name not in answered:
                answered.add(name)
                beside[name] = entry
                results[entry.key] = callers[name]
    return Chosen(tuple(_spread(chain, added)), beside)


def _spread(chain: Iterable[Entry], added: dict[str, list[Entry]]) -> Iterable[Entry]:
    """The chain with what was added behind the line it hangs from; children of children too."""
    for entry in chain:
        waiting = [entry]
        while waiting:
            piece = waiting.pop()
            yield piece
            waiting += reversed(added.get(piece.key, ()))


def result_ids(entry: Entry) -> list[str]:
    """Ids of the calls whose results a line holds."""
    return _ids(entry, "user", "tool_result", "tool_use_id")


def _call_ids(entry: Entry) -> list[str]:
    return _ids(entry, "assistant", "tool_use", "id")


def _ids(entry: Entry, kind: str, block_type: str, field: str) -> list[str]:
    if entry.kind != kind:
        return []
    message = as_object(entry.line.get("message")) or {}
    blocks = (as_object(item) for item in as_list(message.get("content")) or ())
    names = (block.get(field) for block in blocks if block is not None and block.get("type") == block_type)
    return [clean_text(name) for name in names if isinstance(name, str)]
