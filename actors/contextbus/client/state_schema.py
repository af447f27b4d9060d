"""The JSON Schema of a state that is a dict: what it refuses, and the order that it gives (P.B.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import referencing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match  # pyright: ignore[reportUnknownVariableType]  # half typed
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, UnknownDialect

from contextbus.client.state_fields import StateReader, declared_names, refused
from contextbus.core import json_text
from contextbus.core.json_text import as_list, as_object
from contextbus_protocol.errors import InvalidTypeError

LONGEST_RULE: Final = 120
"""The most characters of a rule's value that an error shows; the value is the schema's, never the state's."""

_SHOWN: Final = frozenset(
    (
        *("type", "enum", "const", "pattern", "format", "multipleOf", "uniqueItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
        *("minItems", "maxItems", "minProperties", "maxProperties"),
    )
)
_COMBINED: Final = ("allOf", "anyOf", "oneOf")
_CHOSEN: Final = ("then", "else")

_Resolver = Any  # referencing's, which has no public name of its own
_Scoped = tuple[dict[str, object], _Resolver]


class StateSchema:
    """A JSON Schema as it was when it was given; no reference leaves it, nothing is fetched.

    Args:
        schema: draft 2020-12, or the draft that its ``$schema`` names.

    Raises:
        InvalidTypeError: it is no JSON, no valid schema, or of a draft that is not known.
    """

    def __init__(self, schema: Mapping[str, object]) -> None:
        try:
            plain = json_text.read_object(json_text.encode(dict(schema)).decode())
            resource = referencing.Resource[Any].from_contents(plain, default_specification=DRAFT202012)
        except UnknownDialect:
            raise refused("schema", "its $schema names no draft that is known") from None
        except (TypeError, ValueError, RecursionError):
            raise refused("schema", "it is not JSON") from None
        checks = validator_for(plain, default=Draft202012Validator)
        try:
            checks.check_schema(plain)
        except SchemaError as exc:
            raise refused(f"schema{exc.json_path[1:]}", f"breaks {exc.validator} of its draft") from None
        self.names = declared_names(plain)
        self._plain = plain
        self._validator = checks(plain, registry=referencing.Registry())
        self._resolver: _Resolver = referencing.Registry[Any]().resolver_with_root(resource)

    def check(self, tree: object, path: str) -> None:
        """Check a state that was read.

        Raises:
            InvalidTypeError: it breaks the schema; the message names the field and the rule.
        """
        try:
            error = cast("Any", best_match(self._validator.iter_errors(cast("Any", tree))))
        except Unresolvable:
            raise refused("schema", "a $ref leads out of the schema or nowhere; nothing is fetched") from None
        except re.error:
            raise refused("schema", "a pattern is no regular expression") from None
        except RecursionError:
            raise refused("schema", "its references go round in a circle") from None
        if error is None:
            return
        reader = StateReader(self.names)
        for key in error.absolute_path:
            path = reader.place(path, key)
        raise _broken(path, str(error.validator), error.validator_value, error.instance, reader)

    def order(self, tree: object) -> object:
        """The state with the fields of every dict in the order of ``properties``, others behind as they came."""
        return self._order(tree, [(self._plain, self._resolver)])

    def _order(self, tree: object, schemas: list[_Scoped]) -> object:
        applied = self._applied(schemas)
        if (items := as_list(tree)) is not None:
            return [self._order(item, _schemas_of_item(applied, place)) for place, item in enumerate(items)]
        members = as_object(tree)
        if members is None:
            return tree
        declared = [key for schema, _ in applied for key in as_object(schema.get("properties")) or {}]
        keys = dict.fromkeys([key for key in declared if key in members] + list(members))
        return {key: self._order(members[key], _schemas_of_key(applied, key)) for key in keys}

    def _applied(self, schemas: list[_Scoped]) -> list[_Scoped]:
        """Schemas with those that they refer to and combine, each once."""
        waiting, applied = schemas[::-1], list[_Scoped]()
        while waiting:
            schema, resolver = waiting.pop()
            if any(schema is known for known, _ in applied):
                continue
            applied.append((schema, resolver))
            found = [(item, resolver) for word in _COMBINED for item in as_list(schema.get(word)) or ()]
            found += [(schema.get(word), resolver) for word in _CHOSEN]
            reference = schema.get("$ref")
            if isinstance(reference, str):
                try:
                    resolved = resolver.lookup(reference)
                except Unresolvable:  # the check did not need it either
                    continue
                found.insert(0, (resolved.contents, resolved.resolver))
            waiting += _scoped(found)[::-1]
        return applied


def _broken(path: str, rule: str, value: object, instance: object, reader: StateReader) -> InvalidTypeError:
    if rule == "required":
        present = as_object(instance) or {}
        missing = [name for name in cast("list[str]", value) if name not in present]
        return refused(f"{path}.{missing[0]}", "breaks required")
    if rule not in _SHOWN:
        return refused(path, f"breaks {rule}")
    shown = json_text.encode(value).decode()
    return refused(path, f"breaks {rule} {shown if len(shown) <= LONGEST_RULE else shown[:LONGEST_RULE] + '…'}")


def _scoped(found: list[tuple[object, _Resolver]]) -> list[_Scoped]:
    return [(schema, resolver) for item, resolver in found if (schema := as_object(item)) is not None]


def _schemas_of_key(applied: list[_Scoped], key: str) -> list[_Scoped]:
    found: list[tuple[object, _Resolver]] = []
    for schema, resolver in applied:
        properties = as_object(schema.get("properties")) or {}
        patterns = as_object(schema.get("patternProperties")) or {}
        matching = [item for pattern, item in patterns.items() if re.search(pattern, key)]
        if key in properties:
            matching.append(properties[key])
        found += [(item, resolver) for item in matching or [schema.get("additionalProperties")]]
    return _scoped(found)


def _schemas_of_item(applied: list[_Scoped], place: int) -> list[_Scoped]:
    found: list[tuple[object, _Resolver]] = []
    for schema, resolver in applied:
        first = as_list(schema.get("prefixItems")) or ()
        found.append((first[place] if place < len(first) else schema.get("items"), resolver))
    return _scoped(found)
