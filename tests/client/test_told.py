"""Who is told of a step once it is stored: observers, the host's ``on_warning``, spans (D.S, D.G.26, D.W.4)."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted

import contextbus.client as contextbus
from contextbus.core.telemetry import SPAN_NAME, span_attributes
from contextbus_protocol.chat import user
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.package import ContextManifest, ContextWarning
from contextbus_protocol.values import RefreshOptions

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)


class Watching:
    """Keeps what it is told, or raises."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.seen: list[ContextManifest] = []

    def compile_finished(self, manifest: ContextManifest, seconds: float) -> None:
        """Take one."""
        assert seconds >= 0
        self.seen.append(manifest)
        if self.error is not None:
            raise self.error


@pytest.mark.rule("D.S.1", "D.S.5")
@pytest.mark.parametrize("error", [None, RuntimeError("observer")])
async def test_an_observer_is_told_each_compile_once_and_changes_nothing(error: BaseException | None) -> None:
    observer = Watching(error)
    source = Scripted([CI])
    async with contextbus.open("memory:", sources=[source], memory=False, observer=observer) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        step = await run.before_model_call([user("How?")], model=MODEL)
        again = await run.before_model_call([user("How?")], model=MODEL)
        assert (again.stored, again.text) == (True, step.text)
        smaller = await run.on_overflow(50_000)
        assert [m.refresh for m in observer.seen] == ["initial", "overflow-retry"]
        assert observer.seen == [step.manifest, smaller.manifest]
    async with contextbus.open("memory:", sources=[source], memory=False) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], estimator=CHARACTERS)
        assert (await run.before_model_call([user("How?")], model=MODEL)).text == step.text


@pytest.mark.rule("D.S.1", "D.S.2", "D.S.4")
async def test_a_step_of_a_run_is_one_span_below_the_span_it_was_asked_in() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    observer = contextbus.otel_observer(provider)
    async with contextbus.open("memory:", sources=[Scripted([CI])], memory=False, observer=observer) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"])
        with provider.get_tracer("agent").start_as_current_span("agent.step"):
            step = await run.before_model_call([user("How do I deploy the secret service?")], model=MODEL)
    compile_span, agent_span = spans.get_finished_spans()
    assert compile_span.name == SPAN_NAME == "contextbus.context.compile"
    assert compile_span.parent is not None
    assert agent_span.context is not None
    assert compile_span.parent.span_id == agent_span.context.span_id
    attributes = dict(compile_span.attributes or {})
    digest = attributes["contextbus.context.manifest_digest"]
    assert attributes == span_attributes(step.manifest, str(digest))
    assert not any("secret" in str(value) or "green" in str(value) for value in attributes.values())


@pytest.mark.rule("D.G.26", "D.W.4", "D.D.20")
@pytest.mark.parametrize("fails", [False, True])
async def test_the_host_is_told_each_warning_after_the_commit(*, fails: bool) -> None:
    told: list[ContextWarning] = []

    def on_warning(warning: ContextWarning) -> None:
        told.append(warning)
        if fails:
            raise RuntimeError("host")

    async with contextbus.open("memory:", sources=[Scripted(RuntimeError("down"))], memory=False) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], on_warning=on_warning)
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert (await run.before_model_call([user("How?")], model=MODEL)).stored
        assert tuple(told) == step.warnings == (ContextWarning("context-source-failed", source="rag", error="error"),)


@pytest.mark.rule("D.G.26", "D.W.4")
@pytest.mark.parametrize("fails", [False, True])
async def test_an_async_function_is_waited_for_in_runs_and_compilers(*, fails: bool) -> None:
    told: list[ContextWarning] = []

    async def on_warning(warning: ContextWarning) -> None:
        await asyncio.sleep(0)
        told.append(warning)
        if fails:
            raise RuntimeError("host")

    warning = ContextWarning("context-source-failed", source="rag", error="error")
    source = Scripted(RuntimeError("down"))
    async with contextbus.open("memory:", sources=[source], memory=False) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], on_warning=on_warning)
        await run.before_model_call([user("How?")], model=MODEL)
        assert told == [warning]
    compiler = contextbus.Compiler(sources=[source], on_warning=on_warning)
    await compiler.before_model_call(run_id="r", step=0, messages=[user("How?")], model=MODEL)
    assert told == [warning, warning]


@pytest.mark.rule("D.G.26", "D.I.1")
async def test_an_overflow_asks_nobody_so_no_failure_is_told_again() -> None:
    told: list[ContextWarning] = []
    async with contextbus.open("memory:", sources=[Scripted(RuntimeError("down"))], memory=False) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["rag"], on_warning=told.append)
        step = await run.before_model_call([user("How?")], model=MODEL)
        smaller = await run.on_overflow()
        assert tuple(told) == step.warnings == smaller.warnings
        assert len(told) == 1


@pytest.mark.rule("D.G.2", "D.W.6")
async def test_refresh_options_may_be_given_in_part() -> None:
    async with contextbus.open("memory:", memory=False) as bus:
        run = await bus.run("r", scope=SCOPE, refresh={"max_passes": 2})
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert step.step == 0
        for wrong in ({"passes": 2}, {"max_passes": True}, {"max_passes": -1}, {"min_steps": "4"}, 7):
            with pytest.raises(InvalidTypeError, match="refresh"):
                await bus.run("r", scope=SCOPE, refresh=wrong)  # type: ignore[arg-type]
        assert RefreshOptions() == contextbus.DEFAULT_CONTEXT_REFRESH
