"""``contextbus compile`` step after step: what continues a run, what is asked again, and what the user is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import EXAMPLES, Command

QUESTION: dict[str, Any] = {"role": "user", "content": "How do I roll back a deploy?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "See the runbook."}
NEXT: dict[str, Any] = {"role": "user", "content": "And what about billing?"}


def write(command: Command, *messages: dict[str, Any], name: str = "chat.json", **fields: object) -> Path:
    path = command.folder / name
    path.write_text(json.dumps({"messages": messages, **fields}), encoding="utf-8")
    return path


def compile_step(command: Command, chat: Path, *more: object) -> Any:
    return command.json(
        *("compile", chat, "--run", "r1", "--docs", EXAMPLES / "runbooks", "-o", command.folder / "p.json", *more)
    )


def placed(command: Command) -> list[str]:
    """The messages of the payload, as what they are about."""
    messages: list[dict[str, Any]] = json.loads((command.folder / "p.json").read_bytes())["messages"]
    return ["block" if "rollbacks.md" in str(m["content"]) else str(m["content"]) for m in messages]


@pytest.mark.broker
@pytest.mark.rule("D.F.13", "D.R.4")
def test_a_file_that_goes_on_with_the_answer_keeps_what_was_retrieved(command: Command) -> None:
    compile_step(command, write(command, QUESTION))
    assert "+8 open" in command("replay", "r1").stdout
    said = compile_step(command, write(command, QUESTION, ANSWER, NEXT))
    assert said["step"] == 1
    assert "step 0 is taken as answered: the file goes on with its answer" in said["notes"]
    assert placed(command) == [QUESTION["content"], "block", ANSWER["content"], NEXT["content"]]
    commits = command.json("replay", "r1")["commits"]
    assert [(c["placed"], c["open"]) for c in commits] == [(0, 8), (8, 0), (8, 0)]
    assert command.json("verify", "r1")["clean"]


@pytest.mark.broker
@pytest.mark.rule("D.F.13")
@pytest.mark.parametrize(
    ("previous", "words", "joins"),
    [
        ("succeeded", "step 0 is reported as succeeded", True),
        ("failed", "step 0 is reported as failed", False),
        ("cancelled", "step 0 is reported as cancelled", False),
        ("ignore", "", False),
    ],
)
def test_how_the_last_call_went_can_be_said(command: Command, previous: str, words: str, joins: bool) -> None:
    compile_step(command, write(command, QUESTION))
    said = compile_step(command, write(command, QUESTION, ANSWER, NEXT), "--previous", previous)
    assert ("block" in placed(command)) is joins
    assert any(words in note for note in said["notes"])
    assert not any("taken as answered" in note for note in said["notes"])


@pytest.mark.broker
def test_a_file_that_goes_on_otherwise_is_not_taken_as_an_answer(command: Command) -> None:
    compile_step(command, write(command, QUESTION))
    said = compile_step(command, write(command, QUESTION, NEXT))
    assert any("step 0 is still open: --previous" in note for note in said["notes"])
    other = compile_step(command, write(command, NEXT, ANSWER, QUESTION))
    assert not any("taken as answered" in note for note in other["notes"])
    new = command.json(
        "compile", write(command, QUESTION), "--previous", "failed", "-o", command.folder / "q.json", "--no-memory"
    )
    assert "no step of the run is open; --previous failed changed nothing" in new["notes"]


@pytest.mark.broker
@pytest.mark.rule("D.G.5")
def test_sources_are_asked_again_on_request_and_the_report_says_when_they_were_not(command: Command) -> None:
    first = compile_step(command, write(command, QUESTION))
    assert first["query"] == QUESTION["content"]
    longer = write(command, QUESTION, ANSWER, NEXT)
    second = compile_step(command, longer)
    assert second["query"] is None
    assert (
        "the sources were not asked: nothing was due since step 0; --refresh asks the sources again" in second["notes"]
    )
    third = compile_step(command, longer, "--refresh")
    assert (third["query"], third["manifest"]["refresh"]) == (NEXT["content"], "host-request")
    assert not any("not asked" in note for note in third["notes"])


@pytest.mark.broker
@pytest.mark.rule("D.G.16")
def test_the_query_and_the_repairs_are_shown(command: Command) -> None:
    orphan = {"role": "tool", "tool_call_id": "gone", "content": "42"}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    long = {"role": "user", "content": "rollback\n" * 100}
    chat = write(command, QUESTION, orphan, asking, long)
    asked = ("compile", chat, "--working-memory", EXAMPLES / "working-memory.json", "-o", command.folder / "p.json")
    said = command.json(*asked)
    assert said["repairs"] == {"missing-result": 1, "orphan-result": 1}
    title, _, text = said["query"].partition("\n")
    assert title.startswith("Roll billing back")
    assert text.startswith("rollback\nrollback")
    shown = command(*asked).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("query ")]
    assert line.startswith(f"query {title} rollback rollback")
    assert line.endswith("…")
    assert "missing-result x1, orphan-result x1" in shown


@pytest.mark.broker
@pytest.mark.parametrize(
    ("fields", "provider", "window", "most"),
    [
        ({"model": "gpt-4o-2024-08-06"}, "openai", 128_000, 16_384),
        ({"model": "gpt-4.1-mini", "max_tokens": 900}, "openai", 1_047_576, 900),
        ({"model": "gpt-5-mini"}, "openai", 400_000, 128_000),
        ({"model": "claude-sonnet-4-5", "max_tokens": 1000}, "anthropic", 200_000, 1000),
        ({"model": "claude-opus-4-1-20250805"}, "anthropic", 200_000, 32_000),
        ({"model": "claude-3-5-haiku-latest"}, "anthropic", 200_000, 8_192),
    ],
)
def test_the_model_of_the_file_is_meant(
    command: Command, fields: dict[str, object], provider: str, window: int, most: int
) -> None:
    chat = command.folder / "chat.json"
    chat.write_text(json.dumps({**fields, "messages": [QUESTION]}), encoding="utf-8")
    said = command.json("compile", chat, "--no-memory", "-o", command.folder / "p.json")
    assert said["model"] == {
        "provider": provider,
        "modelId": fields["model"],
        "contextWindow": window,
        "maxOutputTokens": most,
    }
    assert said["target"] == provider
    assert not any("assumed" in note for note in said["notes"])


@pytest.mark.broker
def test_a_model_that_is_not_known_is_said(command: Command) -> None:
    chat = write(command, QUESTION, model="llama-3", max_tokens=100)
    asked = ("compile", chat, "--no-memory", "-o", command.folder / "p.json")
    said = command.json(*asked)
    assert said["model"]["provider"] == "openai"
    (note,) = said["notes"]
    assert f"context window assumed ({said['model']['contextWindow']:,})" in note
    assert "--context-window and --max-output-tokens" in note
    named = command.json(*asked, "--model", "mistral/large", "--context-window", 9000, "--max-output-tokens", 500)
    assert (named["model"]["provider"], named["model"]["maxOutputTokens"], named["notes"]) == ("mistral", 500, [])


@pytest.mark.broker
def test_each_conversation_of_a_file_has_its_own_model(command: Command) -> None:
    lines = [json.dumps({"model": model, "messages": [QUESTION]}) for model in ("gpt-4o", "claude-sonnet-4-5")]
    chats = command.folder / "chats.jsonl"
    chats.write_text("\n".join(lines), encoding="utf-8")
    said = command.lines("compile", chats, "--all", "--no-memory")
    assert [s["model"]["modelId"] for s in said] == ["gpt-4o", "claude-sonnet-4-5"]
    assert [s["target"] for s in said] == ["openai", "anthropic"]


@pytest.mark.broker
def test_a_history_that_the_model_does_not_take_is_a_warning(command: Command) -> None:
    chat = write(command, {"role": "user", "content": "many words " * 500})
    result = command(
        *("compile", chat, "--context-window", 600, "--max-output-tokens", 100, "--no-memory", "--json"),
        *("-o", command.folder / "p.json"),
    )
    (warning,) = json.loads(result.stdout)["warnings"]
    assert warning["code"] == "history-too-large"
    assert "warning: history-too-large" in result.stderr
    assert "--context-window" in result.stderr


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_stored(command: Command) -> None:
    chat = write(command, QUESTION)
    assert "there is no folder" in command("compile", chat, "-o", command.folder / "no" / "p.json", code=2).stderr
    assert "is a folder" in command("compile", chat, "-o", command.folder, code=2).stderr
    assert not command.data.exists()


@pytest.mark.broker
def test_what_a_source_of_ones_own_raised_is_shown_on_request(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = command.folder / "mine.py"
    mine.write_text(
        "from contextbus.client import source\n"
        "@source(id='mine', kind='rag')\nasync def mine(query):\n    raise ValueError('the cause')\n",
        encoding="utf-8",
    )
    asked = ("compile", write(command, QUESTION), "--worker", mine, "--no-memory", "-o", command.folder / "p.json")
    result = command(*asked)
    assert "the cause" not in result.output
    assert "CONTEXTBUS_DEBUG=1" in result.stderr
    monkeypatch.setenv("CONTEXTBUS_DEBUG", "1")
    shown = command(*asked, "--run", "other").stderr
    assert "ValueError: the cause" in shown
    assert "mine.py" in shown
    assert "answers.py" not in shown
