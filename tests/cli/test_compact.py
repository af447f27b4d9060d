"""``contextbus compact``: a conversation in a file, shorter."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import EXAMPLES, ROOT
from tests.client.compacting import assistant, assistant_of, b1, call, call_part, request_part, res, system, user
from tests.summarisers.endpoint import Endpoint, serve_endpoint
from typer.testing import CliRunner, Result

import contextbus.client as contextbus
from contextbus.cli.commands import app

LABEL = "Previous conversation summary:\n"
SHORT: list[dict[str, Any]] = [
    user("Please deploy to host-7 on 3 May, the budget is 4500 EUR. " * 8),
    assistant("Decision: we deploy with release 2026.11.4 because it is fixed there. " * 8),
    user("keep me"),
    assistant("ok"),
]
LONG: list[dict[str, Any]] = [
    system("Answer briefly."),
    user("Please move the shop to the new host by 3 May. The budget is 4500 EUR."),
    assistant("I will. Decision: we use host-7 because it has the larger disk."),
    *(m for n in range(6) for m in (call(f"c{n}"), res(f"c{n}", f"step {n} is done, log at /var/log/step-{n}.log"))),
    assistant("All six steps are done."),
    user("What is left?"),
    assistant("The DNS entry."),
]


def compact(*arguments: object, code: int = 0) -> Result:
    """Run the command here; the exit code must be the expected one."""
    result = CliRunner().invoke(app, ["compact", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def compact_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(compact(*arguments, "--json", code=code).stdout)


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    return write(tmp_path, LONG)


def write(folder: Path, content: object, name: str = "chat.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.rule("C.A.1", "C.G.1", "C.G.9")
def test_it_says_what_was_replaced_before_and_after(chat: Path) -> None:
    said = compact_json(chat, "--keep-last", 3)
    before = contextbus.estimate_tokens(LONG)
    assert (said["status"], said["tokens"]["before"], said["targetTokens"]) == ("compacted", before, -(-before // 2))
    assert said["tokens"]["after"] <= said["targetTokens"]
    assert said["replacedRange"] == {"start": 1, "end": 15}
    assert (said["replayed"], said["summariser"], said["requests"]) == (None, "extractive", 1)
    assert said["messages"][0] == LONG[0]
    assert said["messages"][1] == user(LABEL + said["summary"])
    assert said["messages"][2:] == LONG[15:]
    assert contextbus.estimate_tokens(said["messages"]) == said["tokens"]["after"]
    assert chat.read_text(encoding="utf-8") == json.dumps(LONG)


@pytest.mark.rule("C.E.2", "P.E.9")
def test_a_request_for_gemini_stays_one(tmp_path: Path) -> None:
    contents = [
        {"role": "model" if m["role"] == "assistant" else "user", "parts": [{"text": m["content"]}]} for m in SHORT
    ]
    body = {"systemInstruction": {"parts": [{"text": "be kind"}]}, "contents": contents}
    said = json.loads(compact(write(tmp_path, body), "--keep-last", 2, "--output", "-").stdout)
    assert {**said, "contents": contents} == body
    assert said["contents"][0]["parts"][0]["text"].startswith(LABEL)
    assert said["contents"][1:] == contents[2:]


@pytest.mark.rule("P.E.9")
def test_a_session_becomes_shorter_as_messages_of_the_ai_sdk(tmp_path: Path) -> None:
    claude = [{"type": m["role"], "uuid": str(n), "parentUuid": str(n - 1), "message": m} for n, m in enumerate(SHORT)]
    codex = [
        {"type": "response_item", "payload": {"type": "message", "role": m["role"], "content": m["content"]}}
        for m in SHORT
    ]
    for lines in (claude, codex):
        text = "\n".join(map(json.dumps, lines)) + '\n{"type": "cut o'
        said = compact_json(write(tmp_path, text, "session.jsonl"), "--keep-last", 2)
        assert said["messages"][0]["content"].startswith(LABEL)
        assert [m["role"] for m in said["messages"]] == ["user", "user", "assistant"]


def test_the_report_shows_messages_and_summary(chat: Path) -> None:
    text = compact(chat, "--keep-last", 1).stdout
    for words in (
        *("18 messages", "tokens before", "after (", "target", "(half)", "replaced: 1-16", "2 stay"),
        *("said again behind the summary: message 16: What is left?", "summary by extractive (1 request)"),
        *("Please move the shop", "t({})", "4500 EUR"),
    ):
        assert words in text, words


def test_a_long_range_is_shown_in_part(tmp_path: Path) -> None:
    path = write(tmp_path, [user(f"The port of host-{n} is {4000 + n}. " * 3) for n in range(100)])
    text = compact(path).stdout
    assert "replaced: 0-95 (96 messages); 4 stay" in text
    assert "56 more" in text
    assert ("The port of host-19 " in text, "The port of host-76 " in text) == (True, True)
    shown = [line for line in text.splitlines() if line.split()[1:2] == ["user"]]
    assert len(shown) == 40
    plan = compact(path, "--dry-run").stdout
    assert "0-95" in plan
    assert "96-99" in plan


def test_the_shorter_conversation_is_written_in_the_form_of_the_file(tmp_path: Path) -> None:
    around = {"model": "m-1", "system": "Be kind.", "messages": SHORT, "metadata": {"a": [1]}}
    out = tmp_path / "out.json"
    said = compact_json(write(tmp_path, around), "--keep-last", 2, "--out", out)
    assert said["output"] == str(out)
    assert "messages" not in said
    written = json.loads(out.read_text(encoding="utf-8"))
    assert {**written, "messages": None} == {**around, "messages": None}
    assert written["messages"][1:] == SHORT[2:]
    assert compact(write(tmp_path, SHORT), "--keep-last", 2, "-o", out).stdout.rstrip().endswith(f"written to {out}")
    assert isinstance(json.loads(out.read_text(encoding="utf-8")), list)
    again = compact_json(out, "--keep-last", 1, "--target-tokens", 500)
    assert again["replacedRange"] == {"start": 0, "end": 2}


def test_the_conversation_can_be_printed(chat: Path) -> None:
    result = compact(chat, "--keep-last", 3, "-o", "-")
    assert json.loads(result.stdout)[0] == LONG[0]
    assert "replaced" in result.stderr


@pytest.mark.parametrize("name", ["conversation.json", "conversation-anthropic.json"])
@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_the_examples_can_be_compacted_as_they_are(name: str, options: tuple[str, ...]) -> None:
    said = compact_json(EXAMPLES / name, *options)
    assert said["status"] == ("planned" if options else "compacted")


def test_openai_messages_stay_what_they_were(tmp_path: Path) -> None:
    file = json.loads((EXAMPLES / "conversation.json").read_text(encoding="utf-8"))
    out = tmp_path / "out.json"
    said = compact_json(EXAMPLES / "conversation.json", "-o", out)
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["messages"][2:] == file["messages"][said["replacedRange"]["end"] :]


@pytest.mark.rule("C.C.3")
def test_media_is_counted_by_an_estimator_and_named_on_demand(tmp_path: Path) -> None:
    image = {"role": "user", "content": [{"type": "image", "image": "aGVsbG8=", "mediaType": "image/png"}]}
    path = write(tmp_path, [image, assistant("a cat " * 30), user("more"), assistant("no")])
    assert compact_json(path, "--keep-last", 1, code=4)["counter"] == "classes (heuristic)"
    said = compact_json(path, "--keep-last", 1, "--media", "placeholder", "--target-tokens", 500)
    assert said["replacedRange"] == {"start": 0, "end": 3}
    assert "aGVsbG8=" not in json.dumps(said["messages"])


def test_one_conversation_of_several_is_named(tmp_path: Path) -> None:
    several: list[dict[str, Any]] = [
        {"id": f"c{n}", "messages": [user(f"q{n} " * 40), assistant("a"), user("b")]} for n in range(3)
    ]
    for path in (
        write(tmp_path, "\n".join(map(json.dumps, several)), "a.jsonl"),
        write(tmp_path, several, "b.json"),
        write(tmp_path, [s["messages"] for s in several], "c.json"),
    ):
        said = compact(path, code=2).stderr
        assert "3 conversations" in said
        assert "--all" not in said
        kept = compact_json(path, "--conversation", "2", "--keep-last", 1, "--target-tokens", 100)
        assert kept["messages"][-1] == user("b")
        assert kept["tokens"]["before"] == contextbus.estimate_tokens(several[2]["messages"])


def test_other_forms_of_a_file_are_read_too(tmp_path: Path) -> None:
    lines = "\n".join(map(json.dumps, SHORT))
    for content in (lines, [SHORT], {"messages": SHORT}, [{"messages": SHORT}], "\ufeff" + json.dumps(SHORT)):
        said = compact_json(write(tmp_path, content), "--keep-last", 2)
        assert said["messages"][1:] == SHORT[2:]
    response = {"choices": [{"message": {"role": "assistant", "content": "x"}}]}
    assert compact_json(write(tmp_path, response), "--keep-last", 1, code=4)["reason"] == "no-safe-boundary"


@pytest.mark.rule("C.D.2", "C.D.4", "C.D.6", "C.D.8")
def test_a_plan_says_why_each_message_stays(tmp_path: Path) -> None:
    waiting = assistant_of(call_part("p"), request_part("p"))
    cases: list[tuple[list[dict[str, Any]], str]] = [
        ([system(), *b1(), *b1()], "leading system message"),
        ([*b1(), *b1()], "one of the last 4 messages"),
        ([*b1(), waiting, *b1()], "waits for the result of t p"),
        ([*b1(), system(), *b1()], "system message behind others"),
        ([*b1(), waiting, *b1()], "behind message 4, which stays"),
        ([user("x" * 800), call("k"), res("k"), *b1()[:3]], "belongs together with messages that stay"),
    ]
    for messages, reason in cases:
        path = write(tmp_path, messages)
        said = compact_json(path, "--dry-run", "--target-tokens", 5000)
        assert reason in {stay["reason"] for stay in said["stays"]}, reason
        assert [s["index"] for s in said["stays"]] == [
            n for n in range(len(messages)) if not said["replacedRange"]["start"] <= n < said["replacedRange"]["end"]
        ]
        text = compact(path, "--dry-run", "--target-tokens", 5000).stdout
        assert "nothing is summarised" in text
        assert "room for the summary" in text
    path = write(tmp_path, [*b1(), *b1()])
    recent = compact_json(path, "--dry-run", "--keep-recent-tokens", 200, "--target-tokens", 5000)
    assert recent["stays"][-1]["reason"] == "within the latest 200 tokens"


@pytest.mark.rule("C.F.2", "C.F.3")
def test_a_plan_is_what_is_then_done(chat: Path) -> None:
    plan = compact_json(chat, "--dry-run", "--keep-last", 1)
    done = compact_json(chat, "--keep-last", 1)
    assert (plan["status"], plan["replacedRange"], plan["replayed"]) == ("planned", {"start": 1, "end": 17}, 16)
    assert plan["replacedRange"] == done["replacedRange"]
    assert plan["room"] == plan["maxOutputTokens"] < plan["targetTokens"] == done["targetTokens"]


@pytest.mark.rule("C.G.2", "C.G.3")
@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_what_cannot_be_done_has_a_reason_a_fix_and_its_own_exit_code(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = write(tmp_path, b1())
    result = compact(path, "--keep-last", 2, "--target-tokens", 30, *options, code=4)
    for words in ("protected-history", "no room for a summary", "it takes 35", "larger --target-tokens"):
        assert words in result.stderr
    said = compact_json(path, "--keep-last", 2, "--target-tokens", 30, *options, code=4)
    assert (said["status"], said["reason"], said["requiredTokens"]) == ("cannot-fit", "protected-history", 35)
    none = compact(path, *options, code=4)
    assert "no-safe-boundary" in none.stderr
    assert "--keep-last" in none.stderr
    error = json.loads(compact(path, "--json", *options, code=4).stderr)["error"]
    assert (error["code"], error["exit_code"]) == ("cannot_fit", 4)


def test_what_cannot_be_used_is_told_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    path = write(tmp_path, b1())
    wrong: list[tuple[tuple[object, ...], str]] = [
        ((tmp_path / "none.json",), "there is no file"),
        ((path, "--summariser", "gpt-5"), "write extractive|openai:MODEL|anthropic:MODEL"),
        ((path, "--summariser", "openai:"), "write extractive|openai:MODEL"),
        ((path, "--summariser", "openai:gpt-5"), "OPENAI_API_KEY"),
        ((path, "--estimator", "guess"), "--estimator 'guess'"),
        ((path, "--dry-run", "-o", tmp_path / "x.json"), "leave out --out"),
        ((path, "--json", "-o", "-"), "leave one out"),
        ((path, "-o", tmp_path), "is a folder"),
        ((path, "-o", tmp_path / "." / path.name), "is the conversation itself"),
        ((path, "-o", tmp_path / "none" / "x.json"), "there is no folder"),
        ((path, "--conversation", "7"), "no conversation '7'"),
        ((write(tmp_path, [{"role": "robot", "content": "x"}], "bad.json"),), "messages[0].role"),
        ((write(tmp_path, "{", "broken.json"),), "not JSON"),
    ]
    for arguments, words in wrong:
        assert words in compact(*arguments, code=2).stderr, arguments
    for arguments in (("--target-tokens", 0), ("--keep-last", -1), ("--media", "drop"), ("--keep-recent-tokens", "x")):
        assert compact(path, *arguments, code=2).stderr


def test_text_that_steers_a_terminal_or_looks_like_markup_is_shown_as_text(tmp_path: Path) -> None:
    nasty = "\u001b[2J[bold]Deploy[/bold] [link=x] host-7 by 3 May\u0007"
    path = write(tmp_path, [user(nasty), assistant("noted " * 60), user("ok"), assistant("ok")])
    text = compact(path, "--keep-last", 2, "--target-tokens", 120).stdout
    assert "\u001b[2J" not in text
    assert "\u0007" not in text
    assert "[bold]Deploy[/bold]" in text


def test_help_has_examples() -> None:
    text = compact("--help").stdout
    for words in ("Examples", "--dry-run", "--summariser", "half of", "No server is needed"):
        assert words in text


@pytest.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    async with serve_endpoint() as served:
        yield served


async def start(endpoint: Endpoint, *arguments: object) -> asyncio.subprocess.Process:
    """Run the command as a process of its own, with the endpoint as both providers."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'actors'}{os.pathsep}{ROOT / 'protocol'}",
        "OPENAI_API_KEY": "key",
        "OPENAI_BASE_URL": endpoint.url,
        "ANTHROPIC_API_KEY": "key",
        "ANTHROPIC_BASE_URL": endpoint.url,
    }
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "contextbus", "compact", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )


@pytest.mark.rule("C.F.1", "C.F.4", "C.F.6", "C.G.4", "C.X.10")
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_model_may_write_the_summary(chat: Path, endpoint: Endpoint, kind: str) -> None:
    endpoint.answer = {
        "openai": {
            "id": "1",
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Moved."}}],
            "usage": {"prompt_tokens": 900, "completion_tokens": 3},
        },
        "anthropic": {
            "id": "1",
            "type": "message",
            "content": [{"type": "text", "text": "Moved."}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 900, "output_tokens": 3},
        },
    }[kind]
    options = (chat, "--summariser", f"{kind}:m-1", "--instructions", "Keep ids.", "--keep-last", 3, "--json")
    process = await start(endpoint, *options)
    out, err = await process.communicate()
    assert process.returncode == 0, err
    said = json.loads(out)
    assert (said["summary"], said["usage"]) == ("Moved.", {"inputTokens": 900, "outputTokens": 3})
    assert f"asking {kind}:m-1" in err.decode()
    (asked,) = endpoint.asked
    assert asked.body["model"] == "m-1"
    assert "tools" not in asked.body
    assert "Keep ids." in json.dumps(asked.body)
    assert "Answer briefly." not in json.dumps(asked.body)


@pytest.mark.rule("C.F.1", "C.F.8")
async def test_an_endpoint_that_refuses_is_asked_once_and_told(chat: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.status, endpoint.answer = 401, {"error": {"message": "wrong key"}}
    process = await start(endpoint, chat, "--summariser", "openai:m-1", "-o", tmp_path / "out.json")
    out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    for words in ("openai:m-1 failed with AuthenticationError", "wrong key", "look at OPENAI_API_KEY"):
        assert words in err.decode()
    assert b"Traceback" not in err
    assert len(endpoint.asked) == 1
    assert not (tmp_path / "out.json").exists()


@pytest.mark.rule("C.F.9")
async def test_ctrl_c_hangs_up_and_leaves_nothing(chat: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.silent = True
    process = await start(endpoint, chat, "--summariser", "anthropic:m-1", "-o", tmp_path / "out.json")
    await asyncio.wait_for(endpoint.waits.wait(), 60)
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    await asyncio.wait_for(endpoint.gone.wait(), 10)
    assert not (tmp_path / "out.json").exists()
