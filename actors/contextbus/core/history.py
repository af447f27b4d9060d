"""The source history of a run: a persistent vector of 64-message chunks with running values.

A run's client folds messages; an actor that reads the log folds facts, which are digests and counts without bodies.
Chain digest, token total and latest user text are carried along, never computed by a walk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, cast

import msgspec

from contextbus.core.persistent import CHUNK
from contextbus_protocol.chat import ChatMessage, Text, ToolResult
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import EMPTY_CHAIN, clean_text, digest_bytes, extend_chain
from contextbus_protocol.errors import InvalidTypeError, RangeError

MAX_QUERY: Final = 2000
"""Code points of a query and of the user text in it (D.G.16)."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One source message: digest, cost in eighteenths of a token (D.M.4), and its body where it is at hand."""

    digest: str
    eighteenths: int
    message: ChatMessage | None = None


class HistoryChunk(msgspec.Struct, frozen=True, gc=False):
    """64 entries, and the running values behind the last of them."""

    entries: tuple[Entry, ...]
    chain: str
    eighteenths: int
    user_text: str


class Bodies:
    """The bodies of a history in one list, for one comparison; later versions of the history add to the same list.

    A version of n messages reads the first n.  It is a memo: it takes no part in comparing histories.
    """

    __slots__ = ("messages",)

    def __init__(self, messages: list[ChatMessage]) -> None:
        self.messages = messages

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def with_more(self, count: int, messages: list[ChatMessage]) -> Bodies:
        """The bodies of the first ``count`` messages with more behind them."""
        shared = self if len(self.messages) == count else Bodies(self.messages[:count])
        shared.messages.extend(messages)
        return shared


class Difference(NamedTuple):
    """How a list that was handed over differs: the first ``keep`` messages stay, ``messages`` come after them."""

    keep: int
    messages: tuple[ChatMessage, ...]


class SourceHistory(msgspec.Struct, frozen=True):
    """The user's messages of a run, never a block of ours.

    ``chain`` links the digests of all messages, ``eighteenths`` is their cost in eighteenths of a token, ``user_text``
    the latest user text (D.G.17); entries without a body leave it as it is.  ``bodies`` is a memo, None where a body is
    missing.
    """

    chunks: tuple[HistoryChunk, ...] = ()
    rest: tuple[Entry, ...] = ()
    chain: str = EMPTY_CHAIN
    eighteenths: int = 0
    user_text: str = ""
    bodies: Bodies | None = None

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.chunks) * CHUNK + len(self.rest)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Entry]:
        for chunk in self.chunks:
            yield from chunk.entries
        yield from self.rest

    def __getitem__(self, place: slice) -> tuple[Entry, ...]:
        start, stop, step = place.indices(self.count)
        if step == 1:
            return tuple(self._between(start, stop))
        return tuple(self.entry(index) for index in range(start, stop, step))

    def entry(self, index: int) -> Entry:
        """The entry at an index from 0.

        Raises:
            RangeError: there is no such message.
        """
        if not 0 <= index < self.count:
            raise RangeError(f"history has {self.count} messages, none at {index}")
        chunk, offset = divmod(index, CHUNK)
        return self.chunks[chunk].entries[offset] if chunk < len(self.chunks) else self.rest[offset]

    def append(self, messages: Iterable[ChatMessage], costs: Iterable[int]) -> SourceHistory:
        """The history with messages behind it; ``costs`` are theirs, in eighteenths of a token.

        Messages are normalised (P.A.5).

        Raises:
            ValueError: there are more messages than costs, or fewer.
        """
        return self.extend(make_entry(message, cost) for message, cost in zip(messages, costs, strict=True))

    def extend(self, entries: Iterable[Entry]) -> SourceHistory:
        """The history with entries behind it, with or without bodies."""
        chunks, rest = self.chunks, list(self.rest)
        chain, eighteenths, user_text = self.chain, self.eighteenths, self.user_text
        added: list[ChatMessage] = []
        whole = True
        for entry in entries:
            chain = extend_chain(chain, entry.digest)
            eighteenths += entry.eighteenths
            if entry.message is None:
                whole = False
            else:
                added.append(entry.message)
                text = text_of_user(entry.message)
                user_text = user_text if text is None else text
            rest.append(entry)
            if len(rest) == CHUNK:
                chunks = (*chunks, HistoryChunk(tuple(rest), chain, eighteenths, user_text))
                rest = []
        bodies = self.bodies if self.count else Bodies([])
        bodies = bodies.with_more(self.count, added) if whole and bodies is not None else None
        return SourceHistory(chunks, tuple(rest), chain, eighteenths, user_text, bodies)

    def begins_with(self, other: SourceHistory) -> bool:
        """Whether the messages of another history are the first of this one; at most 63 digests are compared."""
        whole = len(other.chunks)
        if len(self.chunks) < whole or (whole and self.chunks[whole - 1].chain != other.chunks[-1].chain):
            return False
        behind = self.chunks[whole].entries if whole < len(self.chunks) else self.rest
        if len(behind) < len(other.rest):
            return False
        return all(a is b or a.digest == b.digest for a, b in zip(behind, other.rest, strict=False))

    def count_common(self, other: SourceHistory) -> int:
        """How many of the first messages of two histories are the same; at most 64 digests are compared."""
        least = min(len(self.chunks), len(other.chunks))

        def differs(number: int) -> bool:
            return self.chunks[number].chain != other.chunks[number].chain

        whole = bisect_left(range(least), True, key=differs) * CHUNK
        both = zip(self[whole : whole + CHUNK], other[whole : whole + CHUNK], strict=False)
        return whole + sum(1 for _ in takewhile(lambda pair: pair[0].digest == pair[1].digest, both))

    def keep(self, count: int) -> SourceHistory:
        """The first ``count`` messages: whole chunks are shared, at most 63 messages are linked anew.

        Raises:
            RangeError: there are fewer messages than that.
        """
        if not 0 <= count <= self.count:
            raise RangeError(f"history has {self.count} messages, cannot keep {count}")
        if count == self.count:
            return self
        whole = count // CHUNK
        start = SourceHistory()
        if whole:
            last = self.chunks[whole - 1]
            start = SourceHistory(self.chunks[:whole], (), last.chain, last.eighteenths, last.user_text)
        kept = start.extend(self._between(whole * CHUNK, count))
        return msgspec.structs.replace(kept, bodies=self.bodies)

    def messages(self) -> list[ChatMessage | None]:
        """The bodies, None where they are not at hand; a list of the caller's own."""
        if self.bodies is not None:
            return [*self.bodies.messages[: self.count]]
        return [entry.message for entry in self]

    def replace(self, keep: int, messages: Sequence[ChatMessage]) -> SourceHistory:
        """The history with messages in place of those behind the first ``keep``.

        A message that stood behind them keeps its entry, any other costs nothing.

        Raises:
            RangeError: there are fewer messages than ``keep``.
        """
        kept = self.keep(keep)
        known = {id(entry.message): entry for entry in self[keep:] if entry.message is not None} if messages else {}
        return kept.extend(known.get(id(message)) or make_entry(message, 0) for message in messages)

    def difference(self, given: Sequence[ChatMessage], own_digests: Collection[str] = (), same: int = 0) -> Difference:
        """How ``given`` differs from this history; our own blocks in it are dropped before comparison (D.F.19).

        Our own message objects are compared by identity, all in one comparison.  Only where that finds something else
        is a message compared by value, then normalised, and last by digest with our own blocks.

        Args:
            given: the whole list.
            own_digests: the digests of our blocks.
            same: how many of the first messages are known to be those of this history; they are not compared.
        """
        handed, size = given if isinstance(given, list) else list(given), self.count
        if not same and self.leads(handed):
            return Difference(size, without_blocks(handed[size:], own_digests))
        known: Sequence[ChatMessage | None] = self.messages() if self.bodies is None else self.bodies.messages
        keep = place = same
        while place < len(handed) and keep < size:
            step = min(CHUNK, size - keep)
            if known[keep : keep + step] == handed[place : place + step]:
                keep, place = keep + step, place + step
            elif known[keep] == handed[place] or known[keep] == normalise(handed[place]):
                keep, place = keep + 1, place + 1
            elif own_digests and digest_message(handed[place]) in own_digests:
                place += 1
            else:
                break
        return Difference(keep, without_blocks(handed[place:], own_digests))

    def leads(self, handed: Sequence[object]) -> bool:
        """Whether a list begins with this history: lists compare the identity of their items first, in C."""
        if self.bodies is None or not isinstance(handed, list):
            return False
        known = cast("list[object]", self.bodies.messages)
        try:  # equal items are passed over; two that differ have no order
            return (known if len(known) == self.count else known[: self.count]) <= handed
        except Exception:  # what others handed over is compared, which may raise what it likes
            return False

    def _between(self, start: int, stop: int) -> Iterator[Entry]:
        index = start
        while index < stop:
            chunk, offset = divmod(index, CHUNK)
            entries = self.chunks[chunk].entries if chunk < len(self.chunks) else self.rest
            part = entries[offset : offset + stop - index]
            yield from part
            index += len(part)


def make_entry(message: ChatMessage, eighteenths: int) -> Entry:
    """The entry of a message: normalised, digested once, with its cost in eighteenths of a token."""
    clean, data = _encode(message)
    return Entry(digest_bytes(data), eighteenths, clean)


def digest_message(message: ChatMessage) -> str:
    """The digest of a message's JSON bytes, normalised."""
    return digest_bytes(_encode(message)[1])


def normalise(message: ChatMessage) -> ChatMessage:
    """The message without lone surrogates and empty text parts (P.A.5); a sound one comes back as it is."""
    return _encode(message)[0]


def _encode(message: ChatMessage) -> tuple[ChatMessage, bytes]:
    """The normalised message and its JSON bytes."""
    data: bytes | None = None
    try:
        data = encode_json(message)
    except InvalidTypeError:
        message = _map_texts(message, clean_text)
    if any(_is_empty(part) or (isinstance(part, ToolResult) and _holds_empty(part)) for part in message.content):
        kept = tuple(_drop_empty(part) for part in message.content if not _is_empty(part))
        message = msgspec.structs.replace(message, content=kept)
        data = None
    return message, encode_json(message) if data is None else data


def without_blocks(messages: Sequence[ChatMessage], own_digests: Collection[str]) -> tuple[ChatMessage, ...]:
    """The messages that are no block of ours."""
    if not own_digests:
        return tuple(messages)
    return tuple(message for message in messages if digest_message(message) not in own_digests)


def is_only_results(message: ChatMessage) -> bool:
    """Whether a message of role user holds tool results alone: a tool message, as some providers write them (C.E.6)."""
    if message.role != "user" or not message.content:
        return False
    return all(isinstance(part, ToolResult) for part in message.content)


def text_of_user(message: ChatMessage) -> str | None:
    """What a message says as the user's latest, cut at 2000 code points; None if it does not count as one (D.G.17).

    Text parts are joined by newline, other parts ignored (D.G.20).
    """
    if message.role != "user" or not message.content or is_only_results(message):
        return None
    return "\n".join(part.text for part in message.content if isinstance(part, Text))[:MAX_QUERY]


def latest_user_text(messages: Sequence[ChatMessage], own_digests: Collection[str] = ()) -> str:
    """The latest user text of a list, newest last: D.G.17 to D.G.21.  Own blocks are known by digest (D.G.18)."""
    for message in reversed(messages):
        text = text_of_user(message)
        if text is not None and not (own_digests and digest_message(message) in own_digests):
            return text
    return ""


def make_query(title: str | None, user_text: str) -> str:
    """The query of a step: the task's title above the user text, 2000 code points at most (D.G.16, D.G.19)."""
    return "\n".join(part for part in (title, user_text) if part)[:MAX_QUERY]


def _is_empty(part: object) -> bool:
    return isinstance(part, Text) and not part.text


def _holds_empty(part: ToolResult) -> bool:
    return any(_is_empty(item) for item in part.content)


def _drop_empty(part: msgspec.Struct) -> msgspec.Struct:
    if isinstance(part, ToolResult) and _holds_empty(part):
        return msgspec.structs.replace(part, content=tuple(item for item in part.content if not _is_empty(item)))
    return part


def _map_texts(message: ChatMessage, change: Callable[[str], str]) -> ChatMessage:
    def walk(value: object) -> object:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, tuple):
            return tuple(walk(item) for item in cast("tuple[object, ...]", value))
        if isinstance(value, msgspec.Struct):
            fields = value.__struct_fields__
            return msgspec.structs.replace(value, **{name: walk(getattr(value, name)) for name in fields})
        return value

    changed = walk(message)
    if not isinstance(changed, ChatMessage):
        raise InvalidTypeError("not a chat message")
    return changed
