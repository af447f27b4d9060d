"""Races over separate processes, two instances of each actor: clients, attempts and patches beside each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

import contextbus.client as contextbus
from contextbus.core.handle import RunHandle
from contextbus.runtime import embedded
from contextbus_protocol import subjects
from contextbus_protocol.commands import CompileStep
from contextbus_protocol.commands import StepCompiled as StepCompiledReply
from contextbus_protocol.errors import StaleStepError
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.values import SourceSpec, StepOptions
from contextbus_protocol.working_memory import AddObservation
from tests.chaos.fleet import ACTORS, fleet
from tests.chaos.scenario import MODEL

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

SCOPE = contextbus.Scope(user_id="ada")
SOURCES = (SourceSpec("notes", "memory"), SourceSpec("manual", "rag"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Path]:
    """A server with two instances of each actor; one source takes half a second."""
    data = tmp_path_factory.mktemp("races")
    async with embedded.serve(data):
        with fleet(data) as ships:
            ships.start_actors(instances=2)
            ships.start_worker("notes", ("notes",))
            ships.start_worker("manual", ("manual",), CHAOS_DELAY_MANUAL="0.5")
            await ships.wait_ready(*ACTORS, *ACTORS, "notes", "manual")
            yield data


async def test_two_clients_on_one_run(folder: Path) -> None:
    told: list[tuple[str, str]] = []

    async def hold(bus: contextbus.ContextBus, who: str) -> None:
        run = await bus.run("shared", scope=SCOPE, sources=SOURCES[:1])
        for number in range(15):
            run.append(contextbus.user(f"{who} asks {number}"))
            step = await run.before_model_call(model=MODEL, refresh=number % 4 == 0)
            told.append((step.command, step.reference))
            try:
                answer = contextbus.assistant(f"{who} is told {number}")
                await run.after_model_call(contextbus.Report(status="succeeded", messages=(answer,)))
            except StaleStepError:
                await run.load()  # the other client's step is the last one now

    async with (
        contextbus.open(data=folder, actors="remote") as one,
        contextbus.open(data=folder, actors="remote") as other,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, one, "one")
            tasks.start_soon(hold, other, "other")
        log = await one.log("shared")
        steps = {
            c.commit.command: e.package for c in log.commits for e in c.commit.events if isinstance(e, StepCompiled)
        }
        assert len([c for c in log.commits if any(isinstance(e, StepCompiled) for e in c.commit.events)]) == len(steps)
        stored = set(steps.values())
        assert all(reference in stored for _, reference in told)
        assert (await one.verify("shared")).is_clean
        first = await one.run("shared", scope=SCOPE)
        second = await other.run("shared", scope=SCOPE)
        assert first.messages == second.messages
        texts = [getattr(m.content[0], "text", "") for m in first.messages if isinstance(m, contextbus.ChatMessage)]
        assert sorted(t for t in texts if "asks" in t) == sorted(
            f"{w} asks {n}" for w in ("one", "other") for n in range(15)
        )


async def test_a_retry_at_another_instance_while_the_first_still_works(folder: Path) -> None:
    async with contextbus.open(data=folder, actors="remote") as bus:
        for round_ in range(6):
            name = f"retried-{round_}"
            handle = RunHandle().append((contextbus.user("How do I deploy?"),))
            answers: list[asyncio.Future[AnyMessage]] = []
            for attempt in (1, 2, 3):
                address, future = bus.host.reply_address()
                command = CompileStep(
                    run=name,
                    tenant="default",
                    command=f"{name}-step",
                    attempt=attempt,
                    reply_to=address,
                    seconds_left=8.0,
                    now=int(time.time() * 1000),
                    history=handle.new_messages(),
                    user_text=handle.history.user_text,
                    options=StepOptions(scope=SCOPE, model=MODEL, sources=SOURCES),
                )
                bus.host.deliver(subjects.command("selection", "default"), command)
                answers.append(future)
                await anyio.sleep(0.05)
            with anyio.fail_after(20):
                first = await answers[-1]
            assert isinstance(first, StepCompiledReply)
            for future in answers[:-1]:
                if future.done():
                    again = future.result()
                    assert isinstance(again, StepCompiledReply)
                    assert (again.package, again.sequence) == (first.package, first.sequence)
            await anyio.sleep(0.7)
            log = await bus.log(name)
            assert [len(c.commit.events) for c in log.commits] == [3]
            assert (await bus.verify(name)).is_clean


async def test_a_patch_beside_a_step_never_breaks_it(folder: Path) -> None:
    async with contextbus.open(data=folder, actors="remote") as bus:
        run = await bus.run("patched", scope=SCOPE, sources=SOURCES[:1])
        beside = await bus.run("patched", scope=SCOPE, sources=SOURCES[:1])
        await run.working_memory.create(goal="Go on.")
        revisions: list[int] = []

        async def patch() -> None:
            for number in range(20):
                state = await beside.working_memory.patch(
                    AddObservation(text=f"Seen {number}."), expected_revision=number
                )
                assert state.status == "applied", state.reason

        async def step() -> None:
            for number in range(20):
                run.append(contextbus.user(f"And {number}?"))
                compiled = await run.before_model_call(model=MODEL, refresh=True)
                revisions.append(sum(e.record_id.startswith("observation/") for e in compiled.manifest.entries))
                await run.after_model_call(contextbus.Report(status="succeeded"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(patch)
            tasks.start_soon(step)
        assert revisions == sorted(revisions)
        verdict = await bus.verify("patched")
        assert verdict.is_clean
        assert verdict.steps == 20


async def test_a_client_sees_its_own_patch_in_its_next_step(folder: Path) -> None:
    async with contextbus.open(data=folder, actors="remote") as bus:
        run = await bus.run("own-writes", scope=SCOPE)
        await run.working_memory.create(goal="Go on.")
        for number in range(12):
            await run.working_memory.patch(AddObservation(text=f"Seen {number}."), expected_revision=number)
            run.append(contextbus.user(f"And {number}?"))
            compiled = await run.before_model_call(model=MODEL)
            seen = sum(e.record_id.startswith("observation/") for e in compiled.manifest.entries)
            assert seen == number + 1
            await run.after_model_call(contextbus.Report(status="succeeded"))
