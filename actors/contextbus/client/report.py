"""How a model call went, as a caller reports it and as it travels (D.W.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypedDict, cast, get_args

import msgspec

from contextbus.client.given import GivenMessage, read_usage
from contextbus.core.budget import require_count
from contextbus.core.payload import Payload
from contextbus.core.reported import model_word
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes, digest_text
from contextbus_protocol.errors import InvalidTypeError, word_of
from contextbus_protocol.values import Usage

Status = Literal["succeeded", "failed", "cancelled", "overflow"]
_STATUSES: Final[tuple[str, ...]] = get_args(Status)
RequestBody = Payload | Mapping[str, object] | str | bytes


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a model call went (D.W.8).

    ``messages`` are what the call added to the history: ours, or the provider's as dicts or SDK objects.
    ``started_at`` is when it began, in milliseconds since the epoch.  ``request_body`` is what was sent: a payload, its
    JSON object, or its text; the log gets its digest alone.  ``response_model`` is the model that answered,
    ``upstream`` who served it: a word of at most 64 characters, or an object whose ``name`` is one.  Where they are no
    words the log does without, and all four are recorded of a call that succeeded.

    Raises:
        InvalidTypeError: there is no such status.
    """

    status: Status
    messages: Sequence[GivenMessage] = ()
    usage: Usage | Mapping[str, object] | object | None = None
    finish_reason: str | None = None
    started_at: int | None = None
    request_body: RequestBody | None = None
    response_model: str | None = None
    upstream: Mapping[str, object] | str | None = None

    def __post_init__(self) -> None:
        """Refuse a word that is no outcome, here and not when it is sent."""
        if self.status not in _STATUSES:
            raise InvalidTypeError(f"status must be one of {', '.join(_STATUSES)}, not {self.status!r}")


class ReportFields(TypedDict):
    """What of a report travels beside its messages."""

    status: Status
    usage: Usage | None
    finish_reason: str | None
    started_at: int | None
    response_model: str | None
    request_digest: str | None
    upstream: str | None


def read_report(report: Report) -> ReportFields:
    """The fields of a report as they travel; no text but words is among them.

    Raises:
        InvalidTypeError: a field is of a wrong type, or the body cannot be written as JSON; the message names it.
    """
    if report.started_at is not None:
        require_count("started_at", report.started_at)
    reason = _text("finish_reason", report.finish_reason)
    return ReportFields(
        status=report.status,
        usage=read_usage(report.usage),
        finish_reason=None if reason is None else word_of(reason) or "other",
        started_at=report.started_at,
        response_model=model_word(_text("response_model", report.response_model)),
        request_digest=None if report.request_body is None else _digest_body(report.request_body),
        upstream=word_of(name_upstream(report)),
    )


def name_upstream(report: Report) -> str | None:
    """Who served the call, as its report names them.

    Raises:
        InvalidTypeError: it is neither a text nor an object.
    """
    if isinstance(report.upstream, Mapping):
        name = report.upstream.get("name")
        return name if isinstance(name, str) else None
    return _text("upstream", report.upstream)


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidTypeError(f"{name} of a report must be a text, not {type(value).__name__}")


def _digest_body(body: object) -> str:
    """The digest of the bytes that were sent, as far as they are told from the body that is given."""
    if isinstance(body, str):
        return digest_text(body)
    if isinstance(body, bytes):
        return digest_bytes(body)
    if isinstance(body, Payload):
        return digest_bytes(body.json())
    if isinstance(body, Mapping):
        return digest_bytes(encode_json(dict(cast("Mapping[str, object]", body))))
    raise InvalidTypeError(
        f"request_body of a report must be a payload, a JSON object or a text, not {type(body).__name__}"
    )
