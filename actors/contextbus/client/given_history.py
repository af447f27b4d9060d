"""A whole list of messages that a host hands over again and again: only what is behind the known part is read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import cast

import msgspec

from contextbus.client.given import GivenMessage, members_of, read_given
from contextbus.client.given_copies import copy_message
from contextbus.core.handle import RunHandle
from contextbus.core.history import SourceHistory
from contextbus.core.importers import read_conversations
from contextbus.core.importers.detect import form_of, sign_of
from contextbus.core.importers.neighbours import has_role, reads_alone
from contextbus.core.importers.reading import Object, Provider
from contextbus.core.persistent import CHUNK
from contextbus_protocol.chat import ChatMessage, ToolResult
from contextbus_protocol.errors import InvalidTypeError


class _Part(msgspec.Struct, frozen=True):
    """Messages of ours in a row, or of others, which are read together.

    ``start`` and ``read`` are the places of its first message in the list and in what was read.  ``form`` is that of
    the messages of others, None where they have no roles; ``signs`` are the first messages that tell each form.  Where
    ``alone``, each of them gave one message of ours that does not depend on its neighbours.
    """

    start: int
    read: int
    foreign: bool = False
    form: Provider | None = None
    signs: tuple[tuple[int, Provider], ...] = ()
    alone: bool = True


class GivenHistory:
    """What was read of the list that was handed over last.

    Our own messages are compared by identity, all in one comparison; dicts of others with private copies, so that a
    change within one is seen.  Reading gives what ``read_given`` gives of the whole list.  Its cost grows with the list
    by what that comparison costs: about 1 ns a message of ours, 50-150 ns a dict of texts, less than 1 us a dict with
    numbers or of an unknown shape.  Lists of Gemini and Responses, and calls without ids, are imported as a whole once
    something joins them; an SDK's objects are dumped each time.

    Attributes:
        messages: what was read; not to be changed.
    """

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._copies: list[object] = []
        self._parts: list[_Part] = []
        self._taken = SourceHistory()

    def hand_over(
        self, handle: RunHandle, messages: Sequence[GivenMessage], own_digests: Collection[str] = ()
    ) -> RunHandle:
        """The handle with a whole list as its history; blocks of ours in it are dropped (D.F.19).

        Raises:
            InvalidTypeError: a message cannot be read; nothing has changed.
        """
        given: list[GivenMessage] = messages if isinstance(messages, list) else list(messages)
        history = handle.history
        if history.leads(given):
            return handle.replace(history.count, read_given(given[history.count :]), own_digests)
        same = self.read(given)
        shorter, longer = sorted((self._taken, history), key=attrgetter("count"))
        agreed = shorter.count if longer.begins_with(shorter) else 0
        handle = handle.hand_over(self.messages, own_digests, min(same, agreed))
        # Where a block was dropped, places in the list are none in the history.
        self._taken = handle.history if handle.history.count == len(self.messages) else SourceHistory()
        return handle

    def read(self, given: list[GivenMessage]) -> int:
        """Read a list; what is as it was is not read again.

        Returns:
            How many of ``messages`` are those of the reading before.

        Raises:
            InvalidTypeError: a message cannot be read; what was read before stays.
        """
        same = _count_same(self._copies, given)
        if same == len(given) == len(self._copies):
            return len(self.messages)
        draft = _Draft(given, same)
        kept = bisect_left(self._parts, same, key=attrgetter("start"))
        place = same
        if kept and self._parts[kept - 1].foreign:
            kept -= 1
            place = self._read_on(draft, kept, same)
        else:
            draft.read_from = self._read_place(kept, same)
        draft.read_rest(place)
        unchanged = draft.read_from
        for message in draft.messages:  # what is equal stays the object that it was
            if unchanged == len(self.messages) or self.messages[unchanged] != message:
                break
            unchanged += 1
        del self._parts[kept:], self._copies[draft.copy_from :]
        self.messages[unchanged:] = draft.messages[unchanged - draft.read_from :]
        self._parts += draft.parts
        self._copies += draft.copies
        return unchanged

    def _read_place(self, kept: int, same: int) -> int:
        """The place in what was read of the first message behind the same ones, which are ours at the end."""
        if not kept:
            return 0
        part = self._parts[kept - 1]
        return part.read + same - part.start

    def _read_on(self, draft: _Draft, number: int, same: int) -> int:
        """Read the rest of a part of others' messages whose first ones are the same; the place behind it."""
        part, end = self._parts[number], draft.end_of_foreign(same)
        behind = self._parts[number + 1].start if number + 1 < len(self._parts) else len(self._copies)
        if same == end == behind:
            draft.read_from = self._parts[number + 1].read if number + 1 < len(self._parts) else len(self.messages)
            draft.parts.append(part)
            return end
        new = [members_of(message) for message in draft.given[same:end]]
        signs = tuple(sign for sign in part.signs if sign[0] < same)
        if part.alone and all(map(has_role, new)):
            signs = _add_signs(signs, new, same)
            form = form_of(sign for _, sign in signs)
            if form == part.form and all(reads_alone(message, form) for message in new):
                try:
                    found = read_conversations(new, form)[0].messages if new else ()
                except InvalidTypeError:
                    found = None  # the whole of it names the place of what is wrong
                if found is not None:
                    draft.read_from = part.read + same - part.start
                    draft.parts.append(msgspec.structs.replace(part, signs=signs))
                    draft.add(new, found, form, same)
                    return end
        draft.copy_from, draft.read_from = part.start, part.read
        draft.read_foreign(part.start, end)
        return end


class _Draft:
    """What a reading adds, taken over once all of it is read."""

    def __init__(self, given: list[GivenMessage], same: int) -> None:
        self.given = given
        self.copy_from = same
        self.read_from = 0
        self.parts: list[_Part] = []
        self.copies: list[object] = []
        self.messages: list[ChatMessage] = []

    def end_of_foreign(self, start: int) -> int:
        """The place behind the messages of others that begin at a place."""
        for place in range(start, len(self.given)):
            if isinstance(self.given[place], ChatMessage | ToolResult):
                return place
        return len(self.given)

    def read_rest(self, start: int) -> None:
        """Read all from a place on."""
        while start < len(self.given):
            end = self.end_of_foreign(start)
            if end > start:
                self.read_foreign(start, end)
            start = end
            if start < len(self.given):
                self.parts.append(_Part(start, self.read_from + len(self.messages)))
            while start < len(self.given) and isinstance(self.given[start], ChatMessage | ToolResult):
                self.messages += read_given((self.given[start],))
                self.copies.append(self.given[start])
                start += 1

    def read_foreign(self, start: int, end: int) -> None:
        """Read messages of others as a part of its own."""
        members = [members_of(message) for message in self.given[start:end]]
        form: Provider | None = None
        signs: tuple[tuple[int, Provider], ...] = ()
        alone = False
        if all(map(has_role, members)):
            signs = _add_signs((), members, start)
            form = form_of(sign for _, sign in signs)
            alone = all(reads_alone(message, form) for message in members)
        found = read_conversations(members, form)[0].messages
        self.parts.append(_Part(start, self.read_from + len(self.messages), True, form, signs, alone))
        self.add(members, found, form, start)

    def add(self, members: Sequence[Object], found: Sequence[ChatMessage], form: Provider | None, start: int) -> None:
        """Take messages of others as they were read."""
        self.messages += found
        for place, read in enumerate(members, start):
            self.copies.append(copy_message(self.given[place], read, form, members_of))


def _add_signs(
    signs: tuple[tuple[int, Provider], ...], members: Sequence[Mapping[str, object]], start: int
) -> tuple[tuple[int, Provider], ...]:
    """The first messages that tell each form, once those from a place on are seen too."""
    told = {sign for _, sign in signs}
    for place, message in enumerate(members, start):
        sign = sign_of(cast("Object", message))
        if sign is not None and sign not in told:
            told.add(sign)
            signs = (*signs, (place, sign))
    return signs


def _count_same(copies: list[object], given: list[GivenMessage]) -> int:
    """How many of the first messages are as they were."""
    try:
        if copies <= cast("list[object]", given):  # equal items are passed over in C; two that differ have no order
            return len(copies)
    except Exception:  # objects of others are compared, which may raise what they like
        pass
    same = 0
    for start in range(0, min(len(copies), len(given)), CHUNK):
        if not _are_equal(copies[start : start + CHUNK], given[start : start + CHUNK]):
            break
        same = min(start + CHUNK, len(copies), len(given))
    while same < min(len(copies), len(given)) and _are_equal(copies[same], given[same]):
        same += 1
    return same


def _are_equal(copy: object, given: object) -> bool:
    try:
        return bool(copy == given)
    except Exception:  # as above
        return False
