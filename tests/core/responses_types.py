"""The SDK's types of a Responses request as a strict check: lists are read to their end, unknown keys are faults."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

from openai.types.responses import ResponseInputParam, ToolParam
from pydantic import TypeAdapter
from pydantic_core import SchemaValidator, ValidationError


def type_faults(body: Mapping[str, Any]) -> list[str]:
    """Where a body is not what the SDK's types say; empty if it is."""
    found = _faults(_input(), list(map(_with_id, body["input"])), "input")
    if "tools" in body:
        found += _faults(_tools(), body["tools"], "tools")
    if not isinstance(body.get("instructions", ""), str):
        found.append("instructions")
    return found


def _with_id(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item with the id that the types require of encrypted reasoning, and the API does not."""
    if item.get("type") == "reasoning" and item.get("encrypted_content"):
        return {"id": "", **item}
    return item


def _faults(validator: SchemaValidator, value: object, name: str) -> list[str]:
    try:
        validator.validate_python(value, strict=True)
    except ValidationError as exc:
        return [f"{name}{error['loc']}: {error['type']}" for error in exc.errors(include_url=False)]
    return []


@functools.cache
def _input() -> SchemaValidator:
    return SchemaValidator(_strict(TypeAdapter(ResponseInputParam).core_schema))


@functools.cache
def _tools() -> SchemaValidator:
    return SchemaValidator(_strict(TypeAdapter(list[ToolParam]).core_schema))


def _strict(schema: Any) -> Any:
    """The schema with iterables read at once and unknown keys refused."""
    if isinstance(schema, (list, tuple)):
        return [_strict(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(item) for key, item in cast("dict[str, Any]", schema).items() if key != "metadata"}
    if made.get("type") == "generator":
        made["type"] = "list"
    if made.get("type") == "typed-dict":
        made["extra_behavior"] = "forbid"
    return made
