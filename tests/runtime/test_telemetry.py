"""Telling others of a compile: spans, log lines, and observers that break (D.S)."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.core.package_bytes import encode_package
from contextbus.core.telemetry import span_attributes
from contextbus.runtime.telemetry import otel_observer, report_compile
from contextbus_protocol.digests import digest_text
from contextbus_protocol.package import ContextManifest, Package
from contextbus_protocol.values import Candidate, SourceResult
from contextbus_protocol.working_memory import Goal, WorkingMemorySnapshot


def compiled(*texts: str, query: str = "", goal: str | None = None) -> Package:
    candidates = tuple(Candidate(str(n), text, 0.5, digest_text(text)) for n, text in enumerate(texts))
    memory = None
    if goal is not None:
        told = Goal(text=goal, writer="host", revision=0, changed_at=0)
        memory = WorkingMemorySnapshot(version=1, scope="s", revision=0, goal=told)
    return compile_context(
        ContextInput(
            run_id="run-1",
            step=4,
            input_tokens=100_000,
            used_tokens=50,
            results=(SourceResult("docs", "rag", candidates=candidates),),
            query=query,
            working_memory=memory,
        )
    )


class Spans:
    """A tracer provider and what it was given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def finished(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


class Broken:
    """An observer that raises, with content in its text."""

    def __init__(self) -> None:
        self.calls = 0

    def compile_finished(self, manifest: ContextManifest, seconds: float) -> None:
        self.calls += 1
        raise RuntimeError(f"zqsecretqz {manifest} {seconds}")


@pytest.mark.rule("D.S.1", "D.S.2", "D.D.22")
def test_each_compile_is_one_span_with_these_attributes() -> None:
    spans = Spans()
    observer = otel_observer(spans.provider)
    package = compiled("Text.", "More.")
    report_compile(observer, package.manifest, 0.25)
    (span,) = spans.finished()
    assert span.name == "contextbus.context.compile"
    digest = encode_package(package).manifest_digest
    assert dict(span.attributes or {}) == span_attributes(package.manifest, digest)
    assert span.parent is None
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "contextbus.context"
    assert span.events == ()
    report_compile(observer, package.manifest, 0.25)
    assert len(spans.finished()) == 2


@pytest.mark.rule("D.S.2", "D.D.18", "D.D.22")
def test_the_digest_is_over_the_manifest_as_it_is_stored() -> None:
    spans = Spans()
    package = compiled("Text.")
    named = msgspec.structs.replace(package.manifest, package="sha256:" + "1" * 64)
    report_compile(otel_observer(spans.provider), named, 0.25)
    (span,) = spans.finished()
    assert dict(span.attributes or {})["contextbus.context.manifest_digest"] == encode_package(package).manifest_digest


@pytest.mark.rule("D.S.1")
def test_the_span_is_a_child_of_the_current_one_and_leaves_it_current() -> None:
    spans = Spans()
    tracer = spans.provider.get_tracer("application")
    with tracer.start_as_current_span("step") as step:
        report_compile(otel_observer(spans.provider), compiled("Text.").manifest, 0.25)
        assert trace.get_current_span() is step
    compile_span, step_span = spans.finished()
    assert step_span.name == "step"
    assert compile_span.parent == step_span.context
    assert compile_span.context is not None
    assert step_span.context is not None
    assert compile_span.context.trace_id == step_span.context.trace_id


@pytest.mark.rule("D.S.1")
def test_the_span_lasts_as_long_as_the_compile_and_ends_now(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans()
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_456_789)
    report_compile(otel_observer(spans.provider), compiled("Text.").manifest, 0.25)
    (span,) = spans.finished()
    assert (span.start_time, span.end_time) == (1_699_999_999_873_456_789, 1_700_000_000_123_456_789)


@pytest.mark.rule("D.S.5")
def test_without_an_observer_there_is_no_span_and_the_same_package() -> None:
    spans = Spans()
    observed, alone = compiled("Text."), compiled("Text.")
    before = encode_package(observed)
    report_compile(otel_observer(spans.provider), observed.manifest, 0.1)
    report_compile(None, alone.manifest, 0.1)
    assert len(spans.finished()) == 1
    assert before == encode_package(observed) == encode_package(alone)


@pytest.mark.rule("D.S.5", "D.S.4")
def test_an_observer_that_raises_changes_nothing_and_is_logged_once_without_its_text() -> None:
    package = compiled("Text.")
    before = encode_package(package)
    broken = Broken()
    with structlog.testing.capture_logs() as logged:
        report_compile(broken, package.manifest, 0.1)
        report_compile(broken, package.manifest, 0.1)
    assert broken.calls == 2  # it is told again: what broke it may have passed
    assert encode_package(package) == before
    failures = [line for line in logged if line["event"] == "observer_failed"]
    assert failures == [
        {
            "event": "observer_failed",
            "log_level": "warning",
            "run": "run-1",
            "step": 4,
            "observer": "Broken",
            "error": "RuntimeError",
        }
    ]
    assert "zqsecretqz" not in repr(logged)
    with structlog.testing.capture_logs() as again:
        report_compile(Broken(), package.manifest, 0.1)
    assert [line["event"] for line in again] == ["step_compiled", "observer_failed"]


class Unhashable(Broken):
    """An observer that cannot be remembered."""

    __hash__: Any = None


@pytest.mark.rule("D.S.5")
def test_an_observer_that_cannot_be_remembered_is_logged_every_time() -> None:
    broken = Unhashable()
    with structlog.testing.capture_logs() as logged:
        report_compile(broken, compiled().manifest, 0.1)
        report_compile(broken, compiled().manifest, 0.1)
    assert [line["event"] for line in logged] == ["step_compiled", "observer_failed"] * 2


@pytest.mark.rule("D.S.5")
def test_a_stop_that_the_application_asked_for_passes() -> None:
    class Stopping:
        def compile_finished(self, manifest: ContextManifest, seconds: float) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report_compile(Stopping(), compiled().manifest, 0.1)


@pytest.mark.rule("D.D.3", "D.D.25")
def test_a_compiled_step_is_one_line_of_names_and_counts() -> None:
    manifest = compiled("Text.", "Text.").manifest
    with structlog.testing.capture_logs() as logged:
        report_compile(None, manifest, 0.1)
    assert logged == [
        {
            "event": "step_compiled",
            "log_level": "info",
            "run": "run-1",
            "step": 4,
            "refresh": "initial",
            "selected": 1,
            "excluded": 1,
            "tokens": manifest.budget.selected_tokens,
        }
    ]


WORDS = st.text("qxzj", min_size=12, max_size=20)


@pytest.mark.rule("D.S.4", "D.D.3", "D.D.25")
@given(st.lists(WORDS, min_size=1, max_size=4, unique=True), WORDS, WORDS)
def test_no_text_is_in_a_span_or_a_line(texts: list[str], goal: str, asked: str) -> None:
    spans = Spans()
    manifest = compiled(*texts, query=asked, goal=goal).manifest
    with structlog.testing.capture_logs() as logged:
        report_compile(otel_observer(spans.provider), manifest, 0.1)
        report_compile(Broken(), manifest, 0.1)
    written = repr(logged) + "".join(span.to_json() for span in spans.finished())
    assert "step_compiled" in written
    assert "contextbus.context.compile" in written
    assert not any(text in written for text in (*texts, goal, asked))


# In an interpreter that finds no OpenTelemetry: what it has imported, and what asking for spans says.
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import contextbus.cli.commands, contextbus.client, contextbus.replay.verify, contextbus.runtime.telemetry
from contextbus_protocol.errors import InvalidRequestError
try:
    contextbus.runtime.telemetry.otel_observer()
except InvalidRequestError as exc:
    print(exc)
"""


@pytest.mark.rule("D.S.5")
def test_without_opentelemetry_everything_else_works_and_the_error_says_how_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert "pip install 'contextbus[otel]'" in done.stdout


@pytest.mark.rule("D.S.5")
def test_nobody_imports_opentelemetry_who_does_not_ask_for_spans() -> None:
    code = "import contextbus.client, contextbus.runtime.telemetry, sys; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
