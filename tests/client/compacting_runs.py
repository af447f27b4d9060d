"""Runs that compact: summarisers that write what a test says, and what the log then tells."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.client.scripted import sent

import contextbus.client as contextbus
from contextbus.client.compaction_options import CompactionEvent
from contextbus.summarisers.interface import Summary, SummaryRequest
from contextbus_protocol.chat import ChatMessage, Text, assistant, user
from contextbus_protocol.events import StepFailed
from contextbus_protocol.package import CachePrefixCause
from contextbus_protocol.values import Model, Usage

SMALL = Model("openai", "gpt-test", 1_000, 100)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Done.")])


class Writing:
    """A summariser that gives ``answer``, or raises it; it remembers what it was asked."""

    id = "writing"

    def __init__(self, answer: str | Summary | BaseException = "Short.") -> None:
        self.answer = answer
        self.asked: list[SummaryRequest] = []

    async def summarise(self, request: SummaryRequest) -> str | Summary:
        """Answer as told."""
        self.asked.append(request)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@asynccontextmanager
async def bus_writing(*summarisers: Any, **given: Any) -> AsyncGenerator[contextbus.ContextBus]:
    """A bus in memory with these summarisers."""
    async with contextbus.open("memory:", summarisers=summarisers, memory=False, **given) as bus:
        yield bus


def talk(turns: int, words: int = 20) -> list[ChatMessage]:
    """So many turns of user and assistant, then a question; each message says a different thing."""
    messages: list[ChatMessage] = []
    for turn in range(turns):
        messages += [user(f"Ask {turn}: " + "why " * words), assistant(f"Answer {turn}: " + "so " * words)]
    return [*messages, user("And now?")]


async def events_of(bus: contextbus.ContextBus, run: contextbus.Run) -> list[CompactionEvent]:
    """The compaction events of a run's log, in order."""
    log = await bus.log(run.id)
    return [e for c in log.commits for e in c.commit.events if isinstance(e, CompactionEvent)]


async def kinds(bus: contextbus.ContextBus, run: contextbus.Run) -> list[str]:
    """What they are, in short."""
    return [str(e.__struct_config__.tag).removeprefix("compaction-") for e in await events_of(bus, run)]


async def failures_of(bus: contextbus.ContextBus, run: contextbus.Run) -> list[StepFailed]:
    """The steps that failed, by the log."""
    return [e for c in (await bus.log(run.id)).commits for e in c.commit.events if isinstance(e, StepFailed)]


def reported(input_tokens: int, *, read: int = 0, write: int = 0, **more: Any) -> contextbus.Report:
    """A call that succeeded, with usage as a provider reports it."""
    usage = Usage(input_tokens=input_tokens, output_tokens=1, cache_read_tokens=read, cache_write_tokens=write)
    return contextbus.Report(status="succeeded", messages=[assistant("Done.")], usage=usage, **more)


def cause_of(step: contextbus.CompiledStep) -> CachePrefixCause | None:
    """Why a step's request does not begin as the one before."""
    return step.manifest.cache_prefix_cause


def said(messages: Iterable[object]) -> list[str]:
    """The texts of messages, as plain words."""
    return [
        "".join(part.text for part in message.content if isinstance(part, Text))
        for message in messages
        if isinstance(message, ChatMessage)
    ]


def roles(messages: Iterable[object]) -> list[str]:
    """Who says each message."""
    return [message.role for message in messages if isinstance(message, ChatMessage)]


def contents(step: contextbus.CompiledStep) -> list[str]:
    """The texts of the step's request."""
    return [m["content"] for m in sent(step)]
