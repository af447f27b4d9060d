"""What a client knows of a run: its source messages, and how much of them the log holds.

A pure fold in the client's run handle (design: section 4).  Messages are handed over in two ways: what is new, or the
whole list; either way only what the log does not hold travels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from contextbus.core.history import SourceHistory, without_blocks
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commands import NewMessages
from contextbus_protocol.digests import EMPTY_CHAIN


class RunHandle(msgspec.Struct, frozen=True):
    """The client's side of a run.

    The log is known to hold ``base_count`` messages with the chain ``base_chain``; the first ``kept`` of them are the
    first of ``history`` too.  ``seen`` and ``seen_memory`` are the newest sequences that the client knows of.
    """

    history: SourceHistory = SourceHistory()
    base_count: int = 0
    base_chain: str = EMPTY_CHAIN
    kept: int = 0
    seen: int = 0
    seen_memory: int = 0

    def append(self, messages: Sequence[ChatMessage]) -> RunHandle:
        """The handle with messages behind its history."""
        history = self.history.append(messages, _no_costs(messages))
        return msgspec.structs.replace(self, history=history)

    def hand_over(self, messages: Sequence[ChatMessage], own_digests: Collection[str] = (), same: int = 0) -> RunHandle:
        """The handle with the whole list as its history; blocks of ours in it are dropped (design: section 4).

        Args:
            messages: the whole list.
            own_digests: the digests of our blocks.
            same: how many of the first messages are known to be those of the history.
        """
        keep, rest = self.history.difference(messages, own_digests, same)
        return self._replace(keep, rest)

    def replace(self, keep: int, messages: Sequence[ChatMessage], own_digests: Collection[str] = ()) -> RunHandle:
        """The handle with messages in place of those behind the first ``keep``; blocks of ours in them are dropped."""
        return self._replace(keep, without_blocks(messages, own_digests))

    def _replace(self, keep: int, rest: Sequence[ChatMessage]) -> RunHandle:
        history = self.history.replace(keep, rest)
        return msgspec.structs.replace(self, history=history, kept=min(self.kept, keep))

    def new_messages(self, most: int | None = None) -> NewMessages:
        """What the log does not hold, as a command carries it.

        Args:
            most: how many messages at the most; the rest stays for the next command.
        """
        end = self.history.count if most is None else min(self.history.count, self.kept + most)
        bodies = tuple(e.message for e in self.history[self.kept : end] if e.message is not None)
        return NewMessages(
            base_count=self.base_count,
            base_chain=self.base_chain,
            keep=self.kept,
            messages=bodies,
            chain=self.history.chain if end == self.history.count else self.history.keep(end).chain,
        )

    def acknowledge(self, sequence: int, count: int, chain: str) -> RunHandle:
        """The handle once the log is known to hold ``count`` messages as of a sequence.

        Messages of others that this client has not read are no base for it: the next command says what it was built
        on, and is refused until the run is read again, so that nothing of others is replaced unread (D.F.19).
        """
        if sequence < self.seen:
            return self
        if count > self.history.count or self.history.keep(count).chain != chain:
            return msgspec.structs.replace(self, seen=sequence)
        return msgspec.structs.replace(self, base_count=count, base_chain=chain, kept=count, seen=sequence)

    def see_memory(self, sequence: int) -> RunHandle:
        """The handle once a commit of the working memory is known."""
        return msgspec.structs.replace(self, seen_memory=max(self.seen_memory, sequence))

    def rebase(self, messages: Sequence[ChatMessage], sequence: int) -> RunHandle:
        """The handle on the history that the log holds now, with what this client had added behind it.

        Where both agree the caller's own objects stay (D.W.3).  What this client added and the log holds at that very
        place is taken as its own, stored by a command whose answer was lost, and not added again.

        Args:
            messages: all source messages that the log holds.
            sequence: the log's sequence that they are as of.
        """
        keep, rest = self.history.difference(messages)
        base = self.history.keep(keep).append(rest, _no_costs(rest))
        own = [e.message for e in self.history[max(keep, self.kept) :] if e.message is not None]
        return RunHandle(
            history=base.append(own, _no_costs(own)),
            base_count=base.count,
            base_chain=base.chain,
            kept=base.count,
            seen=max(sequence, self.seen),
            seen_memory=self.seen_memory,
        )

    def rest_on(self, stored: SourceHistory, sequence: int) -> RunHandle:
        """The handle on what the log holds, some of whose texts are gone, with what this client had added behind it.

        Args:
            stored: all source messages that the log holds, without a body where its text is gone.
            sequence: the log's sequence that they are as of.
        """
        both = zip(self.history, stored, strict=False)
        keep = next((i for i, (a, b) in enumerate(both) if a.digest != b.digest), min(self.history.count, stored.count))
        return RunHandle(
            history=stored.extend(self.history[max(keep, self.kept) :]),
            base_count=stored.count,
            base_chain=stored.chain,
            kept=stored.count,
            seen=max(sequence, self.seen),
            seen_memory=self.seen_memory,
        )


def _no_costs(messages: Sequence[ChatMessage]) -> Iterable[int]:
    """A client counts nothing: selection does, once."""
    return (0 for _ in messages)
