"""Errors: one code for each class, there and back over the bus."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from tests.protocol.values import values_of

from contextbus_protocol import codec, errors
from contextbus_protocol.commands import ErrorReply
from contextbus_protocol.errors import ERRORS, ContextBusError, ErrorData, error_of

CODES = [
    "context_budget_exceeded",
    "invalid_request",
    "invalid_type",
    "invalid_range",
    "empty_history",
    "scope_conflict",
    "source_failed",
    "summariser_failed",
    "hook_failed",
    "callback_timeout",
    "revision_conflict",
    "not_found",
    "forbidden",
    "limit",
    "request_overhead",
    "deadline_exceeded",
    "unsupported_version",
    "payload_too_large",
    "stale_step",
    "command_mismatch",
    "conflict",
    "busy",
    "internal",
]


@pytest.mark.rule("D.W.9")
def test_each_code_has_one_class_and_each_class_one_code() -> None:
    assert [cls.code for cls in ERRORS] == CODES
    assert len({cls.code for cls in ERRORS}) == len(ERRORS)
    named = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ContextBusError)}
    assert named - set(ERRORS) == {ContextBusError, errors.OriginError}  # bases, raised by nobody


@pytest.mark.rule("D.W.2", "D.W.9")
@pytest.mark.parametrize("cls", ERRORS, ids=lambda c: str(c.code))
@settings(max_examples=10, deadline=None)
@given(data=values_of(ErrorData))
def test_an_error_crosses_the_bus_as_its_code(cls: type[ContextBusError], data: ErrorData) -> None:
    reply = ErrorReply(run="r", command="c", code=cls.code, message="what to do", data=data)
    for encoding in (codec.JSON, codec.MSGPACK):
        got = codec.decode_message(codec.encode_message(reply, encoding), encoding)
        assert isinstance(got, ErrorReply)
        error = error_of(got.code, got.message, got.data)
        assert type(error) is cls
        assert (error.code, error.message, str(error), error.data) == (cls.code, "what to do", "what to do", data)


@pytest.mark.rule("D.W.2", "D.T.4")
def test_wrong_types_and_values_are_the_builtin_errors_too() -> None:
    assert {c.code for c in ERRORS if issubclass(c, TypeError)} == {"invalid_type", "scope_conflict"}
    assert {c.code for c in ERRORS if issubclass(c, ValueError)} == {"invalid_range", "empty_history"}


@pytest.mark.rule("D.W.9")
def test_a_code_of_a_newer_release_is_an_internal_error() -> None:
    assert type(error_of("not-yet-known", "text")) is errors.InternalError


@pytest.mark.rule("D.B.15", "D.T.1")
def test_a_budget_error_says_how_much_is_needed() -> None:
    data = ErrorData(required_tokens=9, available_tokens=4, phase="overflow-retry")
    error = error_of("context_budget_exceeded", "too much", data)
    assert isinstance(error, errors.ContextBudgetExceededError)
    assert (error.required_tokens, error.available_tokens, error.phase) == (9, 4, "overflow-retry")


@pytest.mark.rule("D.W.2")
def test_a_foreign_failure_keeps_where_it_came_from() -> None:
    data = ErrorData(origin="docs", origin_code="E42", origin_type="KeyError")
    for code in ("source_failed", "summariser_failed", "hook_failed", "callback_timeout"):
        error = error_of(code, "text", data)
        assert isinstance(error, errors.OriginError)
        assert (error.origin, error.origin_code, error.origin_type) == ("docs", "E42", "KeyError")


def test_codes_are_snake_case_words() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in CODES)
    assert msgspec.json.encode(ErrorData()) == b"{}"
