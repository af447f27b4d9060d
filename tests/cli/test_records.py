"""``contextbus remember``, ``forget``, ``allow`` and ``memories``; help and version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import EXAMPLES, ROOT, Command

import contextbus
from contextbus.cli.output import called
from contextbus_protocol.digests import digest_text

COMMANDS = (
    *(
        "compile",
        "up",
        "actor",
        "worker",
        "remember",
        "forget",
        "allow",
        "memories",
        "runs",
        "replay",
        "verify",
        "doctor",
    ),
)


@pytest.mark.broker
@pytest.mark.rule("D.K.24")
def test_records_are_stored_changed_listed_and_forgotten(command: Command) -> None:
    scope = ("--scope", "user_id=ada")
    first = command.json("remember", "Prefers an aisle seat.", *scope)
    changed = command.json("remember", "Prefers a window seat.", "--id", first["id"], *scope)
    assert (changed["id"], changed["revision"]) == (first["id"], 2)
    (record,) = command.json("memories", *scope)
    assert (record["recordId"], record["text"]) == (first["id"], "Prefers a window seat.")
    assert command.json("memories", "--scope", "user_id=bob") == []
    result = command("forget", first["id"], *scope)
    assert "2 revisions" in result.stdout
    assert "0 steps redacted" in result.stdout
    assert command.json("memories", *scope) == []


@pytest.mark.broker
@pytest.mark.rule("D.K.4")
def test_a_record_of_another_is_not_forgotten(command: Command) -> None:
    first = command.json("remember", "Prefers an aisle seat.", "--scope", "user_id=ada")
    assert "no record" in command("forget", first["id"], "--scope", "user_id=bob", code=1).stderr
    assert len(command.json("memories", "--scope", "user_id=ada")) == 1


@pytest.mark.broker
@pytest.mark.rule("D.K.24")
def test_a_text_is_remembered_once_for_a_scope_but_each_change_of_a_record_counts(command: Command) -> None:
    ada, bob = ("--scope", "user_id=ada"), ("--scope", "user_id=bob")
    first = command.json("remember", "Aisle.", *ada)
    assert command.json("remember", "Aisle.", *ada) == first
    assert command.json("remember", "Aisle.", *bob)["id"] != first["id"]
    revisions = [
        command.json("remember", text, "--id", first["id"], *ada)["revision"] for text in ("Window.", "Aisle.")
    ]
    assert revisions == [2, 3]
    (record,) = command.json("memories", *ada)
    assert record["text"] == "Aisle."


@pytest.mark.broker
@pytest.mark.rule("D.K.24")
def test_a_forgotten_text_is_remembered_again_once_it_is_allowed(command: Command) -> None:
    scope = ("--scope", "user_id=ada")
    first = command.json("remember", "Prefers an aisle seat.", *scope)
    gone = command.json("forget", first["id"], *scope)
    assert gone == {
        "id": first["id"],
        "revisions": 1,
        "sequence": gone["sequence"],
        "redacted": [],
        "summaries": [],
        "blobsErased": 0,
        "quotingMessages": 0,
        "quotingItems": 0,
    }
    assert command("remember", "Prefers an aisle seat.", *scope, code=1).stderr
    (digest,) = command.json("allow", "Prefers an aisle seat.")["digests"]
    again = command.json("remember", "Prefers an aisle seat.", *scope)
    assert again["id"] != first["id"]
    assert command.json("remember", "Prefers an aisle seat.", *scope) == again
    command("forget", again["id"], *scope)
    assert command.json("allow", "--id", again["id"])["digests"] == [digest]
    assert "1 text may be remembered again" in command("allow", "--digest", digest).stdout
    assert "was not forgotten" in command("allow", "--id", "m-1", code=1).stderr
    assert "sha256:" in command("allow", "--digest", "aisle", code=2).stderr
    third = command.json("remember", "Prefers an aisle seat.", *scope)
    assert third["id"] not in (first["id"], again["id"])


@pytest.mark.broker
@pytest.mark.rule("D.K.24")
def test_a_file_with_a_forgotten_line_is_taken_without_it(command: Command) -> None:
    ada, memories = ("--scope", "user_id=ada"), EXAMPLES / "memories.jsonl"
    first, *others = command.lines("remember", "--file", memories, *ada)
    command("forget", first["id"], *ada)
    again = command("remember", "--file", memories, *ada)
    way = f"to remember it again: contextbus allow --id {first['id']}"
    assert f"1 record was skipped; the reason: this text was forgotten; {way}" in again.stderr
    assert len(again.stdout.splitlines()) == len(others)
    compiled = command(
        "compile", EXAMPLES / "conversation.json", "--memories", memories, *ada, "-o", command.folder / "p.json"
    )
    assert way in compiled.stderr
    command("allow", "--id", first["id"])
    assert len(command.lines("remember", "--file", memories, *ada)) == len(others) + 1


@pytest.mark.broker
@pytest.mark.rule("D.K.24")
def test_a_forgotten_text_is_refused_for_everybody_and_allowed_only_if_it_was_forgotten(command: Command) -> None:
    first = command.json("remember", "Aisle.", "--scope", "user_id=ada")
    assert "none of these texts was forgotten" in command("allow", "Aisle.", code=1).stderr
    command("forget", first["id"], "--scope", "user_id=ada")
    refused = command("remember", "Aisle.", "--scope", "user_id=bob", code=1).stderr
    assert f"contextbus allow --digest {digest_text('Aisle.')}" in refused
    assert "all scopes" in " ".join(command("forget", "--help").stdout.split())
    said = command("allow", "Aisle.", "Window.")
    assert "1 text may be remembered again" in said.stdout
    assert "1 text named here was never forgotten" in said.stderr
    assert command.json("remember", "Aisle.", "--scope", "user_id=bob")


@pytest.mark.broker
def test_one_revision_is_no_plural(command: Command) -> None:
    first = command.json("remember", "Aisle.", "--scope", "user_id=ada")
    assert "1 revision erased" in command("forget", first["id"], "--scope", "user_id=ada").stdout


@pytest.mark.broker
def test_a_file_is_remembered_once(command: Command) -> None:
    asked = ("remember", "--file", EXAMPLES / "memories.jsonl", "--scope", "user_id=ada")
    assert command.lines(*asked) == command.lines(*asked)
    assert "aisle" not in command("memories", "--scope", "user_id=ada").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("remember", "x"), "--scope"),
        (("remember", "--scope", "user_id=ada"), "TEXT"),
        (("remember", "x", "--file", "y", "--scope", "user_id=ada"), "--file"),
        (("memories",), "--scope"),
        (("forget", "x"), "--scope"),
        (("allow",), "TEXT"),
    ],
)
def test_nobody_is_no_scope(command: Command, arguments: tuple[str, ...], words: str) -> None:
    assert words in command(*arguments, code=2).stderr
    assert not command.data.exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(command: Command, name: str) -> None:
    said = command(name, "--help").stdout
    assert f"contextbus {name}" in said
    assert "Example" in said
    assert "--json" in said


@pytest.mark.parametrize(
    ("argument", "on_path", "expected"),
    [
        ("/venv/bin/contextbus", True, "contextbus"),
        ("/my venv/bin/contextbus", False, "'/my venv/bin/contextbus'"),
        ("/site/contextbus/__main__.py", True, f"{sys.executable} -m contextbus"),
        ("/venv/bin/pytest", False, "contextbus"),
    ],
)
def test_hints_name_the_command_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argument: str, expected: str, *, on_path: bool
) -> None:
    if on_path:
        (tmp_path / "contextbus").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [argument])
    assert called() == expected


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "contextbus", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'actors'}{os.pathsep}{ROOT / 'protocol'}"},
    )
    assert done.stdout.split() == ["contextbus", contextbus.__version__]
