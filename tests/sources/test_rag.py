"""Sources of kind rag: a folder, and a retrieve function."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import anyio
import msgspec
import pytest
from tests.sources.conftest import Ask

from contextbus.sources.answers import handler
from contextbus.sources.rag import FolderSource, Retrieve, rag_source
from contextbus.sources.rag_index import IndexStoppedError, RagIndex
from contextbus_protocol.questions import Failed, Offered


class Chunk(msgspec.Struct):
    """What a retrieve function finds."""

    index: int
    text: str
    score: float


async def test_a_folder_answers_queries_and_follows_its_files(ask: Ask, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    await anyio.Path(docs).mkdir()
    await anyio.Path(docs / "tea.md").write_text("# Tea\n\nGreen tea.\n")
    source = FolderSource(docs, data=tmp_path / "data", fresh_seconds=0.01)
    answer = handler(source)
    offered = await answer(ask("tea", source="rag"))
    assert isinstance(offered, Offered)
    (found,) = offered.candidates
    assert (source.id, source.kind, found.record_id, found.revision) == ("rag", "rag", "tea.md#0", None)
    await anyio.Path(docs / "coffee.md").write_text("Black coffee.")
    with anyio.fail_after(60):  # the slower a folder is to look at, the longer it is left alone
        while True:
            offered = await answer(ask("coffee"))
            assert isinstance(offered, Offered)
            if offered.candidates:
                break
            await anyio.sleep(0.1)
    assert [c.record_id for c in offered.candidates] == ["coffee.md#0"]
    nothing = await answer(ask("?!"))
    assert isinstance(nothing, Offered)
    assert nothing.candidates == ()
    await source.aclose()


async def test_a_folder_that_is_missing_fails_the_query_only(ask: Ask, tmp_path: Path) -> None:
    source = FolderSource(tmp_path / "none", data=tmp_path)
    answer = await handler(source)(ask())
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_type) == ("error", "NotADirectoryError")


async def test_work_beside_the_queries_indexes_at_once(ask: Ask, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    await anyio.Path(docs).mkdir()
    await anyio.Path(docs / "tea.md").write_text("tea")
    seen: list[tuple[int, int]] = []
    source = FolderSource(docs, data=tmp_path / "data", progress=lambda done, of: seen.append((done, of)))
    with anyio.move_on_after(0.5):
        await source.keep()
    assert seen == [(0, 1), (1, 1)]
    await source.aclose()


async def test_queries_that_are_given_up_leave_one_indexing_behind(ask: Ask, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    await anyio.Path(docs).mkdir()
    await anyio.Path(docs / "tea.md").write_text("tea")
    begun: list[int] = []

    def slow(done: int, _of: int) -> None:
        begun.append(done)
        time.sleep(0.3)

    source = FolderSource(docs, data=tmp_path / "data", progress=slow)
    answer = handler(source)
    for _ in range(3):
        late = await answer(ask(seconds_left=0.05))
        assert isinstance(late, Failed)
        assert late.code == "timeout"
    offered = await answer(ask())
    assert isinstance(offered, Offered)
    assert len(offered.candidates) == 1
    assert begun == [0, 1]
    await source.aclose()


@pytest.mark.parametrize("closed", [True, False])
async def test_a_source_that_ends_does_not_wait_for_the_whole_folder(tmp_path: Path, *, closed: bool) -> None:
    """Whether it is closed, or the event loop ends and cancels what goes on."""
    docs = tmp_path / "docs"
    await anyio.Path(docs).mkdir()
    for number in range(50):
        await anyio.Path(docs / f"{number}.md").write_text("tea")
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    done: list[int] = []
    going = threading.Event()

    def wait(number: int, _of: int) -> None:
        done.append(number)
        loop.call_soon_threadsafe(begun.set)
        going.wait(30)

    source = FolderSource(docs, data=tmp_path / "data", progress=wait)
    others = asyncio.all_tasks()
    asking = asyncio.create_task(source.refresh())
    await begun.wait()
    if closed:
        closing = asyncio.create_task(source.aclose())
        await asyncio.sleep(0)
        going.set()
        await closing
        with pytest.raises(IndexStoppedError):
            await asking
    else:
        for task in asyncio.all_tasks() - others:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        going.set()
        await source.aclose()
    assert done == [0]


@pytest.mark.rule("D.K.10")
async def test_without_accounting_a_retrieve_function_gets_no_charge(ask: Ask) -> None:
    charges: list[object] = []

    async def retrieve(_query: str, _top_k: int, *, charge: object = None) -> Sequence[object]:
        charges.append(charge)
        return []

    assert isinstance(await handler(rag_source(retrieve=retrieve))(ask()), Offered)
    assert charges == [None]


@pytest.mark.rule("D.K.8", "D.K.9")
@pytest.mark.parametrize("as_mapping", [False, True])
async def test_chunks_of_a_retrieve_function_are_named_by_their_index(ask: Ask, *, as_mapping: bool) -> None:
    asked: list[tuple[str, int]] = []

    async def retrieve(query: str, top_k: int) -> Sequence[object]:
        asked.append((query, top_k))
        chunk = Chunk(12, "a text", 0.5)
        return [msgspec.structs.asdict(chunk) if as_mapping else chunk]

    offered = await handler(rag_source(retrieve=retrieve))(ask("tea", limit=7))
    assert isinstance(offered, Offered)
    (found,) = offered.candidates
    assert (found.record_id, found.text, found.score, found.revision) == ("12", "a text", 0.5, None)
    assert asked == [("tea", 7)]


@pytest.mark.rule("D.K.27")
@pytest.mark.parametrize("chunk", [None, Chunk(-1, "t", 1), {"index": "1", "text": "t", "score": 1}, {"index": 1}])
async def test_a_chunk_that_is_none_fails_the_answer(ask: Ask, chunk: object) -> None:
    async def retrieve(_query: str, _top_k: int) -> Sequence[object]:
        return [chunk]

    answer = await handler(rag_source(retrieve=retrieve))(ask())
    assert isinstance(answer, Failed)
    assert answer.code == "malformed"


@pytest.mark.rule("D.K.20")
def test_retrieve_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="function"):
        rag_source(retrieve=cast("Retrieve", "docs"))


async def test_a_plain_retrieve_function_runs_in_a_thread(ask: Ask) -> None:
    threads: list[int] = []

    def retrieve(query: str, top_k: int) -> Sequence[object]:
        threads.append(threading.get_ident())
        return [Chunk(0, query, top_k)]

    offered = await handler(rag_source(retrieve=retrieve))(ask("tea", limit=3))
    assert isinstance(offered, Offered)
    assert [(found.text, found.score) for found in offered.candidates] == [("tea", 3.0)]
    assert threads != [threading.get_ident()]


@pytest.mark.rule("D.K.27")
@pytest.mark.parametrize("found", [None, "chunks", 7])
async def test_what_is_no_list_of_chunks_fails_the_answer(ask: Ask, found: object) -> None:
    async def retrieve(_query: str, _top_k: int) -> Sequence[object]:
        return cast("Sequence[object]", found)

    answer = await handler(rag_source(retrieve=retrieve))(ask())
    assert isinstance(answer, Failed)
    assert answer.code == "malformed"


@pytest.mark.data
def test_recall_on_real_documents_is_above_plain_bm25(shared_data: Path, tmp_path: Path) -> None:
    banking = shared_data / "banking"
    index = RagIndex(banking, tmp_path / "rag.sqlite", patterns=("documents.jsonl",), target_tokens=20_000)
    assert index.refresh().chunks == 698
    cases = [json.loads(line) for line in (banking / "queries.jsonl").read_text().splitlines()]
    shares: list[float] = []
    for case in cases:
        room, fitting = 8192 * 4, set[str]()
        # Whole documents, so that a required one counts only if all of it fits; the query is cut as D.G.19 cuts it.
        for hit in index.search(case["query"][:2000], 400):
            if len(hit.text) <= room:
                room -= len(hit.text)
                fitting.add(hit.record_id.removeprefix("documents.jsonl/").removesuffix("#0"))
        required = set(case["required_documents"])
        shares.append(len(required & fitting) / len(required))
    assert sum(shares) / len(shares) >= 0.218
