"""``contextbus compile``: the main job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import EXAMPLES, Command
from tests.core.checkers import CHECKERS, errors
from tests.core.session_checks import SESSIONS
from tests.validation.bodies import RIGHT

from contextbus.cli.models import Target

CONVERSATIONS = ("conversation.json", "conversation-anthropic.json")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "How do I roll back a deploy?"}]}


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.broker
@pytest.mark.parametrize("target", ["anthropic", "openai"])
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.rule("P.A.2", "D.D.2")
def test_the_examples_become_a_request_that_the_provider_takes(command: Command, name: str, target: str) -> None:
    output = command.folder / "payload.json"
    said = command.json(
        *("compile", EXAMPLES / name, "--target", target, "--output", output),
        *("--docs", EXAMPLES / "runbooks", "--memories", EXAMPLES / "memories.jsonl"),
        *("--working-memory", EXAMPLES / "working-memory.json", "--scope", "user_id=ada"),
    )
    body = json.loads(output.read_bytes())
    assert not errors(CHECKERS[target](body))
    assert said["payload"] == str(output)
    assert said["target"] == target == said["model"]["provider"]
    assert said["durability"] == "fsync"
    assert said["scope"] == {"userId": "ada"}
    assert not said["warnings"]
    chosen = [e for e in said["manifest"]["entries"] if e["selected"]]
    assert {e["source"] for e in chosen} == {"working-memory", "memory", "docs"}
    for kind in ("working-memory", "memory", "rag"):
        assert said["tokens"][kind] == sum(e["tokens"] for e in chosen if e["kind"] == kind) > 0
    assert [b["placement"] for b in said["blocks"]] == ["append", "ephemeral-tail"]
    text = json.dumps(body)
    assert "rollback" in text
    assert "took over billing" in text
    verdict = command.json("verify", said["run"])
    assert verdict == {"run": said["run"], "clean": True, "steps": 1, "redacted": 0, "checks": []}


@pytest.mark.broker
@pytest.mark.rule("P.E.9")
def test_a_conversation_of_the_ai_sdk_is_compiled_for_chat_completions(command: Command) -> None:
    call = {"type": "tool-call", "toolCallId": "a", "toolName": "deploys", "input": {"service": "billing"}}
    output = {"type": "json", "value": {"running": False}}
    messages = [
        *CHAT["messages"],
        {"role": "assistant", "content": [call]},
        {
            "role": "tool",
            "content": [{"type": "tool-result", "toolCallId": "a", "toolName": "deploys", "output": output}],
        },
    ]
    file = write(command.folder, "ai-sdk.json", {"system": "be brief", "messages": messages})
    said = command.json("compile", file, "--output", command.folder / "payload.json")
    assert said["target"] == "openai" == said["model"]["provider"]
    body = json.loads((command.folder / "payload.json").read_bytes())
    assert not errors(CHECKERS["openai"](body))
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][3]["content"] == '{"running":false}'


DEFAULTS = [
    ("claude_code.jsonl", "anthropic", "anthropic", "claude-test-1"),
    ("codex.jsonl", "openai-responses", "openai", "gpt-test-1"),
    ("anthropic", "anthropic", "anthropic", "claude-opus-4-6"),
    ("openai", "openai", "openai", "gpt-5"),
    ("openai-responses", "openai-responses", "openai", "gpt-5"),
    ("gemini", "gemini", "google", "gemini-2.5-pro"),
]


def conversation_file(command: Command, name: str) -> Path:
    """A session of an agent, or a request of an API."""
    return SESSIONS / name if name.endswith(".jsonl") else write(command.folder, "request.json", RIGHT[name])


@pytest.mark.broker
@pytest.mark.rule("P.A.2", "P.E.1", "P.E.9")
@pytest.mark.parametrize(("name", "target", "provider", "model"), DEFAULTS)
def test_a_file_of_every_form_becomes_a_request_of_its_own_api(
    command: Command, name: str, target: str, provider: str, model: str
) -> None:
    output = command.folder / "payload.json"
    said = command.json("compile", conversation_file(command, name), "--output", output)
    assert said["target"] == target
    assert (said["model"]["provider"], said["model"]["modelId"]) == (provider, model)
    told = command.validate(output, "--target", target)
    assert (told["errors"], told["layers"]) == (0, {"rules": True, "types": True})
    text = command("compile", conversation_file(command, name), "--output", "-")
    assert json.loads(text.stdout) == json.loads(output.read_bytes())


@pytest.mark.broker
@pytest.mark.rule("P.A.2", "P.E.1", "P.E.9")
@pytest.mark.parametrize("name", ["claude_code.jsonl", "codex.jsonl", "gemini"])
def test_one_conversation_becomes_a_request_of_each_api(command: Command, name: str) -> None:
    file, output = conversation_file(command, name), command.folder / "payload.json"
    for target in Target:
        assert command.json("compile", file, "--target", target, "--output", output)["target"] == target
        assert command.validate(output, "--target", target)["errors"] == 0


@pytest.mark.broker
@pytest.mark.rule("P.E.9")
def test_a_session_that_was_cut_in_its_last_line_is_compiled(command: Command) -> None:
    text = (SESSIONS / "codex.jsonl").read_text(encoding="utf-8")
    output = command.folder / "payload.json"
    said = command.json("compile", write(command.folder, "cut.jsonl", text[:-40]), "--output", output)
    assert said["target"] == "openai-responses"
    assert command.validate(output)["target"] == "openai-responses"
    lines = text.splitlines()
    broken = write(command.folder, "broken.jsonl", "\n".join([*lines[:2], "{", *lines[2:]]))
    assert "line 3: not JSON" in command("compile", broken, code=2).stderr


@pytest.mark.broker
def test_the_report_says_what_was_chosen_and_how_to_check_it(command: Command) -> None:
    output = command.folder / "p.json"
    result = command(
        "compile", EXAMPLES / "conversation.json", "--docs", EXAMPLES / "runbooks", "--run", "r1", "-o", output
    )
    for words in ("budget", "manifest", "rollbacks.md#0", "ranked", "blocks placed", "sha256:", "sequence", "fsync"):
        assert words in result.stdout
    assert f"contextbus replay r1 --data {command.data}" in result.stdout
    assert f"contextbus verify r1 --data {command.data}" in result.stdout
    assert "user_id=local" in result.stdout


@pytest.mark.broker
@pytest.mark.rule("D.K.24", "D.R.7")
def test_the_same_again_has_no_second_effect(command: Command) -> None:
    asked = ("compile", EXAMPLES / "conversation.json", "--run", "r1", "--memories", EXAMPLES / "memories.jsonl")
    first = command.json(*asked, "-o", command.folder / "a.json")
    again = command.json(*asked, "-o", command.folder / "b.json")
    assert (again["sequence"], again["package"], again["stored"]) == (first["sequence"], first["package"], True)
    assert again["durability"] == "fsync"
    assert (command.folder / "a.json").read_bytes() == (command.folder / "b.json").read_bytes()
    lines = (EXAMPLES / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(command.json("memories", "--scope", "user_id=local")) == len(lines)


@pytest.mark.broker
@pytest.mark.rule("D.K.3")
def test_a_run_keeps_its_scope(command: Command) -> None:
    chat = write(command.folder, "chat.json", CHAT)
    command("compile", chat, "--run", "r1", "--scope", "user_id=ada", "-o", command.folder / "p.json")
    result = command("compile", chat, "--run", "r1", "--scope", "user_id=bob", "-o", command.folder / "q.json", code=2)
    assert "user_id" in result.stderr
    assert not (command.folder / "q.json").exists()


@pytest.mark.broker
def test_a_conversation_that_the_assistant_ends_is_compiled(command: Command) -> None:
    ended = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "See the runbook."}]}
    chat = write(command.folder, "chat.json", ended)
    result = command("compile", chat, "--docs", EXAMPLES / "runbooks", "--target", "anthropic", "-o", "-")
    body = json.loads(result.stdout)
    assert not errors(CHECKERS["anthropic"](body))
    assert "manifest" in result.stderr


@pytest.mark.broker
def test_every_conversation_of_a_file_becomes_a_run(command: Command) -> None:
    documents = "\n".join(
        json.dumps({"id": str(n), "title": f"Rule {n}", "text": f"Rule {n} about deploys and rollbacks."})
        for n in range(3)
    )
    docs = write(command.folder, "documents.jsonl", documents)
    (command.folder / "sub").mkdir()
    write(command.folder / "sub", "documents.jsonl", json.dumps({"id": "other", "text": "deploys elsewhere"}))
    chats = write(command.folder, "chats.jsonl", "\n".join(json.dumps({"id": f"chat {n}", **CHAT}) for n in range(4)))
    output = command.folder / "out"
    said = command.lines("compile", chats, "--all", "--docs", docs, "--run", "batch", "-o", output)
    assert [s["run"] for s in said] == [f"batch-chat-{n}" for n in range(4)]
    assert sorted(p.name for p in output.iterdir()) == [f"batch-chat-{n}.json" for n in range(4)]
    records = {e["recordId"] for s in said for e in s["manifest"]["entries"]}
    assert records == {f"documents.jsonl/{n}#0" for n in range(3)}
    assert [r["run"] for r in command.json("runs")] == [s["run"] for s in said]
    assert all(v["clean"] for v in command.lines("verify", "--all"))
    text = command("compile", chats, "--all", "--docs", docs, "--run", "more").stdout
    assert sum(line.startswith("more-chat-") for line in text.splitlines()) == 4
    assert "Traceback" not in text


@pytest.mark.broker
def test_one_conversation_of_several_is_named_by_id_or_index(command: Command) -> None:
    chats = write(command.folder, "chats.jsonl", "\n".join(json.dumps({"id": f"c{n}", **CHAT}) for n in range(3)))
    result = command("compile", chats, code=2)
    assert "3 conversations" in result.stderr
    assert "--conversation" in result.stderr
    for wanted in ("c2", "2"):
        command("compile", chats, "--conversation", wanted, "-o", command.folder / "p.json")
    assert "'c9'" in command("compile", chats, "--conversation", "c9", code=2).stderr


@pytest.mark.broker
def test_a_model_and_its_limits_can_be_named(command: Command) -> None:
    chat = write(command.folder, "chat.json", CHAT)
    said = command.json(
        *("compile", chat, "--model", "mistral/large", "--context-window", "4000", "--max-output-tokens", "1000"),
        *("--target", "openai", "--docs", EXAMPLES / "runbooks", "--budget", "500", "-o", command.folder / "p.json"),
    )
    assert said["model"] == {
        "provider": "mistral",
        "modelId": "large",
        "contextWindow": 4000,
        "maxOutputTokens": 1000,
    }
    assert said["manifest"]["budget"]["contextTokens"] == 500 >= sum(said["tokens"].values())


@pytest.mark.broker
def test_sources_of_ones_own_take_part(command: Command) -> None:
    said = command.json(
        *("compile", EXAMPLES / "conversation.json", "--worker", EXAMPLES / "tickets.py", "--no-memory"),
        *("-o", command.folder / "p.json"),
    )
    assert {e["recordId"] for e in said["manifest"]["entries"]} >= {"BILL-2041"}
    assert [s["source"] for s in said["manifest"]["sources"]] == ["tickets"]


@pytest.mark.broker
def test_an_absent_source_is_a_warning(command: Command) -> None:
    chat = write(command.folder, "chat.json", CHAT)
    result = command("compile", chat, "--source", "tickets:rag", "--json", "-o", command.folder / "p.json")
    assert json.loads(result.stdout)["warnings"] == [
        {"code": "context-source-failed", "source": "tickets", "error": "absent"}
    ]
    assert "tickets" in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no file"),
        ("  ", "empty"),
        ("nope", "not JSON"),
        ('{"a": 1}', "no conversation"),
        ("[]", "no messages"),
        ('{"messages": [{"role": "king", "content": "x"}]}', "messages[0].role"),
        ('{"messages": []}\n{"messages": nope}', "line 2"),
    ],
)
def test_a_file_that_is_no_conversation_is_named(command: Command, content: str | None, words: str) -> None:
    path = command.folder / "chat.json"
    if content is not None:
        write(command.folder, "chat.json", content)
    result = command("compile", path, code=2)
    assert words in result.stderr
    assert "chat.json" in result.stderr
    assert not result.stdout
    assert not command.data.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--target", "google"), "anthropic"),
        (("--model", "gpt"), "PROVIDER/ID"),
        (("--scope", "name=ada"), "user_id"),
        (("--scope", "user_id"), "FIELD=VALUE"),
        (("--estimator", "guess"), "cl100k_base"),
        (("--source", "tickets"), "ID:KIND"),
        (("--docs", "nowhere"), "nowhere"),
        (("--memories", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--context-window", "100"), "--context-window"),
        (("--worker", "nowhere.py"), "nowhere.py"),
        (("--tenant", ""), "--tenant"),
        (("--nats", "http://host"), "nats://host:4222"),
        (("--all", "--conversation", "1"), "--conversation"),
        (("--json", "--output", "-"), "--output"),
    ],
)
def test_an_unusable_option_is_named(command: Command, arguments: tuple[str, ...], words: str) -> None:
    result = command("compile", EXAMPLES / "conversation.json", *arguments, code=2)
    assert words in result.stderr
    assert not result.stdout


def test_errors_are_json_where_json_is_asked_for(command: Command) -> None:
    result = command("compile", command.folder / "none.json", "--json", code=2)
    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["exit_code"]) == ("usage", 2)


def test_a_server_that_is_not_there_is_exit_code_3_without_the_password(command: Command) -> None:
    url = "nats://ada:s3cret@127.0.0.1:1"
    result = command("compile", EXAMPLES / "conversation.json", "--nats", url, code=3)
    assert "127.0.0.1:1" in result.stderr
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1 = 2", "SyntaxError"),
        ("import nothing_of_this_name", "line 1"),
        ("x = 1", "@source"),
        (
            (
                "from contextbus.client import source\n"
                "a = source(id='t', kind='rag')(lambda query: [])\nb = source(id='t', kind='rag')(lambda query: [])"
            ),
            "'t'",
        ),
    ],
)
def test_a_worker_file_that_is_none_is_named(command: Command, content: str, words: str) -> None:
    path = write(command.folder, "mine.py", content)
    result = command("compile", EXAMPLES / "conversation.json", "--worker", path, code=2)
    assert words in result.stderr
    assert "mine.py" in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"goals": 1}', "goals"), ('{"version": 1}', "scope"), ("[]", "expected"), ("{", "working.json")],
)
def test_a_working_memory_that_is_none_is_named(command: Command, content: str, words: str) -> None:
    path = write(command.folder, "working.json", content)
    result = command("compile", EXAMPLES / "conversation.json", "--working-memory", path, code=2)
    assert words in result.stderr.lower()
    assert '{"goal": "…", "constraints": ["…"]' in result.stderr
    assert "\n" not in result.stderr.strip()


@pytest.mark.parametrize("content", ["{}", '{"text": ""}', '{"text": 1}', "x"])
def test_a_memory_line_that_is_none_is_named(command: Command, content: str) -> None:
    path = write(command.folder, "m.jsonl", '"fine"\n' + content)
    assert "line 2" in command("compile", EXAMPLES / "conversation.json", "--memories", path, code=2).stderr
