"""Failures of sources as a caller meets them: in process the very exception, in the log its code and type (D.W.2)."""

from __future__ import annotations

import pytest
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted, bus_with, state_of

import contextbus.client as contextbus
from contextbus.client.reading import read_part
from contextbus_protocol import codec
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import (
    ContextBudgetExceededError,
    ContextBusError,
    InvalidTypeError,
    PayloadTooLargeError,
    ScopeConflictError,
    SourceFailedError,
    StaleStepError,
)
from contextbus_protocol.events import StepCompiled, StepFailed
from contextbus_protocol.values import Scope, SourceSpec, SourceStatus

SECRET = "the password is swordfish"
FOUND = [contextbus.candidate("0", "Deploys need a green CI run.", 0.9)]


class TicketsDownError(RuntimeError):
    """An exception of a user's own."""

    code = "E42"


async def log_bytes(bus: contextbus.ContextBus, run: contextbus.Run) -> bytes:
    return b"\n".join(codec.encode_commit(c.commit) for c in await read_part(bus.driver, run.id, "run"))


@pytest.mark.rule("D.W.9")
async def test_messages_larger_than_the_store_takes_are_refused_with_the_fix() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        with pytest.raises(
            PayloadTooLargeError, match=r"exceeds 67108864; record messages in parts \(append, then flush"
        ):
            await run.before_model_call([user("x" * (64 * 1024 * 1024))], model=MODEL)
        await run.before_model_call([user("How?")], model=MODEL)
        assert run.messages == (user("How?"),)


@pytest.mark.rule("D.W.2", "D.T.3", "D.G.27")
@pytest.mark.parametrize(
    ("error", "code", "type_"),
    [
        (TicketsDownError(SECRET), "E42", "TicketsDownError"),
        (KeyError(SECRET), "error", "KeyError"),
        (ContextBusError(SECRET), "internal", "ContextBusError"),
    ],
)
async def test_a_required_source_fails_the_step_with_its_own_exception_as_the_cause(
    error: Exception, code: str, type_: str
) -> None:
    tickets = Scripted(error, id="tickets", required=True)
    async with bus_with(tickets) as bus:
        run = await bus.run(scope=SCOPE, sources=["tickets"])
        with pytest.raises(SourceFailedError) as caught:
            await run.before_model_call([user("How?")], model=MODEL)
        raised = caught.value
        assert raised.__cause__ is error
        assert (raised.code, raised.origin, raised.origin_code, raised.origin_type) == (
            "source_failed",
            "tickets",
            code,
            type_,
        )
        assert SECRET not in str(raised)
        (failed,) = [e for c in (await bus.log(run.id)).commits for e in c.commit.events if isinstance(e, StepFailed)]
        assert (failed.step, failed.code, failed.origin, failed.origin_code, failed.origin_type) == (
            0,
            "source_failed",
            "tickets",
            code,
            type_,
        )
        assert SECRET.encode() not in await log_bytes(bus, run)


@pytest.mark.rule("D.G.27", "D.G.31", "D.G.15", "D.G.5")
async def test_a_failed_step_spends_no_pass_and_its_refresh_stays_due() -> None:
    docs, tickets = Scripted(FOUND), Scripted(RuntimeError("down"), id="tickets", required=True)
    async with bus_with(docs, tickets) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag", "tickets"])
        with pytest.raises(SourceFailedError):
            await run.before_model_call([user("How?")], model=MODEL)
        state = await state_of(bus, run)
        assert (state.passes, state.placed, state.last) == (0, (), None)
        tickets.answer = ()
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert (step.step, step.manifest.refresh, step.manifest.pass_) == (0, "initial", 1)
        assert [e.record_id for e in step.manifest.entries if e.selected] == ["0"]
        assert (await bus.verify(run.id)).is_clean


@pytest.mark.rule("D.G.26", "D.G.29", "D.D.14", "D.D.20")
async def test_an_optional_source_fails_and_the_step_goes_on() -> None:
    docs, tickets = Scripted(FOUND), Scripted(TicketsDownError(SECRET), id="tickets")
    async with bus_with(docs, tickets) as bus:
        run = await bus.run(scope=SCOPE, sources=["tickets", "rag"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        summary = step.manifest.sources[0]
        assert (summary.source, summary.status, summary.selected) == ("tickets", SourceStatus.FAILED, 0)
        assert summary.error == "error"
        assert step.manifest.fallback == "source-failed"
        assert [(w.code, w.source) for w in step.warnings] == [("context-source-failed", "tickets")]
        assert [e.record_id for e in step.manifest.entries if e.selected] == ["0"]
        assert SECRET not in step.text
        assert SECRET.encode() not in await log_bytes(bus, run)
        assert (await state_of(bus, run)).passes == 1
        (event,) = [e for c in (await bus.log(run.id)).commits for e in c.commit.events if isinstance(e, StepCompiled)]
        assert [(s.origin_code, s.origin_type) for s in event.sources] == [("E42", "TicketsDownError"), (None, None)]


@pytest.mark.rule("D.G.29")
async def test_a_retrieval_in_which_every_optional_source_failed_is_a_pass() -> None:
    tickets = Scripted(RuntimeError("down"), id="tickets")
    async with bus_with(tickets) as bus:
        run = await bus.run(scope=SCOPE, sources=["tickets"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert (step.manifest.pass_, step.blocks) == (1, ())
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("So.")]))
        assert (await run.before_model_call(model=MODEL)).manifest.refresh == "reused"
        assert len(tickets.asked) == 1


@pytest.mark.rule("D.G.26")
async def test_a_source_that_nobody_runs_is_a_failed_one() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, sources=[SourceSpec("nobody", "rag")])
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert [(s.status, s.error) for s in step.manifest.sources] == [(SourceStatus.FAILED, "absent")]


@pytest.mark.rule("D.T.1", "D.W.2", "D.B.15", "D.B.16")
async def test_a_budget_misfit_crosses_the_bus_with_its_numbers() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE, estimator=CHARACTERS)
        await run.working_memory.create(goal="Deploy. " * 50)
        with pytest.raises(ContextBudgetExceededError) as caught:
            await run.before_model_call([user("How?")], model=contextbus.Model("openai", "gpt-test", 120, 100))
        error = caught.value
        assert (error.code, error.phase) == ("context_budget_exceeded", "compile")
        assert error.required_tokens > error.available_tokens == 20 - 6


@pytest.mark.rule("D.T.4", "D.G.4", "D.K.3", "D.W.2")
async def test_wrong_use_is_a_type_error_on_both_sides_of_the_bus() -> None:
    async with bus_with(Scripted(FOUND)) as bus:
        with pytest.raises(InvalidTypeError, match="two sources have one id"):
            await bus.run(scope=SCOPE, sources=["rag", SourceSpec("rag", "rag")])
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        await run.before_model_call([user("How?")], model=MODEL)
        other = await bus.run("r", scope=Scope(user_id="eve"), sources=["rag"])
        with pytest.raises(ScopeConflictError) as caught:
            await other.before_model_call([user("How?"), user("And?")], model=MODEL)
        assert isinstance(caught.value, TypeError)


@pytest.mark.rule("D.W.2", "D.W.9")
async def test_a_step_that_is_over_is_refused_by_its_class() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)
        await run.before_model_call([user("How?")], model=MODEL, step=4)
        with pytest.raises(StaleStepError) as caught:
            await run.before_model_call([user("How?"), user("And?")], model=MODEL, step=3)
        assert caught.value.code == "stale_step"
