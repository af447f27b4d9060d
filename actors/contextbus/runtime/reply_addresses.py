"""Addresses at which one answer each is waited for, and before it questions of whoever works on it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from contextbus.runtime.bus import BusUnavailableError
from contextbus_protocol.callbacks import AskCallback
from contextbus_protocol.messages import AnyMessage

TakeQuestion = Callable[[AskCallback], None]


class ReplyAddresses:
    """Addresses under one prefix, each closed by its first answer.

    Args:
        prefix: What all of them begin with.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._counter = itertools.count(1)
        self._open: dict[str, asyncio.Future[AnyMessage]] = {}
        self._questions: dict[str, TakeQuestion] = {}

    def open(self, take_question: TakeQuestion | None = None) -> tuple[str, asyncio.Future[AnyMessage]]:
        """Make an address, and what will hold the answer; cancelling the latter closes the address.

        Args:
            take_question: is called for each question to a function of the host that comes before the answer.
        """
        future: asyncio.Future[AnyMessage] = asyncio.get_running_loop().create_future()
        address = f"{self._prefix}.{next(self._counter)}"
        self._open[address] = future
        if take_question is not None:
            self._questions[address] = take_question

        def close(future: asyncio.Future[AnyMessage]) -> None:
            self._open.pop(address, None)
            self._questions.pop(address, None)
            if not future.cancelled():
                future.exception()  # seen, even if whoever asked has gone

        future.add_done_callback(close)
        return address, future

    def answer(self, address: str, message: AnyMessage) -> bool:
        """Give an answer; False if nobody waits for it."""
        future = self._open.get(address)
        if future is None or future.done():
            return False
        if isinstance(message, AskCallback):
            take_question = self._questions.get(address)
            if take_question is not None:
                take_question(message)
            return take_question is not None
        future.set_result(message)
        return True

    def fail(self, address: str, reason: str) -> bool:
        """Tell who waits at an address that no answer will come; False if nobody waits."""
        future = self._open.get(address)
        if future is None or future.done():
            return False
        future.set_exception(BusUnavailableError(reason))
        return True

    def close(self) -> None:
        """Close all addresses; who still waits is told."""
        for address in tuple(self._open):
            self.fail(address, "the host was closed before an answer came")
