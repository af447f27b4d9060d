"""Definitions of the model's tools over working memory, in the shape of each provider (D.Q.2-D.Q.4, D.Q.13).

A schema takes what the parser takes.  Gemini's dialect knows neither ``$ref`` nor ``additionalProperties`` (its schemas
cannot refuse a field too many; the parser does).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from contextbus.core.working_memory_checks import SOURCES, TEXT_CHARACTERS
from contextbus.core.working_memory_tools import ENTRIES, ToolNames
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.working_memory import AttemptOutcome

ToolShape = Literal["anthropic", "openai", "openai-responses", "gemini"]

Schema = dict[str, Any]

_READ: Final = "Read working memory: goal, constraints, tasks, and the items that were noted, with their ids."
_ADD: Final = (
    "Note what must not be lost in a long task: observations (what you saw), hypotheses (what you believe), decisions, "
    "open questions, and attempts (what you tried and how it went). All items are added, or none."
)
_UPDATE: Final = (
    "Change noted items by id: answer or drop a question, tell how an attempt went, remove an item that is wrong or no "
    "longer matters. All changes are made, or none."
)


def define_tools(names: ToolNames, shape: ToolShape) -> list[Schema]:
    """The definitions of the three tools as a provider's ``tools`` takes them; the caller may change the list.

    Raises:
        InvalidRequestError: the shape is not one of ours.
    """
    strict = shape != "gemini"
    tools = (
        (names.read, _READ, _object({}, (), strict)),
        (names.add, _ADD, _object({"items": _entries(_items(strict))}, ("items",), strict)),
        (names.update, _UPDATE, _object({"changes": _entries(_changes(strict))}, ("changes",), strict)),
    )
    match shape:
        case "anthropic":
            return [{"name": n, "description": d, "input_schema": s} for n, d, s in tools]
        case "openai":
            return [
                {"type": "function", "function": {"name": n, "description": d, "parameters": s}} for n, d, s in tools
            ]
        case "openai-responses":
            # strict would demand every field, and these have optional ones
            return [
                {"type": "function", "name": n, "description": d, "parameters": s, "strict": False} for n, d, s in tools
            ]
        case "gemini":
            return [{"functionDeclarations": [_declare(n, d, s) for n, d, s in tools]}]
        case _:
            raise InvalidRequestError(f"tools can be defined for: {', '.join(get_args(ToolShape))}")


def _declare(name: str, description: str, schema: Schema) -> Schema:
    """A function declaration; Gemini refuses an object without properties."""
    declared: Schema = {"name": name, "description": description}
    return {**declared, "parameters": schema} if schema["properties"] else declared


def _items(strict: bool) -> list[Schema]:
    text = {"text": _text("What is noted, as one statement.")}
    evidence = {"evidence": _evidence()}
    return [
        _object(
            {"kind": _enum(("observation", "hypothesis", "question")), **text, **evidence}, ("kind", "text"), strict
        ),
        _object(
            {"kind": _enum(("decision",)), **text, "rationale": _note("Why it was decided."), **evidence},
            ("kind", "text"),
            strict,
        ),
        _object(
            {
                "kind": _enum(("attempt",)),
                **text,
                "outcome": _enum(get_args(AttemptOutcome)),
                "detail": _note("What happened."),
                **evidence,
            },
            ("kind", "text"),
            strict,
        ),
    ]


def _changes(strict: bool) -> list[Schema]:
    item_id = {"id": _text("The id of the item.")}
    return [
        _object(
            {"action": _enum(("answer",)), **item_id, "answer": _text("The answer."), "evidence": _evidence()},
            ("action", "id", "answer"),
            strict,
        ),
        _object(
            {
                "action": _enum(("attempt",)),
                **item_id,
                "outcome": _enum(get_args(AttemptOutcome)),
                "detail": _note("What happened."),
            },
            ("action", "id", "outcome"),
            strict,
        ),
        _object({"action": _enum(("drop", "remove")), **item_id}, ("action", "id"), strict),
    ]


def _object(properties: Schema, required: Iterable[str], strict: bool) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required := list(required):
        schema["required"] = required
    return {**schema, "additionalProperties": False} if strict else schema


def _entries(variants: list[Schema]) -> Schema:
    return {"type": "array", "minItems": 1, "maxItems": ENTRIES, "items": {"anyOf": variants}}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description, "minLength": 1, "maxLength": TEXT_CHARACTERS}


def _note(description: str) -> Schema:
    return {"type": "string", "description": description, "maxLength": TEXT_CHARACTERS}


def _enum(words: Iterable[str]) -> Schema:
    return {"type": "string", "enum": list(words)}


def _evidence() -> Schema:
    call = {"type": "string", "minLength": 1, "maxLength": TEXT_CHARACTERS}
    description = "Ids of earlier tool calls that show it."
    return {"type": "array", "description": description, "maxItems": SOURCES, "items": call}
