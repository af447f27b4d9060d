"""The formats are frozen: what is committed in docs/protocol is what the code reads and writes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.protocol import schemas
from tests.protocol.schemas import TYPES, breaking_changes, make_schemas, read_schema, render

SCHEMAS = make_schemas()


@pytest.mark.parametrize("name", TYPES)
def test_the_committed_schema_is_that_of_the_code(name: str) -> None:
    breaks = breaking_changes(read_schema(name), SCHEMAS[name])
    assert not breaks, f"recorded runs and running peers would break: {breaks}"
    path = schemas.FOLDER / f"{name}.schema.json"
    assert path.read_text(encoding="utf-8") == render(SCHEMAS[name]), (
        "the protocol grew: run python -m tests.protocol.schemas, then commit docs/protocol"
    )


def test_every_committed_schema_belongs_to_a_type() -> None:
    assert {p.name for p in schemas.FOLDER.glob("*.schema.json")} == {f"{name}.schema.json" for name in TYPES}


def changed(change: str) -> dict[str, Any]:
    """The events with one change to call-failed."""
    schema = copy.deepcopy(SCHEMAS["events"])
    event = schema["$defs"]["CallFailed"]
    match change:
        case "field removed":
            del event["properties"]["status"]
            event["required"].remove("status")
        case "field retyped":
            event["properties"]["step"] = {"type": "string"}
        case "word removed":
            event["properties"]["status"]["enum"].remove("overflow")
        case "field demanded":
            event["properties"]["why"] = {"type": "string"}
            event["required"].append("why")
        case "event removed":
            del schema["$defs"]["CallFailed"]
        case "tag changed":
            event["properties"]["type"]["enum"] = ["call-broken"]
        case "field added":
            event["properties"]["why"] = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
        case "word added":
            event["properties"]["status"]["enum"].append("late")
        case "type widened":
            event["properties"]["step"] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        case "event added":
            schema["$defs"]["CallForgotten"] = copy.deepcopy(event)
        case _:
            raise AssertionError(change)
    return schema


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("field removed", "CallFailed.status: removed"),
        ("field retyped", "CallFailed.step: retyped"),
        ("word removed", "CallFailed.status: retyped"),
        ("field demanded", "CallFailed.why: required now"),
        ("event removed", "CallFailed: removed"),
        ("tag changed", "CallFailed.type: retyped"),
    ],
)
def test_what_breaks_readers_is_named(change: str, named: str) -> None:
    assert breaking_changes(SCHEMAS["events"], changed(change)) == [named]


@pytest.mark.parametrize("change", ["field added", "word added", "type widened", "event added"])
def test_what_only_adds_breaks_nobody(change: str) -> None:
    assert breaking_changes(SCHEMAS["events"], changed(change)) == []


def test_drift_is_found_by_the_command_and_repaired_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schemas, "FOLDER", tmp_path)
    assert schemas.main(["--check"]) == 1
    assert schemas.main([]) == 0
    assert schemas.main(["--check"]) == 0
    (tmp_path / "events.schema.json").write_text(render(changed("field added")), encoding="utf-8")
    capsys.readouterr()
    assert schemas.main(["--check"]) == 1
    assert "events: BREAKING CallFailed.why: removed" in capsys.readouterr().out
