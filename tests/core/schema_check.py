"""Whether a value is as a JSON Schema says, for the words that tool definitions use."""

from __future__ import annotations

from typing import Any, cast

WORDS = {
    "type",
    "description",
    "enum",
    "anyOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
}


def fits(schema: dict[str, Any], given: object) -> bool:
    """Whether the value is valid under the schema."""
    value = cast("Any", given)
    assert set(schema) <= WORDS, sorted(set(schema) - WORDS)
    if "anyOf" in schema and not any(fits(variant, value) for variant in schema["anyOf"]):
        return False
    if "enum" in schema and not any(value == word and type(value) is type(word) for word in schema["enum"]):
        return False
    match schema.get("type"):
        case "string":
            return isinstance(value, str) and within(schema, "Length", len(value))
        case "array":
            return (
                type(given) is list
                and within(schema, "Items", len(value))
                and all(fits(schema["items"], entry) for entry in value)
            )
        case "object":
            known = schema.get("properties", {})
            return (
                type(given) is dict
                and all(name in value for name in schema.get("required", ()))
                and (schema.get("additionalProperties", True) or all(name in known for name in value))
                and all(fits(known[name], field) for name, field in value.items() if name in known)
            )
        case None:
            return True
        case other:
            raise AssertionError(other)


def within(schema: dict[str, Any], what: str, length: int) -> bool:
    """Whether a length keeps to the schema's bounds."""
    shortest: int = schema.get(f"min{what}", 0)
    longest: int = schema.get(f"max{what}", length)
    return shortest <= length <= longest
