"""The types of the official SDKs as strict checks, one for each target; no validator of ours has a part in them.

Three traps lie in pydantic's reading of TypedDicts: an ``Iterable`` is looked at only when somebody iterates it, keys
that no type has are ignored, and a union that nothing fits tells of each of its members.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from anthropic.types import MessageParam, TextBlockParam, ToolUnionParam
from anthropic.types.beta import BetaMessageParam, BetaTextBlockParam, BetaToolUnionParam
from google.genai import types as gemini
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.responses import ResponseInputParam, ToolParam
from pydantic import TypeAdapter
from pydantic_core import SchemaValidator, ValidationError

Schema = dict[str, Any]


class _Validator(Protocol):
    def validate_python(self, value: Any, /, *, strict: bool | None = None) -> Any: ...


_MEMBERS: dict[str, dict[str, Any]] = {
    "anthropic": {
        "messages": list[MessageParam],
        "system": str | list[TextBlockParam],
        "tools": list[ToolUnionParam],
    },
    "anthropic-beta": {
        "messages": list[BetaMessageParam],
        "system": str | list[BetaTextBlockParam],
        "tools": list[BetaToolUnionParam],
    },
    "openai": {"messages": list[ChatCompletionMessageParam], "tools": list[ChatCompletionToolUnionParam]},
    "openai-responses": {"input": ResponseInputParam, "instructions": str, "tools": list[ToolParam]},
    "gemini": {
        "contents": list[gemini.Content],
        "systemInstruction": gemini.Content,
        "tools": list[gemini.Tool],
    },
}


def find_type_faults(body: Mapping[str, Any], target: str) -> list[str]:
    """Where a body is not what the SDK's types say; empty if it is.  A member that they have no place for is a fault.

    A target "anthropic-beta" has the types of Anthropic's beta, where alone compaction blocks are.
    """
    found = [f"{name}: unknown" for name in body if name not in _MEMBERS[target]]
    for name in _MEMBERS[target]:
        if name in body:
            try:
                _validator(target, name).validate_python(_with_ids(body[name]), strict=target != "gemini")
            except ValidationError as exc:
                found += [f"{name}{error['loc']}: {error['type']}" for error in exc.errors(include_url=False)]
    return found


def _with_ids(value: Any) -> Any:
    """The Responses API knows encrypted reasoning without its id, which the SDK's type requires all the same."""
    if not isinstance(value, list):
        return value
    items = cast("list[Schema]", value)
    return [
        {"id": "", **item} if item.get("type") == "reasoning" and item.get("encrypted_content") else item
        for item in items
    ]


@functools.cache
def _validator(target: str, name: str) -> _Validator:
    adapter = TypeAdapter[Any](_MEMBERS[target][name])
    if target == "gemini":  # the SDK's models forbid by themselves what they do not know
        return adapter
    made = cast("Schema", _rewrite(adapter.core_schema, _read_strictly))
    known: dict[str, Schema] = {item["ref"]: item for item in made.get("definitions", ())}
    return SchemaValidator(_rewrite(made, functools.partial(_tag, known=known)))


def _rewrite(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """The schema with every part changed, the inner ones first."""
    if isinstance(schema, (list, tuple)):
        return [_rewrite(item, change) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return change({key: _rewrite(item, change) for key, item in cast("Schema", schema).items() if key != "metadata"})


def _read_strictly(schema: Schema) -> Schema:
    if schema.get("type") == "generator":
        return {**schema, "type": "list"}
    if schema.get("type") == "typed-dict":
        return {**schema, "extra_behavior": "forbid"}
    return schema


def _tag(schema: Schema, known: Mapping[str, Schema]) -> Schema:
    """A union whose members are told apart by a literal that all of them require is one of tags."""
    if schema.get("type") != "union":
        return schema
    for key in ("type", "role"):
        choices: Schema = {}
        for choice in schema["choices"]:
            words = _literals(choice, key, known)
            if not words or any(word in choices for word in words):
                break
            choices |= dict.fromkeys(words, choice)
        else:
            return {"type": "tagged-union", "discriminator": key, "choices": choices}
    return schema


def _literals(schema: Schema, key: str, known: Mapping[str, Schema]) -> list[str]:
    if schema.get("type") == "definition-ref":
        schema = known.get(schema["schema_ref"], {})
    field = schema.get("fields", {}).get(key) if schema.get("type") == "typed-dict" else None
    if field is None or not field.get("required", True) or field["schema"].get("type") != "literal":
        return []
    return cast("list[str]", field["schema"]["expected"])
