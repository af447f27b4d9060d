"""Sources that answer as a test says, and a bus in memory with them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import contextbus.client as contextbus
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import replay_run
from contextbus.sources.interface import check_source
from contextbus_protocol.chat import ChatMessage, Text
from contextbus_protocol.package import Block
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Candidate, EstimatorSpec, Model, Scope, SourceKind

SCOPE = Scope(user_id="ada")
CHARACTERS = EstimatorSpec(name="characters")
MODEL = Model("openai", "gpt-test", 128_000, 8_000)


class Scripted:
    """A source that gives ``answer``, or raises it; it remembers what it was asked."""

    def __init__(
        self,
        answer: Sequence[Candidate] | BaseException = (),
        *,
        id: str = "rag",  # noqa: A002  (the word that users write)
        kind: SourceKind = "rag",
        required: bool = False,
    ) -> None:
        self.id = id
        self.kind: SourceKind = kind
        self.required = required
        self.answer = answer
        self.asked: list[Query] = []

    async def query(self, query: Query) -> Sequence[Candidate]:
        """Answer as told."""
        self.asked.append(query)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@asynccontextmanager
async def bus_with(*sources: Scripted) -> AsyncGenerator[contextbus.ContextBus]:
    """A bus in memory whose only sources are these."""
    checked = [check_source(source) for source in sources]
    async with contextbus.open("memory:", sources=checked, memory=False) as bus:
        yield bus


async def state_of(bus: contextbus.ContextBus, run: contextbus.Run) -> RunState:
    """The run as its log says."""
    return replay_run(await bus.log(run.id))


def sent(step: contextbus.CompiledStep) -> list[dict[str, Any]]:
    """The messages of the step's request as plain dicts."""
    return cast("list[dict[str, Any]]", step.payload("openai").copy()["messages"])


def text_of(block: Block) -> str:
    """The text of a block of one message."""
    (message,) = block.messages
    return text_in(message)


def text_in(message: ChatMessage) -> str:
    """The text of a message of one part."""
    (part,) = message.content
    assert isinstance(part, Text)
    return part.text
