"""Drives the client's retry machine over a host: one command until its answer."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from contextbus.actors import client as retry
from contextbus.runtime.bus import BusUnavailableError
from contextbus.runtime.host import Host
from contextbus.runtime.reply_addresses import TakeQuestion
from contextbus_protocol import subjects
from contextbus_protocol.commands import AnyCommand, CancelCommand, ErrorReply
from contextbus_protocol.errors import ContextBusError, DeadlineExceededError, error_of
from contextbus_protocol.messages import AnyMessage


async def ask(
    host: Host, actor: subjects.ActorName, command: AnyCommand, take_question: TakeQuestion | None = None
) -> AnyMessage:
    """Send a command and give back its answer, over as many attempts as the machine allows.

    Questions to functions of the host that come meanwhile are given to ``take_question`` (D.W.4).

    A cancelled caller has the actor drop the command, unless its commit is under way already (D.W.5).

    Raises:
        ContextBusError: the class of the code that the actor answered with (D.W.2).
    """
    to = subjects.command(actor, host.tenant)
    waiting: set[asyncio.Future[AnyMessage]] = set()
    try:
        answer = await _drive(host, to, command, waiting, take_question)
    except asyncio.CancelledError:
        cancel = CancelCommand(run=command.run, tenant=host.tenant, command=command.command)
        with contextlib.suppress(BusUnavailableError, ContextBusError):
            host.deliver(to, cancel)
        raise
    finally:
        for future in waiting:
            future.cancel()
    if isinstance(answer, ErrorReply):
        raise error_of(answer.code, answer.message, answer.data)
    return answer


async def _drive(
    host: Host,
    to: str,
    command: AnyCommand,
    waiting: set[asyncio.Future[AnyMessage]],
    take_question: TakeQuestion | None,
) -> AnyMessage:
    state, operation = retry.begin(command)
    while True:
        match operation:
            case retry.Resolve(answer):
                return answer
            case retry.Transmit(attempt, wake_after):
                address, future = host.reply_address(take_question)
                waiting.add(future)  # answers to earlier attempts count too
                sent = _transmit(host, to, msgspec.structs.replace(attempt, reply_to=address), future, waiting)
                outcome = sent or await _wait(waiting, wake_after)
            case retry.WakeAfter(seconds):
                outcome = await _wait(waiting, seconds)
            case _:
                outcome = await _wait(waiting, command.seconds_left)
        state, operation = retry.advance(state, outcome)


def _transmit(
    host: Host,
    to: str,
    command: AnyCommand,
    future: asyncio.Future[AnyMessage],
    waiting: set[asyncio.Future[AnyMessage]],
) -> retry.Outcome | None:
    """Send an attempt; ``Absent`` if nothing was sent."""
    try:
        host.deliver(to, command)
    except BusUnavailableError:
        waiting.discard(future)
        future.cancel()
        return retry.Absent()
    return None


async def _wait(waiting: set[asyncio.Future[AnyMessage]], seconds: float) -> retry.Outcome:
    if not waiting:
        await asyncio.sleep(seconds)
        return retry.Silent()
    done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting -= done
    came = [future for future in done if not future.cancelled()]
    # an answer beats a refusal that came at the same time
    answers = sorted((f.result() for f in came if f.exception() is None), key=lambda m: isinstance(m, ErrorReply))
    if answers:
        return retry.Answered(answers[0])
    return retry.Absent() if came else retry.Silent()


async def ask_once(host: Host, to: str, request: AnyMessage, seconds: float) -> AnyMessage:
    """Send a request that is no command of an actor, and give back its answer.

    Raises:
        DeadlineExceededError: no answer came in time.
        ContextBusError: the class of the code that was answered with.
    """
    address, future = host.reply_address()
    try:
        host.deliver(to, msgspec.structs.replace(request, reply_to=address))
        answer = await asyncio.wait_for(future, seconds)
    except (BusUnavailableError, TimeoutError):
        raise DeadlineExceededError(
            "no answer came in time; is a worker of the source running (contextbus up, contextbus worker)?"
        ) from None
    finally:
        future.cancel()
    if isinstance(answer, ErrorReply):
        raise error_of(answer.code, answer.message, answer.data)
    return answer
