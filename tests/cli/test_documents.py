"""``--docs``: what is indexed, what is left out, and what is no folder of documents."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from tests.cli.command import EXAMPLES, Command, eventually, is_alive
from tests.cli.test_services import is_unlocked, server_pid

from contextbus.cli.indexing import Announcer

CONVERSATION = EXAMPLES / "conversation.json"


@pytest.fixture
def docs(command: Command) -> Path:
    folder = command.folder / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# Deploys\n\nRoll back by the runbook.", encoding="utf-8")
    (folder / "b.txt").write_bytes("Straße".encode("cp1252"))
    (folder / "empty.md").write_text(" \n", encoding="utf-8")
    (folder / "code.py").write_text("x = 1", encoding="utf-8")
    return folder


@pytest.fixture
def large(command: Command) -> Path:
    """A folder that takes far longer to index than a process takes to end."""
    folder = command.folder / "large"
    folder.mkdir()
    text = "\n\n".join(f"Paragraph {n} speaks of deploys, rollbacks and word{n}." * 5 for n in range(10_000))
    for number in range(20):
        (folder / f"{number}.md").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.broker
def test_the_report_says_what_a_folder_holds_and_what_was_left_out(command: Command, docs: Path) -> None:
    asked = ("compile", CONVERSATION, "--docs", docs, "-o", command.folder / "p.json")
    said = command.json(*asked)
    skipped = {"other ending": 1, "without text": 1}
    assert said["documents"] == [
        {"source": "docs", "path": str(docs), "files": 2, "chunks": 2, "skipped": skipped},
    ]
    shown = " ".join(command(*asked).stdout.split())
    assert "2 files, 2 chunks; skipped: 1 other ending, 1 without text" in shown


@pytest.mark.broker
def test_a_folder_whose_documents_are_empty_is_a_warning(command: Command, docs: Path) -> None:
    for name in ("a.md", "b.txt"):
        (docs / name).unlink()
    result = command("compile", CONVERSATION, "--docs", docs, "-o", command.folder / "p.json")
    assert "no text in them" in result.stderr
    assert "0 files, 0 chunks" in result.stderr


@pytest.mark.broker
def test_one_file_of_any_of_the_endings_may_be_named(command: Command, docs: Path) -> None:
    said = command.json("compile", CONVERSATION, "--docs", docs / "a.md", "-o", command.folder / "p.json")
    assert (said["documents"][0]["files"], said["documents"][0]["skipped"]) == (1, {})


@pytest.mark.parametrize("started", [("compile", CONVERSATION), ("up",), ("worker",)])
def test_what_holds_no_document_is_refused_with_the_endings(
    command: Command, docs: Path, started: tuple[object, ...]
) -> None:
    for name in ("a.md", "b.txt", "empty.md"):
        (docs / name).unlink()
    (docs / ".hidden.md").write_text("hidden", encoding="utf-8")
    for path, words in ((docs, "holds no documents"), (docs / "code.py", "is no document")):
        error = command(*started, "--docs", path, code=2).stderr
        assert words in error
        assert ".md, .markdown, .txt, .rst, .jsonl" in error
    assert "is hidden, a link" in command(*started, "--docs", docs / ".hidden.md", code=2).stderr
    assert not command.data.exists()


def test_the_help_names_the_endings(command: Command) -> None:
    shown = " ".join(command("compile", "--help").stdout.replace("│", " ").split())
    assert ".md, .markdown, .txt, .rst, and .jsonl" in shown


@pytest.mark.broker
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_folder_that_is_being_indexed_does_not_hold_up_the_end(
    command: Command, large: Path, number: int, code: int
) -> None:
    with command.started("compile", CONVERSATION, "--docs", large, "-o", command.folder / "p.json") as process:
        assert eventually(lambda: any(command.data.rglob("rag-docs.sqlite-wal")))
        process.send_signal(number)
        assert process.wait(30) == code
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert not (command.folder / "p.json").exists()
    (index,) = command.data.rglob("rag-docs.sqlite")
    for path in large.iterdir():
        if path.name != "0.md":
            path.unlink()
    said = command.json("compile", CONVERSATION, "--docs", large, "-o", command.folder / "p.json")
    assert index.exists()
    assert said["documents"][0]["files"] == 1


@pytest.mark.broker
@pytest.mark.timeout(120)
def test_a_service_ends_while_it_indexes(command: Command, large: Path) -> None:
    with command.running("up", "--docs", large, "--no-memory") as (process, _):
        assert eventually(lambda: any(command.data.rglob("rag-docs.sqlite-wal")))
        server = server_pid(command.data)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert eventually(lambda: not is_alive(server))
    assert is_unlocked(command.data)


async def test_long_work_is_announced_once_and_short_work_never(capsys: pytest.CaptureFixture[str]) -> None:
    long, short = Announcer(Path("long"), 0.0), Announcer(Path("short"), 0.0)
    short(0, 2)
    short(2, 2)
    long(0, 3)
    long(1, 3)
    await asyncio.sleep(0.01)
    long(3, 3)
    await asyncio.sleep(0.01)
    assert capsys.readouterr().err == "indexing 3 files of long\n"


@pytest.mark.broker
def test_an_index_is_kept_for_the_next_time(command: Command, docs: Path) -> None:
    """What was left out is said again by an index that reads nothing anew."""
    asked = ("compile", CONVERSATION, "--docs", docs, "--json", "-o", command.folder / "p.json")
    first, again = (json.loads(command(*asked).stdout)["documents"] for _ in range(2))
    assert first == again
