"""The SDKs' own request types as strict validators: the first of the two layers that a request must pass.

Traps that are avoided: an Iterable would be validated lazily, so it is a list here; keys that a TypedDict does not
know are forbidden; an object of an answer, which takes any key, is no choice; of a union's many errors those of the
likeliest member are told.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
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
        return [(f"{provider}.types", told) for told in _tell(error)[:3]]
    return []


def _tell(error: ValidationError) -> list[str]:
    """Errors as place and words, those left out of members of a union that are for another type or role."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    kinds = ("type", "role")
    errors = [each for each in errors if each["type"] != "is_instance_of"] or errors
    others = {each["loc"][:-1] for each in errors if each["type"] == "literal_error" and each["loc"][-1] in kinds}
    likely = [each for each in errors if not any(each["loc"][: len(other)] == other for other in others)]
    deepest = max((len(each["loc"]) for each in likely), default=0)
    told = [each for each in likely if len(each["loc"]) == deepest] or errors
    places = [".".join(str(step) for step in each["loc"] if "[" not in str(step)) for each in told]
    return [f"{place}: {each['msg']}" for place, each in zip(places, told, strict=True)]


@functools.cache
def _validator(provider: Provider, stream: bool) -> SchemaValidator:
    return SchemaValidator(_strict(TypeAdapter(_TYPES[provider, stream]).core_schema))


def _strict(schema: Any) -> Any:
    """A core schema with lists for iterables, and no keys that are not known."""
    if isinstance(schema, Mapping):
        items = cast("Mapping[str, Any]", schema)
        if items.get("type") == "model":  # an object of an answer, which a parsed body never holds
            return {
                key: "is-instance" if key == "type" else items[key] for key in ("type", "cls", "ref") if key in items
            }
        kept = {key: _strict(value) for key, value in items.items() if key not in ("serialization", "metadata")}
        if kept.get("type") == "generator":
            kept["type"] = "list"
        if kept.get("type") == "typed-dict":
            kept.pop("config", None)
            kept["extra_behavior"] = "forbid"
        return kept
    if isinstance(schema, list | tuple):
        parts = [_strict(value) for value in cast("Sequence[Any]", schema)]
        return parts if isinstance(schema, list) else tuple(parts)
    return schema
