"""Telling others of a compile: a log line with counts, and the host's observer, which can do no harm (D.S.1-D.S.5).

``otel_observer`` makes an observer that reports spans to OpenTelemetry.  Only that function imports it: everything else
works without it.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import msgspec

from contextbus.core.observer import Observer
from contextbus.core.telemetry import SPAN_NAME, count_entries, span_attributes
from contextbus.runtime.logs import get_logger
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.package import ContextManifest

if TYPE_CHECKING:  # an extra that need not be installed
    from opentelemetry.trace import Tracer, TracerProvider

SUBSYSTEM: Final = "context"
SCOPE_NAME: Final = f"contextbus.{SUBSYSTEM}"
"""The instrumentation scope of the spans: the library and its subsystem."""

_log = get_logger(__name__)
_raised: WeakSet[Observer] = WeakSet()


def report_compile(observer: Observer | None, manifest: ContextManifest, seconds: float) -> None:
    """Write the line ``step_compiled`` and tell the observer, right after the compile; it never raises (D.S.1, D.S.5).

    An observer that raises is logged the first time, by the types of itself and its error: an error's text may quote
    content.

    Args:
        observer: Who is told; None for nobody.
        manifest: The account of the compile.
        seconds: How long it took.
    """
    if _log.tells:
        counts = count_entries(manifest)
        _log.info(
            "step_compiled",
            run=manifest.run_id,
            step=manifest.step,
            refresh=manifest.refresh,
            selected=counts.selected,
            excluded=counts.excluded,
            tokens=counts.tokens,
        )
    if observer is None:
        return
    try:
        observer.compile_finished(manifest, seconds)
    except Exception as exc:  # whatever it is, it is the observer's and not the step's
        if _is_first_failure(observer):
            _log.warning(
                "observer_failed",
                run=manifest.run_id,
                step=manifest.step,
                observer=type(observer).__name__,
                error=type(exc).__name__,
            )


def otel_observer(provider: TracerProvider | None = None) -> Observer:
    """Make an observer that reports each compile as a span ``contextbus.context.compile`` (D.S.1).

    The span is a child of the span that is current when the compile is reported; its attributes are those of
    ``span_attributes``.

    Args:
        provider: Where spans go; the application's own provider if None.

    Raises:
        InvalidRequestError: OpenTelemetry is not installed; the text says how to get it.
    """
    try:
        trace = import_module("opentelemetry.trace")
    except ModuleNotFoundError as exc:
        raise InvalidRequestError(
            "spans need OpenTelemetry, which is not installed: pip install 'contextbus[otel]'"
        ) from exc
    return _SpanObserver(trace.get_tracer(SCOPE_NAME, tracer_provider=provider))


class _SpanObserver:
    """One span for each compile."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def compile_finished(self, manifest: ContextManifest, seconds: float) -> None:
        """Report a span that ends now and began when the compile did."""
        end = time.time_ns()
        bare = msgspec.structs.replace(manifest, package=None)  # the digest is over the form that is stored
        attributes = span_attributes(bare, digest_bytes(encode_json(bare)))
        span = self._tracer.start_span(
            SPAN_NAME, start_time=end - round(seconds * 1_000_000_000), attributes=attributes
        )
        span.end(end_time=end)


def _is_first_failure(observer: Observer) -> bool:
    """Whether an observer had not raised before; every time, of one that cannot be remembered."""
    try:
        known = observer in _raised
        _raised.add(observer)
    except Exception:  # without a hash or weak references, or with an equality of its own that raises
        return True
    return not known
