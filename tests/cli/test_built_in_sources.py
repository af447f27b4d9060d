"""``--skills`` and ``--transcript``: sources that are built in, in a step and behind a worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Command

MODEL = ("--model", "anthropic/claude-opus-4-6", "--context-window", "200000", "--max-output-tokens", "8000")


@pytest.fixture
def skills(command: Command) -> Path:
    folder = command.folder / "skills"
    for name, text in {
        "rollback": "---\nname: Roll back\ndescription: How billing is rolled back.\n---\nSECRET STEPS\n",
        "broken": "no front matter\n",
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "SKILL.md").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def chat(command: Command) -> Path:
    return write_chat(command.folder / "chat.json", "How do we roll back billing?")


def write_chat(path: Path, text: str) -> Path:
    path.write_text(json.dumps({"messages": [{"role": "user", "content": text}]}), encoding="utf-8")
    return path


def compiled(command: Command, chat: Path, *more: object) -> Any:
    return command.json("compile", chat, *MODEL, "--no-memory", "-o", command.folder / "p.json", *more)


def selected(said: Any) -> dict[str, str]:
    return {entry["recordId"]: entry["kind"] for entry in said["manifest"]["entries"] if entry["selected"]}


@pytest.mark.broker
@pytest.mark.rule("D.K.13", "D.K.14", "D.K.15")
def test_a_step_is_offered_catalog_lines_and_no_bodies(command: Command, chat: Path, skills: Path) -> None:
    said = compiled(command, chat, "--skills", skills)
    assert selected(said) == {"rollback": "skills"}
    payload = (command.folder / "p.json").read_text(encoding="utf-8")
    assert "Roll back (rollback): How billing is rolled back." in payload
    assert "SECRET" not in payload


@pytest.mark.broker
def test_a_skill_that_cannot_be_used_is_a_warning_with_its_fix(command: Command, chat: Path, skills: Path) -> None:
    result = command("compile", chat, *MODEL, "--skills", skills, "-o", command.folder / "p.json")
    assert "broken/SKILL.md is no usable skill: it must begin with a line ---" in " ".join(result.stderr.split())


@pytest.mark.broker
@pytest.mark.rule("D.K.12", "D.K.25")
def test_a_step_is_offered_what_earlier_runs_of_its_scope_said(command: Command, chat: Path) -> None:
    earlier = write_chat(command.folder / "earlier.json", "Billing was rolled back on Friday.")
    compiled(command, earlier, "--run", "earlier", "--scope", "user_id=ada")
    compiled(command, earlier, "--run", "of-bob", "--scope", "user_id=bob")
    said = compiled(command, chat, "--run", "now", "--scope", "user_id=ada", "--transcript")
    assert selected(said) == {"earlier/0": "transcript"}
    assert "user: Billing was rolled back on Friday." in (command.folder / "p.json").read_text(encoding="utf-8")
    assert selected(compiled(command, chat, "--run", "other", "--scope", "user_id=ada")) == {}


@pytest.mark.parametrize("asked", [("compile",), ("up",), ("worker",)])
def test_a_folder_without_skills_is_refused_with_the_fix(command: Command, chat: Path, asked: tuple[str, ...]) -> None:
    started = (*asked, chat) if asked == ("compile",) else asked
    assert "check the path given to --skills" in command(*started, "--skills", "nowhere", code=2).stderr
    (command.folder / "empty").mkdir()
    refused = command(*started, "--skills", command.folder / "empty", code=2).stderr
    assert "each have a SKILL.md" in " ".join(refused.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--memory", "--transcript", "--id", "x"),
        ("--skills", "skills", "--memory", "--id", "x"),
        ("--skills", "skills", "--docs", "docs", "--id", "x"),
    ],
)
def test_one_id_is_for_one_source(command: Command, arguments: tuple[str, ...]) -> None:
    assert "--id names one built-in source" in " ".join(command("worker", *arguments, code=2).stderr.split())


@pytest.mark.timeout(120)
@pytest.mark.broker
def test_a_service_and_workers_serve_both(command: Command, chat: Path, skills: Path) -> None:
    with command.running("up", "--no-memory", "--skills", skills) as (_, up):
        assert up["sources"] == ["skills", "transcript"]
        remote = ("--actors", "remote", "--scope", "user_id=ada", "--transcript", "--source", "skills")
        compiled(command, write_chat(command.folder / "a.json", "Billing again?"), *remote, "--run", "a")
        said = compiled(command, chat, *remote, "--run", "b")
        assert not said["warnings"]
        assert selected(said) == {"rollback": "skills", "a/0": "transcript"}
    with (
        command.running("up", "--no-memory", "--no-transcript") as (_, up),
        command.running("worker", "--skills", skills, "--id", "abilities") as (_, abilities),
        command.running("worker", "--transcript") as (_, transcript),
    ):
        assert up["sources"] == []
        assert abilities["sources"] == ["abilities"]
        assert transcript["sources"] == ["transcript"]
        remote = ("--actors", "remote", "--scope", "user_id=ada", "--transcript", "--source", "abilities:skills")
        said = compiled(command, chat, *remote, "--run", "c")
        assert selected(said) == {"rollback": "skills", "a/0": "transcript"}
