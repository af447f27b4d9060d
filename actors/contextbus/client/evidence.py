"""What a successful call shows of its input and its cache, read where the body and the usage are (C.M.1, C.N.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from contextbus.client.breakpoints import controls_of
from contextbus.client.given import plain_usage
from contextbus.client.report import Report, name_upstream
from contextbus.core.cache_retention import infer_retention
from contextbus.core.payload import Payload
from contextbus.core.usage_facts import UsageFacts, is_aggregate, read_usage_facts
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.values import Model


class Evidence(TypedDict):
    """What travels with a report: the measured input in tokens, and how long the cache is kept in milliseconds."""

    measured: int | None
    retention_ms: int | None


def read_evidence(
    report: Report,
    added: Sequence[ChatMessage],
    model: Model | None,
    rendered: Payload | None,
) -> Evidence:
    """The evidence of a report; none of a call that did not succeed (C.M.12) or that has no usage.

    Args:
        report: how the call went.
        added: its messages, read.
        model: the model of its step.
        rendered: what the step rendered last; its breakpoints are read where the report has no body (C.N.13).

    Raises:
        InvalidTypeError: usage or upstream are of a wrong type.
    """
    usage = plain_usage(report.usage) if report.status == "succeeded" else None
    if usage is None:
        return Evidence(measured=None, retention_ms=None)
    facts = read_usage_facts(usage)
    return Evidence(
        measured=None if is_aggregate(usage, added) else facts.measured,
        retention_ms=None if model is None else _infer(report, facts, model, rendered),
    )


def _infer(report: Report, facts: UsageFacts, model: Model, rendered: Payload | None) -> int | None:
    """The retention; without cache reads or writes nothing is kept that it could be of (C.N.1, C.N.3)."""
    usage = facts.usage
    if usage.cache_read_tokens <= 0 and usage.cache_write_tokens <= 0:
        return None
    sent = rendered if report.request_body is None else report.request_body
    return infer_retention(
        provider=model.provider,
        model_id=model.model_id,
        body=controls_of(sent) if isinstance(sent, Payload) else sent,
        response_model=report.response_model,
        upstream=name_upstream(report),
        writes_5m=facts.writes_5m,
        writes_1h=facts.writes_1h,
        reads=usage.cache_read_tokens,
    )
