"""One small task, always the same: three steps over four sources and a working memory; prints the packages.

Usage: ``python -m tests.chaos.scenario memory|local|remote [--data FOLDER] [--clock SECONDS]``.
"""

from __future__ import annotations

import argparse
import time

import anyio
import msgspec

import contextbus.client as contextbus
from contextbus_protocol.values import SourceSpec
from contextbus_protocol.working_memory import AddObservation, Task, TaskList, TasksInput
from tests.chaos import workers

MODEL = contextbus.Model("anthropic", "claude-opus-4-6", 64_000, 4_000)
SOURCES = tuple(SourceSpec(s.id, s.kind) for s in workers.ALL)


async def run_scenario(bus: contextbus.ContextBus, name: str = "scenario") -> list[str]:
    """The package texts of the three steps."""
    run = await bus.run(name, scope=contextbus.Scope(user_id="ada"), sources=SOURCES)
    await run.working_memory.create(
        scope="acme",
        goal="Deploy the billing service & tell <support>.",
        constraints=("No deploys on Friday.",),
        tasks=TasksInput(TaskList("ship", (Task("a", "Check CI"), Task("b", "Roll out"))), "a"),
    )
    texts: list[str] = []
    for turn, text in enumerate(("How do I deploy?", "And roll back?", "Done?")):
        run.append(contextbus.user(text))
        step = await run.before_model_call(model=MODEL, refresh=turn == 1)
        texts.append(step.text)
        await run.after_model_call(
            contextbus.Report(status="succeeded", messages=(contextbus.assistant(f"Answer {turn}."),))
        )
        await run.working_memory.patch(AddObservation(text=f"Seen {turn}."), expected_revision=turn)
    verdict = await bus.verify(name)
    assert verdict.is_clean, verdict
    assert verdict.steps == len(texts)
    return texts


async def main() -> None:
    """Run the scenario as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("memory", "local", "remote"))
    parser.add_argument("--data", default=".contextbus")
    parser.add_argument("--clock", type=float, default=0.0)
    options = parser.parse_args()
    real = time.time
    time.time = lambda: real() + options.clock
    local = options.mode != "remote"
    async with contextbus.open(
        "memory:" if options.mode == "memory" else None,
        data=options.data,
        actors="local" if local else "remote",
        sources=workers.ALL if local else (),
        memory=False,
    ) as bus:
        texts = await run_scenario(bus)
    print(msgspec.json.encode(texts).decode())


if __name__ == "__main__":
    anyio.run(main)
