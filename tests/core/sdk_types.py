"""A second layer under the ordering rules: whether the SDKs' own request types take a body, unknown keys refused.

The types name ``messages`` and the like as iterables, which pydantic would only look at when they are used, so they are
read as lists here.  ``ADAPTERS`` is open for further targets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as AnthropicRequest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as OpenAIRequest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

Validate = Callable[[object], object]

CALLERS: Final[Mapping[str, Mapping[str, object]]] = {
    "anthropic": {"model": "claude-opus-4-6", "max_tokens": 1},
    "openai": {"model": "gpt-4o"},
}
"""What a caller adds to a body."""
_LONGEST: Final = 50


def _strict(schema: Any) -> Any:
    """A core schema that reads iterables at once and refuses unknown keys."""
    if isinstance(schema, list):
        return list(map(_strict, cast("Sequence[Any]", schema)))
    if isinstance(schema, tuple):
        return tuple(map(_strict, cast("Sequence[Any]", schema)))
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(item) for key, item in cast("dict[str, Any]", schema).items() if key != "metadata"}
    if found.get("type") == "generator":
        found["type"] = "list"
        found["fail_fast"] = True
    kind = found.get("type")
    open_dict = kind == "typed-dict" and "extras_schema" in found
    config = cast("dict[str, Any]", found.get("config") or {})
    open_dict = open_dict or (kind == "typed-dict" and config.get("extra_fields_behavior") == "allow")
    if kind in ("typed-dict", "model-fields") and not open_dict:
        found.pop("extras_schema", None)
        found["extra_behavior"] = "forbid"
    if kind in ("typed-dict", "model") and not open_dict:
        found["config"] = {**config, "extra_fields_behavior": "forbid"}
    return found


def validator(request: Any) -> Validate:
    """A strict validator of a request type."""
    return SchemaValidator(_strict(TypeAdapter(request).core_schema)).validate_python


ADAPTERS: Final[dict[str, Callable[[], Validate]]] = {
    "anthropic": lambda: validator(AnthropicRequest),
    "openai": lambda: validator(OpenAIRequest),
}


@functools.cache
def _made(target: str) -> Validate:
    return ADAPTERS[target]()


def _place(path: tuple[int | str, ...]) -> str:
    """Where an error is, without the long names of unions."""
    return ".".join(str(step) for step in path if isinstance(step, int) or len(step) <= _LONGEST)


def check_types(body: Mapping[str, object], target: str) -> list[str]:
    """What the SDK's types of a target do not take in a body: place and reason."""
    try:
        _made(target)({**body, **CALLERS.get(target, {})})
    except ValidationError as exc:
        return [f"{_place(error['loc'])}: {error['msg']}" for error in exc.errors()]
    return []
