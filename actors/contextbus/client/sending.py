"""The commands of one run on their way: each says what its handle has seen of the log."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Final, TypedDict, TypeVar

import msgspec

from contextbus.client.asking import ask
from contextbus.core.handle import RunHandle
from contextbus.runtime.clock import read_milliseconds
from contextbus.runtime.host import Host
from contextbus.runtime.reply_addresses import TakeQuestion
from contextbus_protocol import subjects
from contextbus_protocol.commands import AnyCommand
from contextbus_protocol.errors import ConflictError, InvalidTypeError
from contextbus_protocol.messages import AnyMessage

DEFAULT_SECONDS: Final = 10.0
"""How long an attempt of a command may take, in seconds."""

RACES: Final = 10
"""How often a command is asked for again after another client changed the history."""

RACE_SECONDS: Final = 0.01
"""The longest wait before the second time; it doubles up to sixteen times, so that clients do not stay in step."""

A = TypeVar("A", bound=AnyMessage)


class CommandHead(TypedDict):
    """The fields that every command has."""

    run: str
    tenant: str
    command: str
    attempt: int
    reply_to: str
    seconds_left: float
    now: int
    seen: int
    seen_memory: int


class Sender:
    """Asks the actors for one run; ``handle`` is what its client knows of it."""

    def __init__(self, host: Host, tenant: str, run: str) -> None:
        self.handle = RunHandle()
        self._host = host
        self._tenant = tenant
        self._run = run

    def head(self, command: str | None, seconds: float) -> CommandHead:
        """The head of a command as of now; without an id it gets one."""
        return CommandHead(
            run=self._run,
            tenant=self._tenant,
            command=command or new_id(),
            attempt=1,
            reply_to="",
            seconds_left=seconds,
            now=read_milliseconds(),
            seen=self.handle.seen,
            seen_memory=self.handle.seen_memory,
        )

    async def ask(
        self,
        actor: subjects.ActorName,
        command: AnyCommand,
        answer: type[A],
        take_question: TakeQuestion | None = None,
    ) -> A:
        """Ask an actor.

        Raises:
            InvalidTypeError: the answer is of another kind than ``answer``.
            ContextBusError: what the actor refuses with, in the class of its code (D.W.2).
            DeadlineExceededError: no answer came.
        """
        got = await ask(self._host, actor, command, take_question)
        if not isinstance(got, answer):
            raise InvalidTypeError(f"{actor} answered with {type(got).__name__}, not {answer.__name__}; same release?")
        return got

    async def race(
        self,
        make: Callable[[], AnyCommand],
        answer: type[A],
        reload: Callable[[], Awaitable[None]],
        take_question: TakeQuestion | None = None,
    ) -> A:
        """Ask selection, and where another client changed the history read the run and ask again.

        Args:
            make: makes the command from what the handle knows; the id of the first is kept.
            answer: the kind of the answer.
            reload: reads the run from the log.
            take_question: takes questions to functions of the host.

        Raises:
            ConflictError: others changed the history each time.
        """
        command = make()
        for race in range(RACES):
            try:
                return await self.ask("selection", command, answer, take_question)
            except ConflictError:
                await asyncio.sleep(random.random() * RACE_SECONDS * 2 ** min(race, 4))
                await reload()
                command = msgspec.structs.replace(make(), command=command.command)
        return await self.ask("selection", command, answer, take_question)


class OpenCommands:
    """The ids of commands that were not acknowledged yet, by what they ask for: asked again, it is the same command."""

    def __init__(self) -> None:
        self._ids: dict[tuple[object, ...], str] = {}

    def id_of(self, asks: tuple[object, ...], given: str | None = None) -> str:
        """The id of what is asked for: the caller's, that of the attempt before, or a new one."""
        if given is None:
            return self._ids.setdefault(asks, new_id())
        self._ids[asks] = given
        return given

    def close(self, asks: tuple[object, ...]) -> None:
        """Forget what was acknowledged."""
        self._ids.pop(asks, None)

    def clear(self) -> None:
        """Forget all: the run went on."""
        self._ids.clear()


def new_id() -> str:
    """An id that nothing else has."""
    return uuid.uuid4().hex
