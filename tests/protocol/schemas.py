"""JSON Schemas of what crosses the bus and of what is stored; docs/protocol/*.schema.json holds them.

``python -m tests.protocol.schemas`` writes the files, ``--check`` says what changed and whether it breaks readers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from contextbus_protocol.blobs import RedactedOutput, StepFacts, StepInput, StepOutput
from contextbus_protocol.codec import COMMIT_VERSION
from contextbus_protocol.compiler_state import ContextCompilerState
from contextbus_protocol.events import AnyEvent, Commit
from contextbus_protocol.memory_records import MemoryRecord
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.package import Package
from contextbus_protocol.working_memory import WorkingMemoryPatch, WorkingMemorySnapshot

FOLDER: Final = Path(__file__).parents[2] / "docs" / "protocol"
TYPES: Final[Mapping[str, Any]] = {
    "messages": AnyMessage,
    "events": AnyEvent,
    "commit": Commit,
    "blobs": StepInput | StepOutput | StepFacts | RedactedOutput,
    "package": Package,
    "working-memory": WorkingMemorySnapshot,
    "working-memory-patch": WorkingMemoryPatch,
    "memory-record": MemoryRecord,
    "compiler-state": ContextCompilerState,
}

Schema = dict[str, Any]

_QUALIFIED: Final = re.compile(r"contextbus_protocol\.(?P<module>\w+)\.(?P<name>\w+)")


def make_schemas() -> dict[str, Schema]:
    """The schemas of this code, by name."""
    made: dict[str, Schema] = {}
    for name, type_ in TYPES.items():
        # Blobs have no tag of their own: each is named by what refers to it.
        members = type_.__args__ if name == "blobs" else (type_,)
        schemas, components = msgspec.json.schema_components(
            members, schema_hook=_describe_raw, ref_template="#/$defs/{name}"
        )
        root: Schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"contextbus {name}, commit version {COMMIT_VERSION}",
            **root,
            "$defs": components,
        }
        made[name] = json.loads(_name_by_kind(json.dumps(schema)))  # tuples become lists, as in the file
    return made


def _name_by_kind(schema: str) -> str:
    """Tell an event from a message of its name by that word: where a class lives is nobody's business outside."""

    def name(found: re.Match[str]) -> str:
        return found["name"] + ("Event" if found["module"] == "events" else "")

    names = {found[0]: name(found) for found in _QUALIFIED.finditer(schema)}
    if len(set(names.values())) < len(names):
        raise ValueError(f"two types share a name: {sorted(names)}")
    return _QUALIFIED.sub(name, schema)


def _describe_raw(type_: type) -> Schema:
    if type_ is msgspec.Raw:
        return {"description": "JSON of its own, kept byte for byte"}
    raise NotImplementedError(type_)


def render(schema: Schema) -> str:
    """The file of a schema."""
    return json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def read_schema(name: str) -> Schema:
    """The schema that is committed; empty when there is none."""
    path = FOLDER / f"{name}.schema.json"
    return cast("Schema", json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def breaking_changes(old: Schema, new: Schema) -> list[str]:
    """What in ``new`` breaks readers or writers of ``old``: something is gone, has another type, or is demanded."""
    return list(_breaks(old.get("$defs", {}), new.get("$defs", {}), "")) if old else []


def _breaks(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            yield f"{path}{name}: removed"
            continue
        yield from _breaks_in_struct(before, after, f"{path}{name}")


def _breaks_in_struct(before: Schema, after: Schema, path: str) -> Iterator[str]:
    if "enum" in before or "enum" in after:
        for gone in (value for value in before.get("enum", ()) if value not in after.get("enum", ())):
            yield f"{path}: value {gone!r} removed"
        return
    fields, others = before.get("properties", {}), after.get("properties", {})
    for name, field in fields.items():
        if name not in others:
            yield f"{path}.{name}: removed"
        elif not _accepts(others[name], field):
            yield f"{path}.{name}: retyped"
        elif field.get("default", _NO_DEFAULT) != others[name].get("default", _NO_DEFAULT):
            yield f"{path}.{name}: another default"
    for name in after.get("required", ()):
        if name not in before.get("required", ()):
            yield f"{path}.{name}: required now"
    for name in before.get("required", ()):
        if name in others and name not in after.get("required", ()) and name not in fields.keys() - others.keys():
            yield f"{path}.{name}: no longer sent always"


_NO_DEFAULT: Final = object()
_NOTES: Final = ("description", "title", "default")


def _accepts(new: Schema, old: Schema) -> bool:
    """Whether all that the old schema of a field allows is allowed by the new one."""
    one, other = ({k: v for k, v in schema.items() if k not in _NOTES} for schema in (old, new))
    if one == other:
        return True
    if "anyOf" in other:
        alternatives = cast("list[Schema]", other["anyOf"])
        given = cast("list[Schema]", one.get("anyOf", [one]))
        return all(any(_accepts(a, o) for a in alternatives) for o in given)
    if "enum" in one and "enum" in other:
        return set(one["enum"]) <= set(other["enum"])
    if one.get("type") == other.get("type") == "array":
        return _accepts(other.get("items", {}), one.get("items", {}))
    return False


def main(arguments: list[str]) -> int:
    """Write the schemas, or with ``--check`` compare them."""
    changed = 0
    for name, schema in make_schemas().items():
        text = render(schema)
        path = FOLDER / f"{name}.schema.json"
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if text == old:
            continue
        changed += 1
        breaks = breaking_changes(read_schema(name), schema)
        for line in breaks:
            print(f"{name}: BREAKING {line}")  # noqa: T201  (a command line)
        if "--check" in arguments:
            print(f"{name}: differs; python -m tests.protocol.schemas writes it")  # noqa: T201  (a command line)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{name}: written")  # noqa: T201  (a command line)
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
