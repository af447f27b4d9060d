"""The second layer: the request types of the provider's own SDK, where it is installed.

The SDKs describe requests as TypedDicts, and pydantic reads those too kindly for a check: an ``Iterable`` is looked at
only when somebody iterates it, members that no type has are ignored, and a union that nothing fits gives an error for
each of its members.  So the core schema is rewritten before the validator is made: generators become lists, TypedDicts
forbid what they do not know, and unions are chosen by ``type`` or ``role``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from types import GenericAlias
from typing import Final, Protocol, cast

import msgspec

from contextbus.core.frozen import thaw
from contextbus.core.json_text import as_list, as_object
from contextbus.validation import schema_rewriting
from contextbus.validation.findings import Finding, Object, error, member
from contextbus.validation.schema_rewriting import TAG, rewrite
from contextbus_protocol.errors import InvalidTypeError

TYPES: Final = "types"
"""The code of what does not fit the SDK's types."""

SDKS: Final[Mapping[str, str]] = {
    "anthropic": "anthropic",
    "openai": "openai",
    "openai-responses": "openai",
    "gemini": "google-genai",
}
"""The package whose types describe a target."""

MOST: Final = 100
"""Findings given at most: behind them, the body is for another API."""

_CALLERS: Final[Mapping[str, Object]] = {
    "anthropic": {"model": "model", "max_tokens": 1},
    "openai": {"model": "model"},
    "openai-responses": {"model": "model"},
}
"""What the caller adds to a body (P.A.2), filled in where it is absent."""

_REQUESTS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "anthropic": (
        ("anthropic.types.message_create_params", "MessageCreateParamsNonStreaming"),
        ("anthropic.types.beta.message_create_params", "MessageCreateParamsNonStreaming"),
    ),
    "openai": (("openai.types.chat.completion_create_params", "CompletionCreateParamsNonStreaming"),),
    "openai-responses": (("openai.types.responses.response_create_params", "ResponseCreateParamsNonStreaming"),),
}
_GEMINI: Final[Mapping[str, str]] = {
    "contents": "[Content]",
    "system_instruction": "Content",
    "tools": "[Tool]",
    "tool_config": "ToolConfig",
    "safety_settings": "[SafetySetting]",
    "generation_config": "GenerationConfig",
    "config": "GenerateContentConfig",
}
"""Members of generateContent's body and the SDK's models of them; brackets stand for a list."""
_NOT_ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "anthropic": ("stream", "temperature", "top_k", "top_p"),
    "openai": ("stream",),
    "openai-responses": ("stream",),
}
"""Members that the types do not describe: which type is asked rests on ``stream``, and of Anthropic's sampling the
newest SDKs say nothing."""


_TOO_DEEP: Final = error(TYPES, "body", "The body is nested deeper than the SDK's types can follow; make it flatter.")


_FAILED: Final = error(TYPES, "body", "The SDK's own code fails on this body; look for values of a wrong kind.")


class Validator(Protocol):
    """A validator of pydantic."""

    def validate_python(self, value: object, /, *, strict: bool | None = None) -> object:
        """The value, or an error."""
        ...


class _ErrorLine(msgspec.Struct, frozen=True):
    """One line of pydantic's errors."""

    type: str
    loc: tuple[str | int, ...]
    ctx: Mapping[str, object] = msgspec.field(default_factory=dict[str, object])


def check_types(body: object, target: str) -> tuple[Finding, ...] | None:
    """What does not fit the request types of the target's SDK; None where the SDK is not installed.

    ``model`` and the limit of the output are filled in where they are absent.  A target's first call takes seconds.

    Raises:
        InvalidTypeError: there is no such target.
    """
    if target not in SDKS:
        raise InvalidTypeError(f"no target {target!r}; the targets are {', '.join(SDKS)}")
    try:
        plain = thaw(body)
    except RecursionError:
        return (_TOO_DEEP,)
    if (fields := as_object(plain)) is not None:
        left_out = _NOT_ASKED.get(target, ())
        plain = _CALLERS.get(target, {}) | {key: value for key, value in fields.items() if key not in left_out}
        if target == "openai-responses" and (items := as_list(plain.get("input"))) is not None:
            plain["input"] = [_with_id(item) for item in items]
    if target == "gemini":
        return _check(plain, gemini_validator(), strict=False)
    best: tuple[Finding, ...] | None = None
    # What the first description does not know may be in beta: the one that fits better is meant.
    for module, name in _REQUESTS[target]:
        found = _check(plain, typed_dict_validator(module, name), strict=True)
        if found is not None and (best is None or len(found) < len(best)):
            best = found
        if not best:
            break
    return best


def _with_id(item: object) -> object:
    """An item for the types: they require the id of reasoning, which the API does not where it is encrypted."""
    fields = as_object(item)
    if fields is None or fields.get("type") != "reasoning" or not isinstance(fields.get("encrypted_content"), str):
        return item
    return {"id": ""} | fields


def _check(body: object, validator: Validator | None, *, strict: bool) -> tuple[Finding, ...] | None:
    if validator is None:
        return None
    wrong = cast("type[Exception]", import_module("pydantic_core").ValidationError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # google-genai warns of values of enums that it does not know
            validator.validate_python(body, strict=strict)
    except RecursionError:
        return (_TOO_DEEP,)
    except wrong as failed:
        lines = cast("Callable[..., list[object]]", getattr(failed, "errors"))  # noqa: B009  # of a class named late
        return _read_errors(lines(include_url=False, include_input=False, include_context=True))
    except Exception:  # whatever the SDK's own code raises: google-genai's enums raise for what is no text
        return (_FAILED,)
    return ()


def _read_errors(lines: Iterable[object]) -> tuple[Finding, ...]:
    found: dict[Finding, None] = {}
    for line in lines:
        entry = as_object(line) or {}
        loc = tuple(step for step in as_list(entry.get("loc")) or () if isinstance(step, str | int))
        read = _ErrorLine(str(entry.get("type")), loc, as_object(entry.get("ctx")) or {})
        found.setdefault(error(TYPES, _place(read.loc), _say(read)))
        if len(found) == MOST:
            break
    return tuple(found)


def _place(loc: Iterable[str | int]) -> str:
    place = ""
    for step in loc:
        if isinstance(step, int):
            place = f"{place}[{step}]"
        elif not step.startswith(TAG):
            place = member(place, step)
    return place or "body"


def _say(line: _ErrorLine) -> str:
    """One sentence about an error; pydantic's own may repeat what stands in the body."""
    match line.type:
        case "missing":
            return "The SDK's type requires this member; write it."
        case "extra_forbidden":
            return "The SDK's type has no such member; leave it out."
        case "literal_error" | "enum":
            return f"The SDK's type takes only {line.ctx.get('expected')} here; use one of them."
        case "union_tag_invalid" | "union_tag_not_found" | schema_rewriting.NO_FORM:
            return "This fits none of the forms that the SDK's types have here; check its type and its members."
        case kind if kind.endswith("_type"):
            return f"The SDK's type wants {kind.removesuffix('_type').replace('_', ' ')} here; write that."
        case kind:
            return f"This does not fit the SDK's type ({kind.replace('_', ' ')}); change it."


@cache
def typed_dict_validator(module: str, name: str) -> Validator | None:
    """A validator of a TypedDict; None where there is no such type, as its SDK is not installed or old."""
    try:
        described = getattr(import_module(module), name)
        adapter = import_module("pydantic").TypeAdapter(described)
    except (ImportError, AttributeError):
        return None
    return _make_validator(adapter.core_schema)


@cache
def gemini_validator() -> Validator | None:
    """A validator of generateContent's body, of which the SDK has no model; None where it is not installed."""
    try:
        types = import_module("google.genai.types")
        pydantic = import_module("pydantic")
    except ImportError:
        return None
    fields: dict[str, object] = {"cached_content": (str, ""), "model": (str, ""), "labels": (dict[str, str], {})}
    for key, name in _GEMINI.items():
        described = getattr(types, name.strip("[]"))
        described = GenericAlias(list, (described,)) if name.startswith("[") else described
        fields[key] = (described, ... if key == "contents" else None)
    spelling = pydantic.alias_generators.to_camel
    config = pydantic.ConfigDict(extra="forbid", alias_generator=spelling, populate_by_name=True)
    model = pydantic.create_model("GenerateContentBody", __config__=config, **fields)
    return _make_validator(pydantic.TypeAdapter(model).core_schema)


def _make_validator(schema: object) -> Validator:
    return cast("Validator", import_module("pydantic_core").SchemaValidator(rewrite(schema)))
