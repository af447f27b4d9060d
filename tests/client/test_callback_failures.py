"""Functions of the host that fail, hang, give nonsense or are cancelled (D.W.2, D.W.4, D.W.5)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import structlog
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, state_of

import contextbus.client as contextbus
from contextbus.client import PreparedStep, StepContext
from contextbus.client.step_hooks import PrepareStep
from contextbus_protocol import codec
from contextbus_protocol.chat import user
from contextbus_protocol.errors import CallbackTimeoutError, ContextBusError, HookFailedError, InvalidTypeError
from contextbus_protocol.events import StepFailed
from contextbus_protocol.values import Model

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
SECRET = "the password is swordfish"


class DownError(RuntimeError):
    """An exception of a user's own."""

    code = "E42"


class SpeakingError(RuntimeError):
    """One whose code is a sentence."""

    code = SECRET


class AbruptError(BaseException):
    """One that no usual handler catches."""


async def failures_of(bus: contextbus.ContextBus, run: contextbus.Run) -> list[StepFailed]:
    return [e for c in (await bus.log(run.id)).commits for e in c.commit.events if isinstance(e, StepFailed)]


def failing(name: str, error: BaseException) -> dict[str, Any]:
    """The options of a run whose function raises."""

    def raises(*_: object) -> Any:
        raise error

    return {name: raises}


@pytest.mark.rule("D.W.2", "D.W.4", "D.D.25")
@pytest.mark.parametrize("name", ["prepare_step", "rewrite_query"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DownError(SECRET), "E42"),
        (KeyError(SECRET), "error"),
        (SpeakingError(SECRET), "error"),
        (ContextBusError(SECRET), "internal"),
        (AbruptError(SECRET), "error"),
    ],
)
async def test_what_a_function_raises_is_the_cause_and_its_code_and_type_are_facts(
    name: str, error: BaseException, code: str
) -> None:
    with structlog.testing.capture_logs() as logged:
        async with bus_with(Scripted([CI])) as bus:
            run = await bus.run(scope=SCOPE, sources=["rag"], **failing(name, error))
            with pytest.raises(HookFailedError) as caught:
                await run.before_model_call([user("How?")], model=MODEL)
            raised, type_ = caught.value, type(error).__name__
            assert raised.__cause__ is error
            assert (raised.code, raised.origin, raised.origin_code, raised.origin_type) == (
                "hook_failed",
                name,
                code,
                type_,
            )
            (failed,) = await failures_of(bus, run)
            assert (failed.step, failed.code, failed.origin, failed.origin_code, failed.origin_type) == (
                0,
                "hook_failed",
                name,
                code,
                type_,
            )
            stored = b"".join(codec.encode_commit(c.commit) for c in (await bus.log(run.id)).commits)
    assert SECRET not in str(raised)
    assert SECRET.encode() not in stored
    assert SECRET not in repr(logged)


@pytest.mark.rule("D.W.4", "D.G.27", "D.R.0")
async def test_a_step_whose_function_failed_is_compiled_by_asking_again_with_the_same_id() -> None:
    results: list[PreparedStep | Exception] = [DownError("down"), PreparedStep(overhead_tokens=5)]

    def prepare(_: StepContext) -> PreparedStep:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], prepare_step=prepare)
        with pytest.raises(HookFailedError):
            await run.before_model_call([user("How?")], model=MODEL, command="c")
        state = await state_of(bus, run)
        assert (state.passes, state.history.count, state.last, len(rag.asked)) == (0, 0, None, 0)
        step = await run.before_model_call(model=MODEL, command="c")
        assert (step.step, step.manifest.pass_, step.stored, len(rag.asked)) == (0, 1, False, 1)
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.W.4")
@pytest.mark.parametrize(
    ("name", "gives"),
    [
        ("prepare_step", "a text"),
        ("prepare_step", {"model": MODEL}),
        ("prepare_step", PreparedStep(model=cast("Any", "gpt-test"))),
        ("prepare_step", PreparedStep(model=Model("openai", "gpt-test", -1, 0))),
        ("prepare_step", PreparedStep(overhead_tokens=-1)),
        ("prepare_step", PreparedStep(overhead_tokens=cast("Any", 1.5))),
        ("prepare_step", PreparedStep(messages=[cast("Any", 7)])),
        ("prepare_step", PreparedStep(tools="no JSON")),
        ("rewrite_query", None),
        ("rewrite_query", b"deploy"),
    ],
)
async def test_what_is_not_what_a_function_gives_counts_as_raised(name: str, gives: object) -> None:
    async with bus_with(Scripted([CI])) as bus:

        def function(*_: object) -> object:
            return gives

        options: dict[str, Any] = {name: function}
        run = await bus.run(scope=SCOPE, sources=["rag"], **options)
        with pytest.raises(HookFailedError) as caught:
            await run.before_model_call([user("How?")], model=MODEL)
        assert isinstance(caught.value.__cause__, InvalidTypeError)
        assert (caught.value.origin, caught.value.origin_code) == (name, "invalid_type")
        assert len(await failures_of(bus, run)) == 1


@pytest.mark.rule("D.T.4")
@pytest.mark.parametrize("name", ["prepare_step", "rewrite_query"])
async def test_what_cannot_be_called_is_refused_when_the_run_is_opened(name: str) -> None:
    async with bus_with() as bus:
        options: dict[str, Any] = {name: "a text"}
        with pytest.raises(InvalidTypeError, match=name):
            await bus.run(scope=SCOPE, **options)


@pytest.mark.rule("D.W.4", "D.W.5")
async def test_a_function_that_cancels_itself_counts_as_raised() -> None:
    async def gives_up(_: StepContext) -> None:
        raise asyncio.CancelledError

    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, prepare_step=gives_up)
        with pytest.raises(HookFailedError) as caught:
            await run.before_model_call([user("How?")], model=MODEL)
        assert caught.value.origin_type == "CancelledError"


@pytest.mark.rule("D.W.4")
async def test_an_answer_that_no_message_can_hold_counts_as_raised() -> None:
    strange = Model("openai", "half \ud83d", 128_000, 8_000)
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, prepare_step=lambda _: PreparedStep(model=strange))
        with pytest.raises(HookFailedError) as caught:
            await run.before_model_call([user("How?")], model=MODEL)
        assert caught.value.origin == "prepare_step"


@pytest.mark.rule("D.W.4", "D.W.9")
@pytest.mark.parametrize("name", ["prepare_step", "rewrite_query"])
async def test_a_function_that_does_not_answer_in_time_fails_the_step_and_is_stopped(name: str) -> None:
    stopped: list[str] = []

    async def hangs(*_: object) -> Any:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            stopped.append(name)
            raise

    async with bus_with(Scripted([CI])) as bus:
        options: dict[str, Any] = {name: hangs}
        run = await bus.run(scope=SCOPE, sources=["rag"], **options)
        with pytest.raises(CallbackTimeoutError) as caught:
            await run.before_model_call([user("How?")], model=MODEL, seconds=1.0)
        assert (caught.value.code, caught.value.origin) == ("callback_timeout", name)
        await asyncio.sleep(0)
        assert stopped == [name]
        (failed,) = await failures_of(bus, run)
        assert (failed.code, failed.origin) == ("callback_timeout", name)
        other = await bus.run(run.id, scope=SCOPE, sources=["rag"])
        other.append(user("How?"))
        assert (await other.before_model_call(model=MODEL)).step == 0


@pytest.mark.rule("D.W.5")
async def test_a_cancelled_call_stops_its_function_and_leaves_no_trace() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def hangs(_: StepContext) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    async with bus_with(Scripted([CI])) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"], prepare_step=hangs)
        call = asyncio.create_task(run.before_model_call([user("How?")], model=MODEL, command="c"))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await stopped.wait()
        assert (await bus.log(run.id)).commits == ()
        calm = await bus.run(run.id, scope=SCOPE, sources=["rag"])
        step = await calm.before_model_call([user("How?")], model=MODEL, command="c")
        assert (step.step, step.stored) == (0, False)


@pytest.mark.rule("D.W.4", "D.W.1")
async def test_two_clients_of_one_run_each_answer_for_their_own_functions() -> None:
    async with bus_with() as bus:

        def prepare(name: str) -> PrepareStep:
            return lambda _: PreparedStep(messages=[user(name)])

        one, two = [await bus.run("r", scope=SCOPE, prepare_step=prepare(name)) for name in ("one", "two")]
        steps = await asyncio.gather(
            one.before_model_call([user("First?")], model=MODEL), two.before_model_call([user("First?")], model=MODEL)
        )
        # the second finds the step of the first, and sends what its hook had made of it
        assert steps[0].payload().json() == steps[1].payload().json()
        assert sorted(step.stored for step in steps) == [False, True]
        assert (await bus.verify("r")).is_clean
