"""Gemini's tools: function declarations, their Schema as JSON Schema, and tools that only Gemini knows (P.E.3)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from contextbus.core import json_text
from contextbus_protocol.errors import InvalidTypeError

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
"""A function's name as Gemini takes it."""

_NATIVE: Final = (
    "googleSearch",
    "googleSearchRetrieval",
    "googleMaps",
    "codeExecution",
    "urlContext",
    "fileSearch",
    "computerUse",
    "enterpriseWebSearch",
    "parallelAiSearch",
    "exaAiSearch",
    "retrieval",
    "mcpServers",
)
_DECLARED: Final = (
    "name",
    "description",
    "parameters",
    "parametersJsonSchema",
    "response",
    "responseJsonSchema",
    "behavior",
)
_COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_SCHEMAS: Final = ("items", "additionalProperties")
_LISTS: Final = ("anyOf", "prefixItems")
_MAPS: Final = ("properties", "defs", "$defs")
_DEEPEST: Final = 50  # levels of a Schema that are read


class Declaration(msgspec.Struct, frozen=True):
    """One function or native tool of Gemini's; ``parameters`` is a JSON Schema as JSON, None where there are none.

    ``native`` is a tool that only Gemini knows; ``own`` is a tool of one function as Gemini has it, with no field that
    Gemini does not know.
    """

    name: str
    description: str = ""
    parameters: bytes | None = None
    native: bytes | None = None
    own: bytes | None = None


def camel_name(name: str) -> str:
    """A member's name as REST has it: the Python SDK writes ``function_call`` for ``functionCall``."""
    if name.startswith("_"):  # none of Gemini's
        return name
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest)


def read_gemini_tool(value: dict[str, object], place: str) -> tuple[Declaration, ...] | None:
    """The functions and native tools of one tool of Gemini's; None for a tool of any other shape.

    Raises:
        InvalidTypeError: a declaration cannot be read; the message names the place.
    """
    tool = {camel_name(key): item for key, item in value.items() if item is not None}
    if "name" in tool or "type" in tool or not ("functionDeclarations" in tool or any(key in tool for key in _NATIVE)):
        return None
    found: list[Declaration] = []
    for key, item in tool.items():
        if key == "functionDeclarations":
            listed = json_text.as_list(item)
            if listed is None:
                raise InvalidTypeError(f"{place}.{key}: expected a list of objects")
            found += [_declaration(one, f"{place}.{key}[{index}]") for index, one in enumerate(listed)]
        elif key in _NATIVE:
            found.append(Declaration(key, native=json_text.encode({key: item})))
    return tuple(found)


def _declaration(item: object, place: str) -> Declaration:
    given = json_text.as_object(item)
    if given is None:
        raise InvalidTypeError(f"{place}: expected an object")
    value = {camel_name(key): inner for key, inner in given.items() if inner is not None}
    name, description = value.get("name"), value.get("description", "")
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"{place}.name: expected a text that is not empty")
    if not isinstance(description, str):
        raise InvalidTypeError(f"{place}.description: expected a text")
    parameters: bytes | None = None
    for key in ("parameters", "parametersJsonSchema"):
        schema = value.get(key)
        if schema is None:
            continue
        if json_text.as_object(schema) is None:
            raise InvalidTypeError(f"{place}.{key}: expected a schema that is an object")
        parameters = json_text.encode(json_schema(schema) if key == "parameters" else schema)
    kept = {key: value[key] for key in value if key in _DECLARED}
    own = json_text.encode({"functionDeclarations": [kept]}) if NAME.fullmatch(name) else None
    return Declaration(name, description, parameters, own=own)


def json_schema(schema: object, depth: int = 0) -> object:
    """Gemini's Schema as JSON Schema: types in small letters, ``nullable`` as a type, counts as numbers.

    ``$ref`` and whatever else is JSON Schema already stays.
    """
    value = json_text.as_object(schema)
    if value is None or depth > _DEEPEST:
        return schema
    found: dict[str, object] = {}
    for given, item in value.items():
        key = given if given.startswith("$") else camel_name(given)
        inner, listed = json_text.as_object(item), json_text.as_list(item)
        if key == "type" and isinstance(item, str):
            found[key] = item.lower()
        elif key in _COUNTS and isinstance(item, str) and item.isascii() and item.isdecimal():
            found[key] = int(item[:18])
        elif key in _SCHEMAS:
            found[key] = json_schema(item, depth + 1)
        elif key in _LISTS and listed is not None:
            found[key] = [json_schema(one, depth + 1) for one in listed]
        elif key in _MAPS and inner is not None:
            found[key] = {name: json_schema(one, depth + 1) for name, one in inner.items()}
        elif key not in ("nullable", "propertyOrdering"):
            found[key] = item
    if found.get("type") == "type_unspecified":
        del found["type"]
    if value.get("nullable") is True and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    return found
