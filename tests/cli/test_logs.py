"""``contextbus runs``, ``replay``, ``verify`` and ``doctor``."""

from __future__ import annotations

import importlib.metadata
import json
import tomllib

import anyio
import pytest
from tests.cli.command import EXAMPLES, ROOT, Command

from contextbus import client
from contextbus.cli.doctor import SDKS
from contextbus.runtime import connection, embedded
from contextbus.runtime.journal import Appended
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus_protocol import subjects


def compile_example(command: Command, run: str = "r1", *more: object) -> None:
    command("compile", EXAMPLES / "conversation.json", "--run", run, *more, "-o", command.folder / "p.json")


@pytest.mark.broker
def test_a_run_is_listed_replayed_and_verified(command: Command) -> None:
    compile_example(command, "r1", "--working-memory", EXAMPLES / "working-memory.json")
    (run,) = command.json("runs")
    assert run == {"run": "r1", "commits": 1, "steps": 1, "lastStep": 0, "scope": {"userId": "local"}}
    replayed = command.json("replay", "r1")
    (commit,) = replayed["commits"]
    messages = len(json.loads((EXAMPLES / "conversation.json").read_bytes())["messages"])
    assert commit["events"] == ["run-started", "messages-appended", "step-compiled"]
    assert (commit["step"], commit["refresh"], commit["pass"], commit["history"]) == (0, "initial", 1, messages)
    assert commit["state"]["last"]["step"] == 0
    assert [m["snapshot"]["revision"] for m in replayed["workingMemory"]] == [0]
    table = command("replay", "r1", "--steps", "--state").stdout
    assert "step-compiled" in table
    assert '"chain"' in table
    assert "clean" in command("verify", "r1").stdout
    assert "r1" in command("runs").stdout


@pytest.mark.broker
def test_a_log_that_was_changed_is_exit_code_1(command: Command) -> None:
    compile_example(command)

    async def repeat_last_commit() -> None:
        subject = subjects.log("default", "r1", "run")
        async with (
            embedded.serve(command.data) as server,
            connection.connect(server.url, token=server.token) as connected,
        ):
            journal = JetStreamJournal(connected)
            page = await journal.read(subject, after=0)
            assert not isinstance(page, Exception)
            last = getattr(page, "records")[-1]  # noqa: B009  (a page, since the server answers)
            stored = await journal.append(
                subject, last.data, expected=last.sequence, message_id="forged", command="forged"
            )
            assert isinstance(stored, Appended)
            journal.close()

    anyio.run(repeat_last_commit)
    verdict = command.json("verify", "r1", code=1)
    assert not verdict["clean"]
    assert [(c["status"], c["field"]) for c in verdict["checks"]] == [("different", "previous")]
    said = command("verify", "--all", code=1).stdout
    assert "different" in said
    assert "got sha256:" in said
    assert "the log was changed" in command("replay", "r1", code=1).stderr


@pytest.mark.broker
def test_a_run_that_is_not_there_is_said(command: Command) -> None:
    compile_example(command)
    for name in ("replay", "verify"):
        assert "contextbus runs" in command(name, "r2", code=1).stderr
    assert "--all" in command("verify", code=2).stderr
    assert "--all" in command("verify", "r1", "--all", code=2).stderr


@pytest.mark.parametrize("arguments", [("runs",), ("replay", "r1"), ("verify", "r1"), ("verify", "--all")])
def test_without_a_data_folder_nothing_is_made(command: Command, arguments: tuple[str, ...]) -> None:
    assert "--data" in command(*arguments, code=3).stderr
    assert not command.data.exists()


@pytest.mark.broker
def test_the_runs_of_a_tenant_are_its_own(command: Command) -> None:
    compile_example(command, "r1", "--tenant", "acme")
    assert command.json("runs") == []
    assert [r["run"] for r in command.json("runs", "--tenant", "acme")] == ["r1"]


@pytest.mark.broker
def test_what_is_compiled_by_hand_is_seen_too(command: Command) -> None:
    async def compile_by_hand() -> None:
        async with client.open(data=command.data) as bus:
            run = await bus.run("by-hand", scope=client.Scope(user_id="ada"))
            await run.before_model_call([client.user("hello")], model=client.Model("openai", "gpt-5", 9000, 1000))
            await run.after_model_call(client.Report(status="succeeded", messages=[client.assistant("hi")]))

    anyio.run(compile_by_hand)
    commits = command.json("replay", "by-hand")["commits"]
    assert [c["step"] for c in commits] == [0, None]
    assert [c["history"] for c in commits] == [1, 2]
    assert [c["step"] for c in command.json("replay", "by-hand", "--steps")["commits"]] == [0]


@pytest.mark.broker
@pytest.mark.rule("D.J.7")
def test_steps_that_a_forget_redacted_are_counted_and_not_called_computed(command: Command) -> None:
    asked = ("compile", EXAMPLES / "conversation.json", "--memories", EXAMPLES / "memories.jsonl", "--run", "r1")
    said = command.json(*asked, "-o", command.folder / "p.json")
    record = next(e for e in said["manifest"]["entries"] if e["source"] == "memory" and e["selected"])
    command("forget", record["recordId"], "--scope", "user_id=local")
    assert "r1: clean, 1 redacted\n" in command("verify", "r1").stdout
    compile_example(command)
    assert "r1: clean, 1 redacted, 1 step computed again" in command("verify", "r1").stdout
    assert command.json("verify", "r1")["redacted"] == 1
    (run,) = command.json("runs")
    assert (run["steps"], run["lastStep"]) == (run["lastStep"] + 1, run["lastStep"])


@pytest.mark.broker
def test_a_step_that_is_compiled_again_is_one_step(command: Command) -> None:
    async def compile_twice() -> None:
        async with client.open(data=command.data) as bus:
            run = await bus.run("twice", scope=client.Scope(user_id="ada"))
            await run.before_model_call([client.user("hello")], model=client.Model("openai", "gpt-5", 9000, 1000))
            await run.on_overflow(500)

    anyio.run(compile_twice)
    (run,) = command.json("runs")
    assert (run["commits"], run["steps"], run["lastStep"]) == (2, 1, 0)


@pytest.mark.broker
def test_the_doctor_finds_what_is_needed(command: Command) -> None:
    said = command.json("doctor")
    found = {c["name"]: c["status"] for c in said["checks"]}
    for name in ("python", "sqlite fts5", "nats-server", "data folder", "server", "jetstream", "durability"):
        assert found[name] == "ok"
    assert {"tokenizer cl100k_base", "tokenizer o200k_base", "uvloop"} <= set(found)
    assert {found[f"SDK {name}"] for name in ("openai", "anthropic", "google-genai")} == {"ok"}
    assert not command.data.exists()
    assert "nats-server" in command("doctor").stdout


def test_the_doctor_names_the_extra_of_each_sdk_that_is_missing(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = importlib.metadata.version

    def other(name: str) -> str:
        if name in SDKS:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", other)
    missing = [c for c in command.json("doctor")["checks"] if c["name"].startswith("SDK ")]
    assert {c["status"] for c in missing} == {"note"}
    assert [c["fix"].partition("[")[2] for c in missing] == ["openai]'", "anthropic]'", "gemini]'"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package, (extra, _) in SDKS.items():
        assert [word.partition(">")[0] for word in project["optional-dependencies"][extra]] == [package]


def test_the_doctor_says_why_a_server_is_not_reached(command: Command) -> None:
    said = command.json("doctor", "--nats", "nats://127.0.0.1:1", code=3)
    (server,) = [c for c in said["checks"] if c["name"] == "server"]
    assert server["status"] == "missing"
    assert "127.0.0.1:1" in server["fix"]


@pytest.mark.broker
@pytest.mark.rule("C.O.13", "C.O.9")
def test_replay_shows_compactions_and_calls_their_counts_estimates(command: Command) -> None:
    async def compact() -> None:
        given = client.Compaction(triggers=[client.messages_exceed(3)], target_tokens=900)
        model = client.Model("openai", "gpt-test", 4_000, 100)
        async with client.open(data=command.data, memory=False, durability="interval") as bus:
            run = await bus.run("r1", scope=client.Scope(user_id="ada"), compaction=given)
            said = [client.user("Please deploy at noon. " * 20), client.assistant("It runs at noon. " * 20)]
            run.append(*said, *said, client.user("And now?"))
            await run.before_model_call(model=model)

    anyio.run(compact)
    table = command("replay", "r1").stdout
    assert "estimated tokens of the request: " in table
    (shown,) = command.json("replay", "r1")["compactions"]
    assert (shown["status"], shown["scope"]) == ("completed", "request")
    assert shown["estimated_after"] < shown["estimated_before"]
