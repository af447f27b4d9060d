"""A folder with an embedder: words and vectors fused, and the words alone whenever the embedder cannot help."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.conftest import Ask
from tests.sources.embedders import HashEmbedder, embed_text

from contextbus.sources.accounting import Charge, Vectors, accounted_embedder
from contextbus.sources.announcements import announcement, check_peers
from contextbus.sources.answers import handler
from contextbus.sources.chunking import chunk_text
from contextbus.sources.documents import parse_file
from contextbus.sources.embedding import BATCH, Embedder
from contextbus.sources.fusion import fuse_ranks
from contextbus.sources.rag import FolderSource
from contextbus.sources.rag_index import RagIndex
from contextbus.sources.vectors import DimensionError, Near, unit_vector
from contextbus_protocol.errors import InvalidRequestError, RangeError
from contextbus_protocol.questions import Accounting, Failed, Offered, Query
from contextbus_protocol.values import SourceUsage

PAID = Accounting("run-1", "request-1")
TEXTS = {
    "tea.md": "# Brewing\n\nGreen tea is steeped for two minutes.",
    "cards.md": "# Fees\n\nThe blue card has no annual fee.",
    "deploy.md": "# Release\n\nDeployments need a green pipeline.",
    "rollback.md": "# Undo\n\nA rollback takes the previous image.",
}
CHUNKS = {
    name: chunk.text
    for name, text in TEXTS.items()
    for document in parse_file(name, text.encode())
    for chunk in chunk_text(document.text, title=document.title)
}


def lines(*texts: str) -> str:
    """Documents of the same title, in JSON Lines."""
    return "".join(json.dumps({"id": str(n), "title": "T", "text": text}) + "\n" for n, text in enumerate(texts))


@pytest.fixture
async def docs(tmp_path: Path) -> anyio.Path:
    folder = anyio.Path(tmp_path / "docs")
    await folder.mkdir()
    for name, text in TEXTS.items():
        await (folder / name).write_text(text)
    return folder


@contextlib.asynccontextmanager
async def opened(
    docs: anyio.Path, embed: HashEmbedder | None, *, name: str = "hash", again: float = 0.0
) -> AsyncGenerator[FolderSource]:
    source = FolderSource(
        Path(docs),
        data=Path(docs).parent / "data",
        fresh_seconds=1e9,
        embed=embed,
        embedder=None if embed is None else name,
        embed_again_seconds=again,
    )
    try:
        yield source
    finally:
        await source.aclose()


async def find(source: FolderSource, query: Query) -> list[str]:
    offered = await handler(source)(query)
    assert isinstance(offered, Offered), offered
    return [found.record_id.partition(".")[0] for found in offered.candidates]


@pytest.mark.rule("D.K.1", "D.R.15")
async def test_what_no_word_matches_is_found_by_its_vector(docs: anyio.Path, ask: Ask) -> None:
    async with opened(docs, None) as words:
        assert await find(words, ask("deploiment roll-backs")) == []
    async with opened(docs, HashEmbedder()) as both:
        await both.refresh()
        assert set((await find(both, ask("deploiment roll-backs")))[:2]) == {"deploy", "rollback"}
        assert await find(both, ask("???")) == []


@pytest.mark.rule("D.C.2")
async def test_the_order_is_that_of_the_fused_ranks(docs: anyio.Path, ask: Ask) -> None:
    text = "green deployment"
    async with opened(docs, None) as words:
        worded = await find(words, ask(text))
    query = cast("tuple[float, ...]", unit_vector(embed_text(text)))
    near = {
        name.partition(".")[0]: sum(a * b for a, b in zip(query, unit_vector(embed_text(body)) or (), strict=True))
        for name, body in CHUNKS.items()
    }
    vectored = sorted((name for name in near if near[name] > 0), key=lambda name: (-near[name], name))
    fused = fuse_ranks([worded, vectored])
    async with opened(docs, HashEmbedder()) as both:
        await both.refresh()
        offered = await handler(both)(ask(text))
        assert isinstance(offered, Offered)
        assert [(c.record_id.partition(".")[0], c.score) for c in offered.candidates] == list(fused)
        assert await find(both, ask(text, limit=2)) == [name for name, _ in fused[:2]]
        assert await find(both, ask(text, limit=0)) == []


async def test_a_text_that_did_not_change_is_not_embedded_again(docs: anyio.Path) -> None:
    first, second = HashEmbedder(), HashEmbedder()
    async with opened(docs, first) as source:
        await source.refresh()
        assert sorted(first.texts) == sorted(CHUNKS.values())
        await source.refresh()
        assert len(first.batches) == 1
        await (docs / "a.jsonl").write_text(lines("one", "two", "three"))
        await source.refresh()
        assert first.batches[1:] == [("T\none", "T\ntwo", "T\nthree")]
        await (docs / "a.jsonl").write_text(lines("one", "changed", "three"))
        await source.refresh()
        assert first.batches[2:] == [("T\nchanged",)]
    async with opened(docs, second) as source:
        await (docs / "b.jsonl").write_text(lines("three", "one"))
        await source.refresh()
        await (docs / "a.jsonl").unlink()
        await (docs / "c.jsonl").write_text(lines("changed"))
        await source.refresh()
        assert second.batches == []
    other = HashEmbedder()
    async with opened(docs, other, name="other") as source:
        await source.refresh()
        assert len(other.texts) == 4 + 3


async def test_many_chunks_are_embedded_in_batches_and_the_same_text_once(docs: anyio.Path) -> None:
    await (docs / "a.jsonl").write_text(lines(*(f"number {number // 2}" for number in range(2 * BATCH))))
    embed = HashEmbedder()
    async with opened(docs, embed) as source:
        await source.refresh()
    assert max(map(len, embed.batches)) <= BATCH
    assert len(embed.batches) >= 2
    assert len(embed.texts) == len(set(embed.texts)) == BATCH + len(TEXTS)
    with pytest.raises(RangeError):
        Embedder(embed, name="e", batch=0)


async def test_a_failing_embedder_leaves_the_words_and_a_log_line_without_content(
    docs: anyio.Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    embed = HashEmbedder()
    async with opened(docs, embed) as source:
        embed.failing = RuntimeError("the secret tea")
        await source.refresh()
        assert len(embed.batches) == 1
        assert await find(source, ask("tea")) == ["tea"]
        assert len(embed.batches) == 1  # with nothing to compare it with, a query is not embedded
        embed.failing = None
        await source.refresh()
        embed.failing = RuntimeError("the secret tea")
        assert await find(source, ask("tea secret")) == ["tea"]
        assert embed.batches[-1] == ("tea secret",)
    told = capsys.readouterr().err
    assert told.count("embedder_failed") == 2
    assert "RuntimeError" in told
    assert "tea" not in told


async def test_after_a_failure_chunks_are_left_alone_for_a_while(docs: anyio.Path) -> None:
    embed = HashEmbedder()
    embed.failing = OSError()
    async with opened(docs, embed, again=1e9) as source:
        await source.refresh()
        await source.refresh()
        assert len(embed.batches) == 1


@pytest.mark.parametrize(
    "bad",
    [
        *([], [[1.0], [2.0]], None, 7, "a", ["abc"], [None], [[]], [[float("nan")]], [[float("inf")]]),
        *([["1.0x"]], [[None]], [[10**400]]),
    ],
)
async def test_what_is_no_vector_counts_as_a_failure(docs: anyio.Path, ask: Ask, bad: object) -> None:
    class Odd(HashEmbedder):
        is_odd = False

        async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
            return cast("list[list[float]]", bad) if self.is_odd else await super().__call__(texts)

    embed = Odd()
    async with opened(docs, embed) as source:
        await source.refresh()
        embed.is_odd = True
        assert await find(source, ask("tea")) == ["tea"]


async def test_an_embedder_that_hangs_costs_a_query_half_of_its_time(docs: anyio.Path, ask: Ask) -> None:
    class Slow(HashEmbedder):
        is_slow = False

        async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
            if self.is_slow:
                await anyio.sleep_forever()
            return await super().__call__(texts)

    embed = Slow()
    async with opened(docs, embed) as source:
        await source.refresh()
        embed.is_slow = True
        assert await find(source, ask("tea", seconds_left=2.0)) == ["tea"]


async def test_queries_do_not_wait_until_everything_is_embedded(docs: anyio.Path, ask: Ask) -> None:
    go = asyncio.Event()

    class Waiting(HashEmbedder):
        async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
            await go.wait()
            return await super().__call__(texts)

    embed = Waiting()
    async with opened(docs, embed) as source:
        assert await find(source, ask("tea")) == ["tea"]
        assert embed.batches == []
        go.set()
        await source.refresh()
        assert "tea" in await find(source, ask("teas tean"))


async def test_a_source_that_is_closed_stops_embedding(docs: anyio.Path, ask: Ask) -> None:
    class Hanging(HashEmbedder):
        async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
            self.batches.append(tuple(texts))
            await anyio.sleep_forever()
            return []

    embed = Hanging()
    with anyio.fail_after(10):
        async with opened(docs, embed) as source:
            await find(source, ask("tea"))
            await anyio.wait_all_tasks_blocked()


async def test_vectors_of_other_dimensions_are_an_error_that_names_the_way_out(docs: anyio.Path, ask: Ask) -> None:
    async with opened(docs, HashEmbedder()) as source:
        await source.refresh()
    async with opened(docs, HashEmbedder(8)) as source:
        await source.refresh()  # nothing is new
        told: list[str] = []
        answer = await handler(source, on_error=lambda _query, exc: told.append(str(exc)))(ask("tea"))
        assert isinstance(answer, Failed)
        assert (answer.code, answer.origin_code, answer.origin_type) == ("error", "invalid_type", "DimensionError")
        assert "8 dimensions, the index has 256" in told[0]
        assert "another name" in told[0]
        await (docs / "new.md").write_text("something new")
        with pytest.raises(DimensionError, match="delete the index"):
            await source.refresh()


@pytest.mark.rule("D.K.23")
async def test_workers_of_one_source_have_one_embedder(docs: anyio.Path, tenant: str) -> None:
    async with (
        opened(docs, None) as words,
        opened(docs, HashEmbedder()) as one,
        opened(docs, HashEmbedder()) as same,
        opened(docs, HashEmbedder(), name="other") as other,
    ):
        check_peers(announcement(tenant, one), [announcement(tenant, same).metadata])
        for differs in (words, other):
            with pytest.raises(InvalidRequestError, match="options"):
                check_peers(announcement(tenant, one), [announcement(tenant, differs).metadata])


async def test_searches_with_and_without_an_embedder_share_one_file(docs: anyio.Path, ask: Ask) -> None:
    embed = HashEmbedder()
    async with opened(docs, embed) as source:
        await source.refresh()
        async with opened(docs, None) as words:
            assert await find(words, ask("tea")) == ["tea"]
        await source.refresh()
        assert len(embed.batches) == 1


async def test_a_text_that_goes_takes_its_vector_along(docs: anyio.Path) -> None:
    def read() -> list[bytes]:
        with contextlib.closing(sqlite3.connect(Path(docs).parent / "data" / "rag-rag.sqlite")) as connection:
            return [bytes(row[0]) for row in connection.execute("SELECT vector FROM vectors")]

    def read_files() -> bytes:
        return b"".join(path.read_bytes() for path in (Path(docs).parent / "data").iterdir())

    async with opened(docs, HashEmbedder()) as source:
        await source.refresh()
        before = await asyncio.to_thread(read)
        await (docs / "tea.md").unlink()
        await source.refresh()
        after = await asyncio.to_thread(read)
        assert (len(before), len(after)) == (4, 3)
        (gone,) = set(before) - set(after)
        on_disk = await asyncio.to_thread(read_files)
    assert gone not in on_disk
    assert all(vector[:64] in on_disk for vector in after)


async def test_a_vector_that_comes_after_its_text_is_gone_is_not_kept(docs: anyio.Path) -> None:
    def work() -> bool:
        index = RagIndex(Path(docs), Path(docs).parent / "data" / "rag.sqlite")
        try:
            index.add_vectors("e", {"sha256:gone": (1.0,)})
            return index.has_vectors("e")
        finally:
            index.close()

    assert not await asyncio.to_thread(work)


@pytest.mark.rule("D.K.10", "D.L.3", "D.L.6")
async def test_the_vector_of_a_query_is_charged_and_those_of_the_chunks_are_not(docs: anyio.Path, ask: Ask) -> None:
    embed = HashEmbedder()
    async with opened(docs, embed) as source:
        charge = Charge()
        await source.refresh()
        await source.query(ask("tea"), charge=charge)
        assert charge.usage() == (SourceUsage("hash", 1, reported=False),)
        free = await handler(source)(ask("tea"))
        assert isinstance(free, Offered)
        assert free.usage == ()
        paid = await handler(source)(ask("green tea", accounting=PAID))
        assert isinstance(paid, Offered)
        assert paid.usage == (SourceUsage("hash", 3, reported=False),)
    async with opened(docs, None) as words:
        offered = await handler(words)(ask("tea", accounting=PAID))
        assert isinstance(offered, Offered)
        assert offered.usage == ()


@pytest.mark.rule("D.L.3")
async def test_an_accounted_embedder_names_itself_and_settles(docs: anyio.Path, ask: Ask) -> None:
    made = HashEmbedder()

    async def embed(texts: Sequence[str]) -> tuple[Vectors, int]:
        return await made(texts), 5

    accounted = accounted_embedder(embed, model="small", usage_of=lambda r: r[1], vectors_of=lambda r: r[0])
    source = FolderSource(Path(docs), data=Path(docs).parent / "data", embed=accounted)
    await source.refresh()
    offered = await handler(source)(ask("tea", accounting=PAID))
    assert isinstance(offered, Offered)
    assert offered.usage == (SourceUsage("small", 5, reported=True),)
    await source.aclose()


async def test_an_embedder_is_checked_when_the_source_is_made(tmp_path: Path) -> None:
    def plain(_texts: Sequence[str]) -> Vectors:
        raise NotImplementedError

    with pytest.raises(TypeError, match="async"):
        FolderSource(tmp_path, data=tmp_path, embed=cast("HashEmbedder", plain), embedder="e")
    with pytest.raises(TypeError, match="embedder="):
        FolderSource(tmp_path, data=tmp_path, embed=HashEmbedder())
    with pytest.raises(TypeError, match="name"):
        FolderSource(tmp_path, data=tmp_path, embed=HashEmbedder(), embedder="")


@pytest.mark.rule("D.R.15")
async def test_the_embedder_of_the_tests_gives_the_same_everywhere() -> None:
    assert [round(x) for x in embed_text("tea", 8)] == [-3, 1, 0, 0, 0, 1, 0, 1]
    assert await HashEmbedder()(["tea"]) == [embed_text("tea")]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_a_vector_has_length_1_or_is_all_zeros(values: list[float]) -> None:
    vector = unit_vector(values)
    assert vector is not None
    length = sum(x * x for x in vector)
    assert length == pytest.approx(1.0) if any(values) else length == 0


def test_a_query_of_zeros_is_near_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("tea")
    index = RagIndex(tmp_path, tmp_path / "data" / "rag.sqlite")
    index.refresh()
    (missing,) = index.read_missing("e", 0, 10)
    index.add_vectors("e", {missing.digest: (0.6, 0.8)})
    assert index.search("", 5, Near("e", (0.0, 0.0))) == ()
    assert [hit.record_id for hit in index.search("", 5, Near("e", (0.0, 1.0)))] == ["a.md#0"]
    assert index.search("", 5, Near("e", (0.0, -1.0))) == ()
    assert index.search("tea", 5, Near("nobody", (1.0,)))[0].record_id == "a.md#0"
    index.close()
