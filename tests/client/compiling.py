"""A host that uses a compiler by itself: it places the blocks in its own list of messages, as example 2 does."""

from __future__ import annotations

from typing import Any

import contextbus.client as contextbus
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.package import Package
from contextbus_protocol.values import EstimatorSpec, Model

QUESTION = "How do I deploy?"
CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
TAG = contextbus.candidate("1", "Rollbacks use the previous image tag.", 0.4)
CHARACTERS = EstimatorSpec(name="characters")
MODEL = Model("openai", "gpt-5", 128_000, 8_000)
BOUND = Model("anthropic", "claude-opus-5-5", 200_000, 8_000)


def entries(package: Package) -> list[tuple[str, bool, str]]:
    """Record, whether it is selected, and why."""
    return [(e.record_id, e.selected, e.reason) for e in package.manifest.entries]


def placements(package: Package) -> list[str]:
    """Where the blocks stand."""
    return [block.placement for block in package.blocks]


def appended(package: Package) -> list[ChatMessage]:
    """The messages of the append block."""
    return [m for block in package.blocks if block.placement == "append" for m in block.messages]


class Host:
    """A history, and the steps that are compiled for it; ``step`` is the number of the next one."""

    def __init__(self, compiler: contextbus.Compiler, *messages: ChatMessage, model: Model = MODEL) -> None:
        self.compiler = compiler
        self.history: list[ChatMessage] = list(messages or (user(QUESTION),))
        self.model = model
        self.step = 0

    async def compile(self, **given: Any) -> Package:
        """Compile the next step, and nothing else."""
        arguments: dict[str, Any] = {"messages": self.history, "model": self.model, "step": self.step} | given
        return await self.compiler.before_model_call(run_id="r", **arguments)

    def take_turn(self, package: Package) -> None:
        """The call of a step succeeded: its blocks that stay and an answer join the history."""
        for block in package.blocks:
            if block.placement == "append" or package.manifest.placement.tail_kept:
                self.history += block.messages
        self.history.append(assistant(f"Turn {package.step}."))
        self.step = package.step + 1

    async def turn(self, **given: Any) -> Package:
        """Compile the next step, and have its call succeed."""
        package = await self.compile(**given)
        self.take_turn(package)
        return package
