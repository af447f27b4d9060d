"""A command whose acknowledgement is lost is given again without a second effect (D.W.8, D.R.4, D.G.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, state_of

import contextbus.client as contextbus
from contextbus.runtime.host import Host
from contextbus.runtime.reply_addresses import TakeQuestion
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import CommandMismatchError, DeadlineExceededError, StaleStepError
from contextbus_protocol.events import CallSucceeded, RefreshRequested
from contextbus_protocol.messages import AnyMessage

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])
SHORT = 0.1


class Losing:
    """A host whose answers arrive nowhere while ``loses``, but for the next ``passes``; all else is the host's."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.loses = False
        self.passes = 0

    def reply_address(self, take_question: TakeQuestion | None = None) -> tuple[str, asyncio.Future[AnyMessage]]:
        """An address of the host; while answers are lost, with a future that never comes."""
        address, future = self._host.reply_address(take_question)
        is_lost, self.passes = self.loses and self.passes == 0, max(0, self.passes - 1)
        return address, asyncio.get_running_loop().create_future() if is_lost else future

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


@asynccontextmanager
async def losing_bus() -> AsyncGenerator[tuple[contextbus.ContextBus, Losing]]:
    async with bus_with(Scripted([CI])) as bus:
        losing = Losing(bus.host)
        bus.host = cast("Host", losing)
        yield bus, losing


async def events_of(bus: contextbus.ContextBus, kind: type) -> int:
    return sum(isinstance(e, kind) for c in (await bus.log("r")).commits for e in c.commit.events)


@pytest.mark.rule("D.W.8", "D.R.4", "D.F.13")
@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_report_is_given_again(*, loads: bool, restarted: bool) -> None:
    async with losing_bus() as (bus, losing):
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("How?")], model=MODEL)
        if restarted:
            run = await bus.run("r", scope=SCOPE, sources=["rag"])
        losing.loses = True
        with pytest.raises(DeadlineExceededError):
            await run.after_model_call(DONE, seconds=SHORT)
        assert (await state_of(bus, run)).history.count == 2  # the log has it
        losing.loses = False
        if loads:
            await run.load()
        await run.after_model_call(DONE)
        assert run.messages == (user("How?"), assistant("Run the pipeline."))
        assert await events_of(bus, CallSucceeded) == 1
        run.append(user("And?"))
        step = await run.before_model_call(model=MODEL)
        other = await (await bus.run("r", scope=SCOPE, sources=["rag"])).before_model_call(model=MODEL)
        assert step.payload().json() == other.payload().json()
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.W.8", "D.F.19")
async def test_a_report_that_went_behind_anothers_message_is_given_again() -> None:
    async with losing_bus() as (bus, losing):
        one = await bus.run("r", scope=SCOPE, sources=["rag"])
        await one.before_model_call([user("How?")], model=MODEL)
        other = await bus.run("r", scope=SCOPE)
        other.append(user("And me?"))
        await other.flush()
        losing.loses, losing.passes = True, 1  # the first answer is that the history is another's
        with pytest.raises(DeadlineExceededError):
            await one.after_model_call(DONE, seconds=SHORT)
        losing.loses = False
        await one.after_model_call(DONE)
        assert one.messages == (user("How?"), user("And me?"), assistant("Run the pipeline."))
        assert await events_of(bus, CallSucceeded) == 1


@pytest.mark.rule("D.W.8")
async def test_another_report_after_a_lost_answer_is_refused() -> None:
    async with losing_bus() as (bus, losing):
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("How?")], model=MODEL)
        losing.loses = True
        with pytest.raises(DeadlineExceededError):
            await run.after_model_call(DONE, seconds=SHORT, command="mine")
        losing.loses = False
        failed = contextbus.Report(status="failed")
        with pytest.raises(CommandMismatchError):
            await run.after_model_call(failed)
        with pytest.raises(StaleStepError, match="already recorded"):
            await run.after_model_call(failed, command="another")
        await run.after_model_call(DONE, command="mine")
        assert await events_of(bus, CallSucceeded) == 1


@pytest.mark.rule("D.G.5")
async def test_a_refresh_is_requested_again_once() -> None:
    async with losing_bus() as (bus, losing):
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("How?")], model=MODEL)
        losing.loses = True
        with pytest.raises(DeadlineExceededError):
            await run.request_refresh(seconds=SHORT)
        losing.loses = False
        await run.request_refresh()
        assert await events_of(bus, RefreshRequested) == 1
        await run.after_model_call(DONE)
        assert (await run.before_model_call(model=MODEL)).manifest.refresh == "host-request"
        await run.request_refresh()  # another one
        assert await events_of(bus, RefreshRequested) == 2


@pytest.mark.rule("D.G.5")
async def test_a_request_after_a_step_is_another_one_also_if_the_answer_to_the_first_was_lost() -> None:
    async with losing_bus() as (bus, losing):
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("How?")], model=MODEL)
        await run.after_model_call(DONE)
        losing.loses = True
        with pytest.raises(DeadlineExceededError):
            await run.request_refresh(seconds=SHORT)
        losing.loses = False
        await run.before_model_call(model=MODEL)
        await run.request_refresh()
        assert await events_of(bus, RefreshRequested) == 2


@pytest.mark.rule("D.I.1", "D.I.5")
async def test_an_overflow_is_told_again_and_is_one() -> None:
    async with losing_bus() as (bus, losing):
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        first = await run.before_model_call([user("How?")], model=MODEL)
        losing.loses = True
        with pytest.raises(DeadlineExceededError):
            await run.on_overflow(seconds=SHORT)
        losing.loses = False
        again = await run.on_overflow()
        assert again.manifest.refresh == "overflow-retry"
        assert (await state_of(bus, run)).sequence == first.sequence + 1


async def test_messages_whose_answer_was_lost_are_not_recorded_again() -> None:
    async with losing_bus() as (bus, losing):
        run = await bus.run("r", scope=SCOPE)
        run.append(user("How?"))
        losing.loses = True
        with pytest.raises(DeadlineExceededError):
            await run.flush(seconds=SHORT)
        losing.loses = False
        await run.flush()
        assert (await state_of(bus, run)).history.count == 1
        assert run.messages == (user("How?"),)
