"""A second layer under the ordering rules: whether the SDKs' own request types take a body, unknown keys refused.

Three traps: the types name ``messages`` and the like as iterables, which pydantic would only look at when they are
used, so they are read as lists here; keys that a TypedDict does not name are refused, unless its SDK says that it is
open; an object of an answer, which takes any key, is no choice of a union.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import pydantic
from anthropic.types.beta import message_create_params as anthropic_params
from google.genai import types as gemini_types
from openai.types.chat import completion_create_params as openai_params
from openai.types.responses import ResponseInputParam, ToolParam
from pydantic_core import SchemaValidator

Validate = Callable[[object], object]

CALLERS: Final[Mapping[str, Mapping[str, object]]] = {
    "anthropic": {"model": "claude-opus-4-6", "max_tokens": 1},
    "openai": {"model": "gpt-4o"},
}
"""What a caller adds to a body."""
_REQUESTS: Final[Mapping[tuple[str, bool], object]] = {
    ("anthropic", False): anthropic_params.MessageCreateParamsNonStreaming,
    ("anthropic", True): anthropic_params.MessageCreateParamsStreaming,
    ("openai", False): openai_params.CompletionCreateParamsNonStreaming,
    ("openai", True): openai_params.CompletionCreateParamsStreaming,
}
_LONGEST: Final = 50


def check_types(body: Mapping[str, object], target: str, *, whole: bool = False) -> list[str]:
    """What the SDK's types of a target do not take in a body: place and reason.

    ``whole`` tells that the body holds what its caller adds as well; else that is filled in.
    """
    match target:
        case "openai-responses":
            return [*_check_responses(body)]
        case "gemini":
            return [*_check_gemini(body)]
        case _:
            return _faults(
                _validator(target, body.get("stream") is True), {**({} if whole else CALLERS[target]), **body}
            )


def _check_responses(body: Mapping[str, Any]) -> Iterator[str]:
    yield from _faults(_of_type(ResponseInputParam), list(map(_with_id, body["input"])), "input")
    if "tools" in body:
        yield from _faults(_of_type(list[ToolParam]), body["tools"], "tools")
    if not isinstance(body.get("instructions", ""), str):
        yield "instructions: no text"


def _with_id(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item with the id that the types require of encrypted reasoning, and the API does not."""
    if item.get("type") == "reasoning" and item.get("encrypted_content"):
        return {"id": "", **item}
    return item


def _check_gemini(body: Mapping[str, Any]) -> Iterator[str]:
    """The models of Google's SDK forbid what they do not know by themselves."""
    yield from (f"body: {key}" for key in body if key not in ("contents", "systemInstruction", "tools"))
    for content in body["contents"]:
        yield from _faults(gemini_types.Content.model_validate, content, "contents")
    for tool in body.get("tools", ()):
        yield from _faults(gemini_types.Tool.model_validate, tool, "tools")
    if "systemInstruction" in body:
        yield from _faults(gemini_types.Content.model_validate, body["systemInstruction"], "systemInstruction")


def _faults(validate: Validate, value: object, place: str = "") -> list[str]:
    try:
        validate(value)
    except pydantic.ValidationError as exc:
        return [f"{_place((place, *error['loc']))}: {error['msg']}" for error in exc.errors(include_url=False)]
    return []


def _place(path: tuple[int | str, ...]) -> str:
    """Where an error is, without the long names of unions."""
    return ".".join(str(step) for step in path if step != "" and (isinstance(step, int) or len(step) <= _LONGEST))


@functools.cache
def _validator(target: str, stream: bool) -> Validate:
    return _make(_REQUESTS[target, stream])


@functools.cache
def _of_type(described: object) -> Validate:
    return _make(described)


def _make(described: object) -> Validate:
    schema: Any = pydantic.TypeAdapter[object](cast("Any", described)).core_schema
    return functools.partial(SchemaValidator(_strict(schema)).validate_python, strict=True)


def _strict(schema: Any) -> Any:
    """A core schema that reads iterables at once and refuses unknown keys."""
    if isinstance(schema, list):
        return list(map(_strict, cast("Sequence[Any]", schema)))
    if isinstance(schema, tuple):
        return tuple(map(_strict, cast("Sequence[Any]", schema)))
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    if given.get("type") == "model":  # an object of an answer, which a parsed body never holds
        return {key: "is-instance" if key == "type" else given[key] for key in ("type", "cls", "ref") if key in given}
    found = {key: _strict(item) for key, item in given.items() if key not in ("metadata", "serialization")}
    if found.get("type") == "generator":
        found["type"] = "list"
    if found.get("type") == "typed-dict":
        config = cast("dict[str, Any]", found.pop("config", None) or {})
        if config.get("extra_fields_behavior") != "allow":
            found.pop("extras_schema", None)
            found["extra_behavior"] = "forbid"
    return found
