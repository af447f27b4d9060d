"""The index of a folder: found by any words, fresh, safe among processes, made anew when damaged."""

from __future__ import annotations

import concurrent.futures
import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contextbus.sources.database import MEMORY
from contextbus.sources.documents import find_files
from contextbus.sources.lexical import match_expression, spread
from contextbus.sources.rag_index import IndexStoppedError, RagIndex

TEA = "# Tea\n\nGreen tea is steeped for two minutes.\n"
CARDS = "# Cards\n\nThe blue card has no annual fee.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "docs"
    (made / "sub").mkdir(parents=True)
    (made / "tea.md").write_text(TEA)
    (made / "sub" / "cards.txt").write_text(CARDS)
    return made


@pytest.fixture
def index(folder: Path, tmp_path: Path) -> RagIndex:
    made = RagIndex(folder, tmp_path / "data" / "rag.sqlite")
    made.refresh()
    return made


def find(index: RagIndex, text: str, limit: int = 10) -> list[str]:
    return [hit.record_id for hit in index.search(text, limit)]


def test_chunks_are_found_by_stem_and_named_by_path(index: RagIndex) -> None:
    assert find(index, "steeping") == ["tea.md#0"]
    assert find(index, "annual FEES?") == ["sub/cards.txt#0"]
    assert find(index, "submarine") == []
    assert index.search("tea", 1)[0].text.endswith("two minutes.")


def test_scores_are_positive_and_equal_ones_are_ordered_by_id(tmp_path: Path) -> None:
    for name in ("b", "a", "c", "B"):
        (tmp_path / f"{name}.md").write_text("the same words")
    index = RagIndex(tmp_path, MEMORY)
    index.refresh()
    hits = index.search("same words", 10)
    assert [hit.record_id for hit in hits] == ["B.md#0", "a.md#0", "b.md#0", "c.md#0"]
    assert all(0 < hit.score < float("inf") for hit in hits)
    assert hits == index.search("same words", 10)
    assert find(index, "same words", 2) == ["B.md#0", "a.md#0"]
    assert find(index, "same words", 0) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "   ", "...", '"', "'", "\0", "tea\0", "*", "NEAR(", "- + ^ : { } ( )", "\ud800", "\u0301"),
        *("tea OR", "AND NOT", "heading:", "tea* NEAR/2 two", '"tea', "a" * 5_000_000, "a b " * 1_000_000),
    ],
)
def test_no_query_is_a_syntax_error(index: RagIndex, text: str) -> None:
    found = find(index, text)
    if "tea" not in text:
        assert found == []
    elif len(text) < 100:
        assert "tea.md#0" in found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.characters(codec=None), max_size=200))
def test_any_text_can_be_asked_for(index: RagIndex, text: str) -> None:
    index.search(text, 5)
    expression = match_expression(text)
    assert expression is None or expression.count('"') % 2 == 0


@given(st.text(alphabet=st.characters(categories=["Lu", "Ll", "Nd", "Lo"]), min_size=1, max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_a_document_is_found_by_its_own_words(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("words")
    (folder / "a.txt").write_bytes(text.encode())
    index = RagIndex(folder, MEMORY)
    index.refresh()
    assert (find(index, text) == ["a.txt#0"]) or match_expression(text) is None
    index.close()


def test_scripts_without_spaces_are_found_by_neighbouring_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("東京都の天気は晴れです。", encoding="utf-8")
    (tmp_path / "b.txt").write_text("京都の寺", encoding="utf-8")
    index = RagIndex(tmp_path, MEMORY)
    index.refresh()
    assert find(index, "天気") == ["a.txt#0"]
    assert find(index, "東京") == ["a.txt#0"]
    assert find(index, "寺") == ["b.txt#0"]


def test_common_words_find_only_where_there_are_no_others(index: RagIndex) -> None:
    assert find(index, "is the submarine") == []
    assert find(index, "is the") == ["sub/cards.txt#0", "tea.md#0"] or set(find(index, "is the")) == {
        "sub/cards.txt#0",
        "tea.md#0",
    }


def test_only_what_changed_is_read_again(index: RagIndex, folder: Path) -> None:
    old = time.time() - 3600
    for path in (folder / "tea.md", folder / "sub" / "cards.txt"):
        os.utime(path, (old, old))
    assert index.refresh().read == 2  # younger than two seconds when they were read first
    assert index.refresh().read == 0
    (folder / "tea.md").write_text("# Coffee\n")
    os.utime(folder / "tea.md", (old + 1, old + 1))
    assert index.refresh().read == 1
    assert (find(index, "steeped"), find(index, "coffee")) == ([], ["tea.md#0"])
    (folder / "sub" / "cards.txt").unlink()
    assert index.refresh().removed == 1
    assert find(index, "card") == []


def test_a_change_of_equal_size_in_the_same_moment_is_noticed(index: RagIndex, folder: Path) -> None:
    found = (folder / "tea.md").stat()
    (folder / "tea.md").write_text(TEA.replace("Green", "Black"))
    os.utime(folder / "tea.md", ns=(found.st_atime_ns, found.st_mtime_ns))
    index.refresh()
    assert (find(index, "green"), find(index, "black")) == ([], ["tea.md#0"])


def test_hidden_files_links_and_binaries_stay_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("the secret")
    folder = tmp_path / "docs"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "a.md").write_text("the secret")
    (folder / ".hidden.md").write_text("the secret")
    (folder / "link.md").symlink_to(outside / "secret.md")
    (folder / "linked").symlink_to(outside)
    (folder / "image.txt").write_bytes(b"secret\0\1\2")
    (folder / "code.py").write_text("secret")
    (folder / "bad.txt").write_bytes(b"\xff\xfe plain words")
    (folder / "empty.md").write_text(" \n")
    index = RagIndex(folder, MEMORY)
    assert [file.path for file in find_files(folder)] == ["bad.txt", "empty.md", "image.txt"]
    index.refresh()
    assert find(index, "secret") == []
    assert find(index, "plain") == ["bad.txt#0"]


def test_lines_of_a_jsonl_file_are_documents(tmp_path: Path) -> None:
    lines = ['{"id": "one", "title": "Tea", "text": "Steep it."}', "", "oops", '{"text": "No name."}', '{"id": "x"}']
    lines += ['{"id": "one", "text": "again"}', '{"id": 7, "text": "Seven."}']
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    index = RagIndex(tmp_path, MEMORY)
    assert index.refresh().chunks == 3
    assert find(index, "tea") == ["d.jsonl/one#0"]
    assert find(index, "name") == ["d.jsonl/4#0"]
    assert find(index, "seven") == ["d.jsonl/7#0"]


def test_a_folder_that_is_missing_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="no folder"):
        RagIndex(tmp_path / "none", MEMORY).refresh()


def test_the_file_is_private_and_forgets_what_was_removed(index: RagIndex, folder: Path, tmp_path: Path) -> None:
    (folder / "secret.md").write_text("zanzibarquokka is a word; " + "the secret sentence stands here")
    index.refresh()
    data = tmp_path / "data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()} == {0o600}
    assert b"secret sentence" in b"".join(path.read_bytes() for path in data.iterdir())
    (folder / "secret.md").unlink()
    index.refresh()
    left = b"".join(path.read_bytes() for path in data.iterdir())
    assert b"secret sentence" not in left
    assert b"quokka" not in left


@pytest.mark.parametrize("damage", ["garbage", "middle", "schema", "empty"])
def test_a_damaged_file_is_made_anew(index: RagIndex, folder: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "data" / "rag.sqlite"
    index.close()
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        path.write_bytes(b"no database" * 1000)
    elif damage == "middle":
        data[4096:] = b"\xff" * (len(data) - 4096)
        path.write_bytes(data)
    elif damage == "schema":
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE chunks")
        connection.close()
    else:
        path.write_bytes(b"")
    again = RagIndex(folder, path)
    again.refresh()
    assert find(again, "tea") == ["tea.md#0"]
    again.close()


@pytest.mark.parametrize("damage", ["garbage", "removed"])
def test_a_file_that_is_damaged_while_it_is_open_is_made_anew(
    index: RagIndex, folder: Path, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "data" / "rag.sqlite"
    assert find(index, "tea") == ["tea.md#0"]
    if damage == "garbage":
        # In place, as a broken disk does: the same file that both connections have open.
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)
        (tmp_path / "data" / "rag.sqlite-wal").unlink(missing_ok=True)
    else:
        path.unlink()
    other = RagIndex(folder, path)
    other.refresh()
    assert find(other, "tea") == ["tea.md#0"]
    assert find(index, "tea") == ["tea.md#0"]
    (folder / "coffee.md").write_text("Black coffee.")
    index.refresh()
    assert find(index, "coffee") == find(other, "coffee") == ["coffee.md#0"]
    other.close()


def test_other_settings_make_another_index(index: RagIndex, folder: Path, tmp_path: Path) -> None:
    index.close()
    other = RagIndex(folder, tmp_path / "data" / "rag.sqlite", patterns=("*.md",))
    assert other.options_digest != index.options_digest
    other.refresh()
    assert find(other, "card") == []
    assert find(other, "tea") == ["tea.md#0"]
    other.close()


def test_progress_counts_files_up_to_all(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    RagIndex(folder, MEMORY).refresh(lambda done, of: seen.append((done, of)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_what_is_left_out_is_counted_by_its_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextbus.sources.documents.MAX_FILE_BYTES", 1000)
    (folder / "code.py").write_text("x = 1")
    (folder / "empty.md").write_text(" \n")
    (folder / "image.txt").write_bytes(b"\0\1")
    (folder / "large.md").write_text("words " * 1000)
    (folder / "closed.md").write_text("words")
    (folder / "closed.md").chmod(0)
    closed = not os.access(folder / "closed.md", os.R_OK)  # a superuser reads everything
    for _ in range(2):
        done = RagIndex(folder, MEMORY).refresh()
        expected = {"other ending": 1, "too large": 1, "without text": 2}
        assert dict(done.skipped) == ({**expected, "unreadable": 1} if closed else expected)
        assert done.files == (2 if closed else 3)


@pytest.mark.parametrize("stop_at", [0, 1, 5])
def test_a_refresh_that_is_stopped_leaves_an_index_that_the_next_one_completes(
    folder: Path, tmp_path: Path, stop_at: int
) -> None:
    for number in range(20):
        (folder / f"{number}.md").write_text(f"word{number} {'more ' * 50}")
    path = tmp_path / "data" / "rag.sqlite"
    index = RagIndex(folder, path)

    def stop(done: int, _of: int) -> None:
        if done == stop_at:
            index.stop()

    with pytest.raises(IndexStoppedError):
        index.refresh(stop)
    with pytest.raises(IndexStoppedError):
        index.refresh()
    index.close()
    again = RagIndex(folder, path)
    assert again.refresh().files == 22
    assert find(again, "word7") == ["7.md#0"]
    again.close()


def test_a_stop_between_two_chunks_takes_the_whole_batch_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = RagIndex(folder, tmp_path / "data" / "rag.sqlite")
    calls: list[str] = []

    def stopping(text: str) -> str:
        calls.append(text)
        index.stop()
        return spread(text)

    monkeypatch.setattr("contextbus.sources.rag_index.spread", stopping)
    with pytest.raises(IndexStoppedError):
        index.refresh()
    assert len(calls) == 2  # the heading and the body of one chunk
    assert find(index, "tea") == find(index, "card") == []
    index.close()


@pytest.mark.parametrize(
    ("data", "word"),
    [("Straße".encode("cp1252"), "Straße"), (b"caf\xe9 \x81", "café"), ("Straße".encode("utf-8-sig"), "Straße")],
)
def test_a_text_in_an_older_encoding_is_read(tmp_path: Path, data: bytes, word: str) -> None:
    (tmp_path / "old.txt").write_bytes(data)
    index = RagIndex(tmp_path, MEMORY)
    index.refresh()
    (hit,) = index.search(word, 1)
    assert word in hit.text
    assert "\ufffd" not in hit.text


def test_threads_search_while_others_index(index: RagIndex, folder: Path) -> None:
    for n in range(50):
        (folder / f"{n}.md").write_text(f"# Number {n}\n\ntea {n}\n")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        refreshing = [pool.submit(index.refresh) for _ in range(2)]
        for _ in range(20):
            assert "tea.md#0" in find(index, "steeped tea")
        assert {future.result().chunks for future in refreshing} == {52}


SCRIPT = """
import sys
from pathlib import Path
from contextbus.sources.rag_index import RagIndex
index = RagIndex(Path(sys.argv[1]), Path(sys.argv[2]))
index.refresh()
print(len(index.search("number", 1000)))
"""


def test_two_processes_may_index_one_folder_at_once(folder: Path, tmp_path: Path) -> None:
    for n in range(200):
        (folder / f"{n}.md").write_text(f"# Number {n}\n\n{'words ' * 300}\n")
    command = [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path / "data" / "rag.sqlite")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
        for _ in range(3)
    ]
    outcomes = [process.communicate(timeout=60) for process in processes]
    assert [err for _, err in outcomes] == [""] * 3
    assert len({out for out, _ in outcomes}) == 1
    assert int(outcomes[0][0]) >= 200
