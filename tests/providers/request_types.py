"""The SDKs' own request types as strict validators: the first of the two layers that a request must pass.

Three traps are avoided: an Iterable would be validated lazily, so it is a list here; keys that a TypedDict does not
know are forbidden; of a union's many errors those of the likeliest member are told.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as AnthropicWhole
from anthropic.types.message_create_params import MessageCreateParamsStreaming as AnthropicStream
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as OpenAIWhole
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as OpenAIStream
from pydantic import TypeAdapter
from pydantic_core import SchemaValidator, ValidationError

Provider = Literal["anthropic", "openai"]
Found = list[tuple[str, str]]

_TYPES: Final[Mapping[tuple[Provider, bool], Any]] = {
    ("anthropic", False): AnthropicWhole,
    ("anthropic", True): AnthropicStream,
    ("openai", False): OpenAIWhole,
    ("openai", True): OpenAIStream,
}


def check_types(provider: Provider, body: Mapping[str, Any]) -> Found:
    """What of a request its SDK's types do not take, as (code, place); the code is the provider's and ``types``."""
    try:
        _validator(provider, body.get("stream") is True).validate_python(dict(body), strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        deepest = max(len(item["loc"]) for item in errors)
        told = [item for item in errors if len(item["loc"]) == deepest]
        return [(f"{provider}.types", f"{'.'.join(map(str, item['loc']))}: {item['msg']}") for item in told[:3]]
    return []


@functools.cache
def _validator(provider: Provider, stream: bool) -> SchemaValidator:  # noqa: FBT001 - a part of the cache's key
    return SchemaValidator(_strict(TypeAdapter(_TYPES[provider, stream]).core_schema))


def _strict(schema: Any) -> Any:
    """A core schema with lists for iterables, and no keys that are not known."""
    if isinstance(schema, Mapping):
        items = cast("Mapping[str, Any]", schema)
        kept = {key: _strict(value) for key, value in items.items() if key not in ("serialization", "metadata")}
        if kept.get("type") == "generator":
            kept["type"] = "list"
        if kept.get("type") == "typed-dict":
            kept.pop("config", None)
            kept["extra_behavior"] = "forbid"
        return kept
    if isinstance(schema, list | tuple):
        items_of = cast("list[Any] | tuple[Any, ...]", schema)
        return type(items_of)([_strict(value) for value in items_of])
    return schema
