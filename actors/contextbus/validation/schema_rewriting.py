"""A pydantic core schema, rewritten so that JSON is checked strictly and an error can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast

from contextbus.core.json_text import as_list, as_object

Schema = dict[str, object]

TAG: Final = "\x00"
"""What the tag of a union's choice begins with, so that it can be told from a step of a path."""

NO_FORM: Final = "no_form"
"""The type of the one error of a union that nothing fits."""

_DROPPED: Final = ("metadata", "serialization")
_WRAPPERS: Final = ("function-after", "function-before", "function-wrap", "default", "nullable")
# What JSON never holds: objects of a class, open files, paths.
_NO_JSON: Final = ("callable", "custom-error", "function-plain", "is-instance", "is-subclass", "model")
_KINDS: Final[Mapping[str, str]] = {
    "bool": "bool",
    "float": "number",
    "generator": "list",
    "int": "number",
    "json-or-python": "list",
    "list": "list",
    "none": "none",
    "str": "str",
}


def rewrite(schema: object) -> Schema:
    """The schema with lists for generators, TypedDicts that forbid unknown members, and unions chosen by their form."""
    definitions = {str(found["ref"]): found for found in _walk(schema) if "ref" in found}
    return cast("Schema", _rewrite(schema, definitions))


def _walk(value: object) -> Iterator[Schema]:
    if (members := as_object(value)) is not None:
        yield members
        for key, item in members.items():
            if key not in _DROPPED:
                yield from _walk(item)
    elif (items := as_list(value)) is not None:
        for item in items:
            yield from _walk(item)


def _rewrite(value: object, definitions: Mapping[str, Schema]) -> object:
    if (items := as_list(value)) is not None:
        return type(items)(_rewrite(item, definitions) for item in items)
    members = as_object(value)
    if members is None:
        return value
    if members.get("type") == "union":
        return _choose(_flatten(members, definitions), definitions, members.get("ref"))
    made = {key: _rewrite(item, definitions) for key, item in members.items() if key not in _DROPPED}
    if made.get("type") == "generator":
        made["type"] = "list"
    if made.get("type") == "typed-dict" and not _is_open(made):
        made["extra_behavior"] = "forbid"
    return made


def _is_open(schema: Schema) -> bool:
    """Whether a TypedDict takes members that it does not name, such as JSON Schema's in a tool's input."""
    config = as_object(schema.get("config")) or {}
    return "extras_schema" in schema or config.get("extra_fields_behavior") == "allow"


def _flatten(union: Schema, definitions: Mapping[str, Schema]) -> list[Schema]:
    """The choices of a union, with those of the unions in it; what only Python objects fit is left out."""
    found: list[Schema] = []
    for choice in as_list(union.get("choices")) or ():
        labelled = as_list(choice)
        schema = cast("Schema", choice if labelled is None else labelled[0])
        inner = _resolve(schema, definitions)
        if inner.get("type") == "union":
            found += _flatten(inner, definitions)
        elif inner.get("type") == "nullable":
            found += [*_flatten({"choices": [inner["schema"]]}, definitions), cast("Schema", {"type": "none"})]
        elif inner.get("type") not in _NO_JSON:
            found.append(schema)
    return found


def _resolve(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    while schema.get("type") == "definition-ref":
        schema = definitions[str(schema["schema_ref"])]
    return schema


def _unwrap(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    schema = _resolve(schema, definitions)
    while schema.get("type") in _WRAPPERS:
        schema = _resolve(cast("Schema", schema["schema"]), definitions)
    return schema


def _choose(choices: list[Schema], definitions: Mapping[str, Schema], ref: object) -> Schema:
    """A union whose choice is made by the kind of a value and, among objects, by ``type`` and then by ``role``."""
    groups: dict[str, list[Schema]] = {}
    for choice in choices:
        for tag in _tags(choice, definitions, "type"):
            groups.setdefault(tag, []).append(choice)
    for choice in choices:  # any object fits a dict, whatever its type: so any keyword may stand in a JSON Schema
        if _unwrap(choice, definitions).get("type") == "dict":
            for tag, group in groups.items():
                if tag.startswith(f"{TAG}type="):
                    group.append(choice)
    made: Schema
    if not choices or f"{TAG}any" in groups:
        made = _plain_union(choices or [{"type": "any"}], definitions)
    else:
        made = _tagged_union(
            {tag: _choose_by_role(group, definitions) for tag, group in groups.items()}, tuple(groups), "type"
        )
    return made if ref is None else {**made, "ref": ref}


def _choose_by_role(choices: list[Schema], definitions: Mapping[str, Schema]) -> Schema:
    groups: dict[str, list[Schema]] = {}
    for choice in choices:
        for tag in _tags(choice, definitions, "role"):
            groups.setdefault(tag, []).append(choice)
    if len(choices) == 1 or len(groups) == 1:
        return _plain_union(choices, definitions)
    return _tagged_union(
        {tag: _plain_union(group, definitions) for tag, group in groups.items()}, tuple(groups), "role"
    )


def _plain_union(choices: list[Schema], definitions: Mapping[str, Schema]) -> Schema:
    made = [cast("Schema", _rewrite(choice, definitions)) for choice in choices]
    if len(made) == 1:
        return made[0]
    return {
        "type": "union",
        "choices": made,
        "custom_error_type": NO_FORM,
        "custom_error_message": "fits none of the forms",
    }


def _tagged_union(choices: Mapping[str, Schema], tags: Iterable[str], key: str) -> Schema:
    return {"type": "tagged-union", "choices": dict(choices), "discriminator": _discriminator(frozenset(tags), key)}


def _tags(choice: Schema, definitions: Mapping[str, Schema], key: str) -> Iterator[str]:
    """The tags of the values that a choice may take."""
    schema = _unwrap(choice, definitions)
    kind = str(schema.get("type"))
    if kind == "literal":
        yield from dict.fromkeys(TAG + _kind_of(value) for value in as_list(schema["expected"]) or ())
    elif kind == "dict":
        yield f"{TAG}object"
    elif kind != "typed-dict":
        yield TAG + _KINDS.get(kind, "any")
    else:
        field = as_object((as_object(schema["fields"]) or {}).get(key))
        named = None if field is None else _unwrap(cast("Schema", field["schema"]), definitions)
        if field is None or named is None or named.get("type") != "literal":
            yield f"{TAG}object"
            return
        for value in as_list(named["expected"]) or ():
            yield f"{TAG}{key}={value}"
        if not field.get("required"):
            yield f"{TAG}object"


def _kind_of(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "str"
        case int() | float():
            return "number"
        case None:
            return "none"
        case _ if as_list(value) is not None:
            return "list"
        case _:
            return "object"


def _discriminator(tags: frozenset[str], key: str) -> Callable[[object], str | None]:
    def choose(value: object) -> str | None:
        members = as_object(value)
        if members is None:
            tag = TAG + _kind_of(value)
        else:
            named = members.get(key)
            tag = f"{TAG}{key}={named}" if isinstance(named, str) else f"{TAG}object"
            if tag not in tags:
                tag = f"{TAG}object"
        return tag if tag in tags else None

    return choose
