"""What a client holds of a run: its source messages, the blocks among them, and both as they are rendered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from contextbus.client.compiled import CompiledStep
from contextbus.client.own_blocks import OwnBlocks
from contextbus.client.reading import RunContent, read_run
from contextbus.client.rendered import BlocksInPlace, CheckpointInPlace, RenderedHistory
from contextbus.client.run_options import RunOptions
from contextbus.client.sending import Sender, new_id
from contextbus.core.handle import RunHandle
from contextbus.core.history import Entry, SourceHistory, digest_message
from contextbus.core.run_state import RunState
from contextbus.runtime.drive import JournalDriver
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commands import AppendMessages, Recorded, StepCompiled
from contextbus_protocol.errors import NotFoundError
from contextbus_protocol.package import Package

MOST_MESSAGES: Final = 2_000
"""So many new messages travel with a step at the most; a commit holds a line for each, and a server takes 1 MiB."""


class RunHistory:
    """The history of one run on its client's side.

    Attributes:
        content: the run as its log said when it was read last.
    """

    def __init__(self, driver: JournalDriver, sender: Sender, run: str) -> None:
        self.content = RunContent(RunState(run))
        self._driver = driver
        self._sender = sender
        self._blocks = BlocksInPlace()
        self._checkpoint: CheckpointInPlace | None = None
        self._rendered = RenderedHistory(sender.handle.history, self._blocks)
        self._own = OwnBlocks()
        self._open_count = 0
        self._lost = 0

    @property
    def handle(self) -> RunHandle:
        """What is known of the run."""
        return self._sender.handle

    async def load(self, at_least: int = 0) -> None:
        """Read the run from the log; messages that were not handed over yet stay behind what is read.

        Raises:
            DeadlineExceededError: log or store do not answer.
            NotFoundError: messages of the run are no longer stored.
        """
        content = await read_run(self._driver, self.content, max(at_least, self.handle.seen))
        self.content = content
        self._rebase(content)
        self._blocks, self._checkpoint = content.blocks, content.checkpoint
        if content.sent:
            self._own.send(content.sent)
        summaries = () if self._checkpoint is None else self._checkpoint.own
        self._own.replace((*(b.fact.digest for b in content.state.blocks), *summaries))
        self._rendered = RenderedHistory(self.handle.history, self._blocks, checkpoint=self._checkpoint)

    def _rebase(self, content: RunContent) -> None:
        """Take what was read as the history that the log holds; texts that are gone may be at hand here."""
        state, texts = content.state, content.messages
        if None in texts:
            own = {entry.digest: entry.message for entry in self.handle.history}
            pairs = zip(state.history, texts, strict=True)
            texts = tuple(own.get(entry.digest) if text is None else text for entry, text in pairs)
            self.content = msgspec.structs.replace(content, messages=texts)
        there = tuple(text for text in texts if text is not None)
        self._lost = max((index for index, text in enumerate(texts, 1) if text is None), default=0)
        if not self._lost:
            self._sender.handle = self.handle.rebase(there, state.sequence)
            return
        entries = (Entry(entry.digest, 0, text) for entry, text in zip(state.history, texts, strict=True))
        self._sender.handle = self.handle.rest_on(SourceHistory().extend(entries), state.sequence)

    def append(self, messages: Sequence[ChatMessage]) -> None:
        """Add messages behind the history."""
        self._sender.handle = self.handle.append(messages)

    def hand_over(self, messages: Sequence[ChatMessage]) -> None:
        """Take a whole list as the history; blocks of ours in it are dropped (D.F.19)."""
        self._sender.handle = self.handle.hand_over(messages, self._own)

    def take_back(self, before: RunHandle, added: int) -> None:
        """Drop the last messages, which could not be recorded; what was read of others meanwhile stays.

        Args:
            before: the handle before they were added.
            added: how many.
        """
        count = self.handle.history.count - added
        if count >= max(self.handle.kept, before.history.count):
            before = msgspec.structs.replace(self.handle, history=self.handle.history.keep(count))
        self._sender.handle = before

    async def make_room(self, options: RunOptions, seconds: float) -> None:
        """Record messages until as many are left as one command takes.

        Raises:
            ConflictError: others changed the history faster than this could be recorded.
        """
        while self.handle.history.count - self.handle.kept > MOST_MESSAGES:
            await self._append_some(options, seconds)

    async def flush(self, options: RunOptions, seconds: float) -> None:
        """Record all messages, as many at once as one commit takes.

        A part whose acknowledgement was lost is found in the log: its messages are not recorded again.

        Raises:
            ConflictError: others changed the history faster than this could be recorded.
            PayloadTooLargeError: a part is larger than the store takes.
        """
        while True:
            await self._append_some(options, seconds)
            if self.handle.kept == self.handle.history.count:
                return

    async def _append_some(self, options: RunOptions, seconds: float) -> None:
        command = new_id()

        def make() -> AppendMessages:
            return AppendMessages(
                **self._sender.head(command, seconds),
                scope=options.scope,
                estimator=options.estimator,
                parent=options.parent,
                history=self.handle.new_messages(MOST_MESSAGES),
            )

        self.acknowledge(await self._sender.race(make, Recorded, self.load))

    def acknowledge(self, answer: StepCompiled | Recorded) -> None:
        """Note what the log holds now; blocks behind the part of the history that was kept left with it (D.F.14)."""
        handle = self.handle
        if handle.kept < handle.base_count:
            self._blocks = self._blocks.keep(handle.kept)
            if self._checkpoint is not None and handle.kept < self._checkpoint.source_count:
                self._checkpoint = None  # it does not apply to what the history begins with now (C.L.4)
            summaries = () if self._checkpoint is None else self._checkpoint.own
            self._own.replace((*(digest_message(message) for _, message in self._blocks.items), *summaries))
        self._sender.handle = handle.acknowledge(answer.sequence, answer.count, answer.chain)

    async def take_step(self, answer: StepCompiled, package: Package) -> RenderedHistory:
        """The history that a compiled step was made for, rendered; its blocks are known from now on.

        Raises:
            DeadlineExceededError: the run had to be read, and log or store do not answer.
            NotFoundError: texts of the history are gone, and no checkpoint stands for them.
        """
        self.acknowledge(answer)
        history = self._first(answer.count)
        known = "" if self._checkpoint is None else self._checkpoint.blob
        if (history.chain, self._blocks.chain, known) != (answer.chain, answer.blocks, answer.checkpoint):
            await self.load()  # messages or blocks came or went that this client knows nothing of (D.J.6, C.K.3)
            history = self._first(answer.count)
        if (
            self._lost > (0 if self._checkpoint is None else self._checkpoint.source_count)
            and self._lost <= history.count
        ):
            raise NotFoundError(
                "messages of the run are no longer stored, and their summary was forgotten; give the run options of "
                "compaction, and it goes on behind them"
            )
        blocks = self._blocks.before(history.count, package) if answer.stored else self._blocks
        self._rendered = RenderedHistory(history, blocks, self._rendered, answer.stale_thinking, self._checkpoint)
        self._open_count = history.count
        self._own.send(digest_message(m) for block in package.blocks for m in block.messages)
        if answer.prepared is None:
            return self._rendered
        only = SourceHistory().append(answer.prepared, (0 for _ in answer.prepared))
        return RenderedHistory(only, BlocksInPlace())  # for this request only, so nothing is grown from it

    def place(self, step: CompiledStep) -> None:
        """Take the blocks of the last step into the history: its call succeeded (D.F.13, D.R.4)."""
        placed = {digest_message(message): message for message in step.placed_messages()}
        self._blocks = self._blocks.add(self._open_count, placed)
        self._own.place(placed)

    def _first(self, count: int) -> SourceHistory:
        history = self.handle.history
        return history.keep(min(count, history.count))
