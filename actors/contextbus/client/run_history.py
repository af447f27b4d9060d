"""What a client holds of a run: its source messages, the blocks among them, and both as they are rendered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from contextbus.client.compiled import CompiledStep
from contextbus.client.given import GivenMessage
from contextbus.client.given_history import GivenHistory
from contextbus.client.own_blocks import OwnBlocks
from contextbus.client.reading import RunContent, read_run
from contextbus.client.rendered import BlocksInPlace, CheckpointInPlace, RenderedHistory
from contextbus.client.request_view import RequestView
from contextbus.client.run_options import RunOptions
from contextbus.client.sending import Sender, new_id
from contextbus.core.handle import RunHandle
from contextbus.core.history import Entry, SourceHistory, digest_message
from contextbus.core.run_state import RunState
from contextbus.runtime.drive import JournalDriver
from contextbus_protocol.callbacks import HistoryState
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
        self._given = GivenHistory()
        self._open_count: int | None = 0
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

    async def view(self, state: HistoryState | None) -> RequestView:
        """The request history that a question is about; read from the log where this client is behind.

        What it holds of the run stays as it is: a step that is under way goes on with it.

        Args:
            state: the history as the actor that asks has it; None for this client's own.

        Raises:
            DeadlineExceededError: log or store do not answer.
            NotFoundError: texts of the run are no longer stored.
        """
        handle = self.handle
        blocks, checkpoint = self._standing(handle, self._blocks, self._checkpoint)
        if state is None:
            return RequestView(handle.history, blocks, checkpoint)
        history = self._first(state.count)
        known = "" if checkpoint is None else checkpoint.blob
        if (history.chain, blocks.chain, known) == (state.chain, state.blocks, state.checkpoint):
            return RequestView(history, blocks, checkpoint)
        content = await read_run(self._driver, self.content, max(state.sequence, handle.seen))
        if history.chain == state.chain:
            blocks, checkpoint = self._standing(handle, content.blocks, content.checkpoint)
        else:  # others added messages, which this client comes to know with its next command
            texts = tuple(text for text in content.messages if text is not None)
            if len(texts) < len(content.messages):
                raise NotFoundError("messages of the run are no longer stored")
            whole = handle.rebase(texts, content.state.sequence).history
            history, blocks, checkpoint = whole.keep(min(state.count, whole.count)), content.blocks, content.checkpoint
        return RequestView(history, blocks, checkpoint)

    def clear(self, answer: Recorded) -> None:
        """Forget the history: the host began a new topic, and the log has it (P.J.9)."""
        self._sender.handle = RunHandle(
            seen=max(answer.sequence, self.handle.seen), seen_memory=self.handle.seen_memory
        )
        self._blocks, self._checkpoint, self._open_count, self._lost = BlocksInPlace(), None, None, 0
        self._own.replace(())
        self._given = GivenHistory()
        self._rendered = RenderedHistory(self.handle.history, self._blocks)

    def append(self, messages: Sequence[ChatMessage]) -> None:
        """Add messages behind the history."""
        self._sender.handle = self.handle.append(messages)

    def hand_over(self, messages: Sequence[GivenMessage]) -> SourceHistory:
        """Take a whole list as the history, which is returned; blocks of ours in it are dropped (D.F.19).

        Raises:
            InvalidTypeError: a message cannot be read; nothing has changed.
        """
        self._sender.handle = self._given.hand_over(self.handle, messages, self._own)
        return self.handle.history

    def hand_over_again(self, taken: SourceHistory) -> None:
        """Take a list that was handed over as the history again, where the run was read since (D.F.19)."""
        if self.handle.history is not taken:
            messages = [message for message in taken.messages() if message is not None]
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
            self._blocks, self._checkpoint = self._standing(handle, self._blocks, self._checkpoint)
            summaries = () if self._checkpoint is None else self._checkpoint.own
            self._own.replace((*(digest_message(message) for _, message in self._blocks.items), *summaries))
        self._sender.handle = handle.acknowledge(answer.sequence, answer.count, answer.chain)

    @staticmethod
    def _standing(
        handle: RunHandle, blocks: BlocksInPlace, checkpoint: CheckpointInPlace | None
    ) -> tuple[BlocksInPlace, CheckpointInPlace | None]:
        """What of blocks and checkpoint stands in the part of the log's history that was kept (D.F.14, C.L.4)."""
        if handle.kept >= handle.base_count:
            return blocks, checkpoint
        applies = checkpoint is not None and handle.kept >= checkpoint.source_count
        return blocks.keep(handle.kept), checkpoint if applies else None

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
        given = answer.prepared
        if package.manifest.placement.tail_kept:  # the model binds its thinking to what stood before it
            given = self._rendered.withhold_given(given)
        only = SourceHistory().append(given, (0 for _ in given))
        return RenderedHistory(only, BlocksInPlace())  # for this request only, so nothing is grown from it

    def place(self, step: CompiledStep) -> None:
        """Take the blocks of the last step into the history: its call succeeded (D.F.13, D.R.4)."""
        if self._open_count is None:
            return  # the host began a new topic meanwhile
        placed = {digest_message(message): message for message in step.placed_messages()}
        self._blocks = self._blocks.add(self._open_count, placed)
        self._own.place(placed)

    def _first(self, count: int) -> SourceHistory:
        history = self.handle.history
        return history.keep(min(count, history.count))
