"""The files around the code: examples, Makefile, CI run, changelog."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# Addresses of registries belong to the machine that installs, never to the project.
REGISTRIES = re.compile(
    r"(?:files\.pythonhosted|pypi|test\.pypi)\.org|registry\.npmjs|registry\.yarnpkg|proxy\.golang"
    r"|artifactory|nexus\.|devpi|--(?:extra-)?index-url[ =]|--find-links[ =]"
)
HOMES = re.compile(r"(?<![\w.])/(?:home|Users|root|work|opt/pypi)/\w")


def read_json(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    return read


def tracked() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: an unpacked sdist has no list of tracked files")
    listing = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def test_runbooks_are_a_dozen_documents_of_one_to_two_kilobytes() -> None:
    runbooks = sorted((EXAMPLES / "runbooks").glob("*.md"))
    assert len(runbooks) == 12
    for path in runbooks:
        assert path.read_text(encoding="utf-8").startswith("# "), path.name
        assert 1000 <= path.stat().st_size <= 2048, path.name


def test_openai_conversation_answers_every_call_and_ends_with_a_question() -> None:
    messages = read_json("conversation.json")["messages"]
    asked: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == asked.pop(0)
            continue
        assert asked == [], "a tool result is missing"
        for call in message.get("tool_calls", ()):
            json.loads(call["function"]["arguments"])
            asked.append(call["id"])
    assert messages[0]["role"] == "system"
    assert messages[-1]["role"] == "user"
    assert messages[-1]["content"].endswith("?")


def test_anthropic_conversation_answers_every_call_and_ends_with_a_question() -> None:
    conversation = read_json("conversation-anthropic.json")
    assert conversation["system"]
    asked: list[str] = []
    roles: list[str] = []
    for message in conversation["messages"]:
        roles.append(message["role"])
        content: list[dict[str, Any]] | str = message["content"]
        blocks = [] if isinstance(content, str) else content
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert answered == asked
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert conversation["messages"][-1]["content"].endswith("?")


def test_memories_are_one_record_a_line() -> None:
    lines = (EXAMPLES / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 6
    assert all(set(record) == {"text"} and record["text"] for record in records)


def test_working_memory_has_its_active_task_in_the_list() -> None:
    memory = read_json("working-memory.json")
    tasks = memory["tasks"]["list"]["tasks"]
    assert memory["goal"]
    assert memory["constraints"]
    assert memory["tasks"]["activeTaskId"] in [task["id"] for task in tasks]
    assert {task["status"] for task in tasks} <= {"pending", "in_progress", "done", "failed"}


def test_the_question_can_be_answered_from_the_runbooks() -> None:
    rollbacks = (EXAMPLES / "runbooks" / "rollbacks.md").read_text(encoding="utf-8")
    for fact in ("shipctl jobs pause billing-invoices", "schema diff billing", "On a Friday"):
        assert fact in rollbacks


def test_no_tracked_file_names_a_registry_or_a_place_of_one_machine() -> None:
    found: list[str] = []
    for path in tracked():
        if path == Path(__file__):  # holds the patterns themselves
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}: {match.group()}"
            for pattern in (REGISTRIES, HOMES)
            for match in pattern.finditer(text)
        ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "--extra-index-url https://example.org",
        "https://files.python" + "hosted.org/x",
        "see /home/ada/x",
        "'/root/x'",
    ],
)
def test_the_patterns_find_what_they_look_for(text: str) -> None:
    assert REGISTRIES.search(text) or HOMES.search(text)


@pytest.mark.parametrize("target", ["demo", "test", "lint", "lock", "clean", "help", "cluster"])
def test_make_knows_the_target_and_help_lists_it(target: str) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not on this machine")
    subprocess.run([make, "--dry-run", target], cwd=ROOT, check=True, capture_output=True)
    listing = subprocess.run([make, "-s", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert f"make {target} " in listing.stdout


def test_the_demo_reads_files_that_exist() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"examples/[\w./-]+", recipe))
    assert len(named) == 4
    assert all((ROOT / name).exists() for name in named)


def test_ci_ends_with_the_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip().splitlines()
    assert "set -euo pipefail" in script
    assert script[-1].startswith("make ")
    assert " test " in script[-1]
    bash = shutil.which("bash")
    if bash is not None:
        subprocess.run([bash, "-n", str(ROOT / ".ci" / "run")], check=True)


def test_changelog_explains_replay_and_has_the_section() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text
    assert "### Replay" in text
    assert "policy version" in text
