"""Sources of kind ``rag``: a folder of documents, or a retrieve function of the user's own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import anyio
import anyio.to_thread

from contextbus.runtime.logs import get_logger
from contextbus.sources.accounting import Charge
from contextbus.sources.chunking import DEFAULT_TARGET_TOKENS
from contextbus.sources.documents import DEFAULT_PATTERNS
from contextbus.sources.embedding import Embed, Embedder
from contextbus.sources.interface import Answer, MalformedAnswerError, candidate, check_source
from contextbus.sources.rag_index import IndexStoppedError, Progress, RagIndex, Refreshed
from contextbus.sources.vectors import DimensionError, Near
from contextbus.user_functions import DEFAULT_THREADS, UserFunction
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.questions import Query
from contextbus_protocol.subjects import encode_name
from contextbus_protocol.values import Candidate, SourceKind

DEFAULT_ID: Final = "rag"
FRESH_SECONDS: Final = 2.0
EMBED_SECONDS: Final = 60.0
EMBED_AGAIN_SECONDS: Final = 30.0
_REST_FACTOR: Final = 10
_QUERY_SHARE: Final = 0.5

Retrieve = Callable[[str, int], Awaitable[Sequence[object]] | Sequence[object]]

_log = get_logger(__name__)


class FolderSource:
    """A folder of text files as a source: chunked, indexed and kept fresh (D.K.1).

    With an embedder the ranking by words and the one by cosine are fused by reciprocal rank.  Chunks are embedded
    beside the queries; one without a vector is found by its words, and so is every one while the embedder fails.

    Args:
        folder: The folder of documents.
        data: The folder for the index file.
        id: The source's id; by default the kind's name.
        required: Whether a step fails without it.
        patterns: Which files to take, as ``fnmatch`` patterns of names or relative paths.
        target_tokens: The longest chunk, in tokens of four characters (D.M.12).
        fresh_seconds: For how long the folder is not looked at again.
        progress: Told, from a worker thread, how many files are read of how many.
        embed: ``async (texts) -> vectors``; with a keyword ``charge`` it gets one for the text of a query (D.K.10).
        embedder: Names the vectors, which are kept under that name (D.K.23); an accounted embedder has its own.
        embed_again_seconds: For how long chunks are not embedded after the embedder failed.

    Raises:
        InvalidTypeError: the id is unusable, ``embed`` is no async function, or nothing names it.
    """

    kind: SourceKind = "rag"

    def __init__(
        self,
        folder: Path | str,
        *,
        data: Path | str,
        id: str = DEFAULT_ID,  # noqa: A002  (the word that users write)
        required: bool = False,
        patterns: Sequence[str] = DEFAULT_PATTERNS,
        target_tokens: int = DEFAULT_TARGET_TOKENS,
        fresh_seconds: float = FRESH_SECONDS,
        progress: Progress | None = None,
        embed: Embed | None = None,
        embedder: str | None = None,
        embed_again_seconds: float = EMBED_AGAIN_SECONDS,
    ) -> None:
        self.id = id
        self.required = required
        path = Path(data) / f"rag-{encode_name(id)}.sqlite"
        self._embedder = None if embed is None else Embedder(embed, name=embedder)
        self._index = RagIndex(
            Path(folder),
            path,
            patterns=tuple(patterns),
            target_tokens=target_tokens,
            embedder="" if self._embedder is None else self._embedder.name,
        )
        self.options_digest = self._index.options_digest
        self._fresh_seconds = fresh_seconds
        self._progress = progress
        self._due = 0.0
        self._task: asyncio.Task[Refreshed] | None = None
        self._embed_again_seconds = embed_again_seconds
        self._embed_due = 0.0
        self._embedding: asyncio.Task[None] | None = None
        check_source(self)

    async def refresh(self) -> Refreshed:
        """Bring the index up to date, vectors included; who asks while that goes on waits for the same work.

        Raises:
            NotADirectoryError: the folder does not exist.
            IndexStoppedError: the source was closed meanwhile.
            DimensionError: the embedder gives vectors of other dimensions than those in the index.
        """
        done = await self._index_files()
        if self._embedding is not None:
            await asyncio.shield(self._embedding)
        return done

    async def _index_files(self) -> Refreshed:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._refresh())
            self._task.add_done_callback(_see)
        # A query that is given up must not stop what others wait for, nor have it begun once more beside it.
        return await asyncio.shield(self._task)

    async def query(self, query: Query, *, charge: Charge | None = None) -> Answer:
        """The best chunks for the query's text, best first.

        Raises:
            DimensionError: the embedder gives vectors of other dimensions than those in the index.
        """
        await self._freshen()
        near = await self._embed_query(query.text, charge)
        hits = await anyio.to_thread.run_sync(self._index.search, query.text, query.limit, near, abandon_on_cancel=True)
        return [candidate(hit.record_id, hit.text, hit.score) for hit in hits]

    async def keep(self) -> None:
        """Index at once and look again from time to time, so that queries find the work done."""
        while True:
            with contextlib.suppress(IndexStoppedError):  # the process ends
                await self._freshen()
            await anyio.sleep(max(self._fresh_seconds, self._due - time.monotonic()))

    def stop(self) -> None:
        """Index no more; queries are answered from what is there."""
        self._index.stop()

    async def aclose(self) -> None:
        """Stop what goes on, and close the index."""
        self._index.stop()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._embedding is not None:
            self._embedding.cancel()
            await asyncio.wait([self._embedding])
        await anyio.to_thread.run_sync(self._index.close)

    async def _freshen(self) -> None:
        if time.monotonic() >= self._due:
            try:
                await self._index_files()
            except IndexStoppedError:
                if not self._due:
                    raise

    async def _refresh(self) -> Refreshed:
        begun = time.monotonic()
        try:
            done = await anyio.to_thread.run_sync(self._index.refresh, self._progress)
        except asyncio.CancelledError:
            self._index.stop()  # the event loop ends; the thread must end with it
            raise
        ended = time.monotonic()
        # Looking at a very large folder must not become most of the work.
        self._due = ended + max(self._fresh_seconds, _REST_FACTOR * (ended - begun))
        self._start_embedding()
        return done

    def _start_embedding(self) -> None:
        goes_on = self._embedding is not None and not self._embedding.done()
        if self._embedder is None or goes_on or time.monotonic() < self._embed_due:
            return
        self._embedding = asyncio.create_task(self._embed_chunks(self._embedder))
        self._embedding.add_done_callback(_see)

    async def _embed_chunks(self, embedder: Embedder) -> None:
        """Embed the chunks without a vector, a batch at a time; texts that did not change have theirs."""
        row = 0
        while missing := await anyio.to_thread.run_sync(self._index.read_missing, embedder.name, row, embedder.batch):
            row = missing[-1].row
            texts = {chunk.digest: chunk.text for chunk in missing}
            try:
                with anyio.fail_after(EMBED_SECONDS):
                    vectors = await embedder.embed(tuple(texts.values()))
                made = dict(zip(texts, vectors, strict=True))
                await anyio.to_thread.run_sync(self._index.add_vectors, embedder.name, made)
            except Exception as exc:
                self._embed_due = time.monotonic() + self._embed_again_seconds
                _log.warning("embedder_failed", source=self.id, embedder=embedder.name, error=type(exc).__name__)
                if isinstance(exc, DimensionError):
                    raise
                return

    async def _embed_query(self, text: str, charge: Charge | None) -> Near | None:
        """The vector of a query; None if there is nothing to compare it with, or the embedder fails or is late."""
        embedder = self._embedder
        if embedder is None or not text.strip():
            return None
        if not await anyio.to_thread.run_sync(self._index.has_vectors, embedder.name, abandon_on_cancel=True):
            return None
        # The words alone are an answer too, so the embedder may not use up the time of a query.
        left = anyio.current_effective_deadline() - anyio.current_time()
        error = "TimeoutError"
        with anyio.move_on_after(left * _QUERY_SHARE):
            try:
                (vector,) = await embedder.embed((text,), charge)
            except Exception as exc:  # it may fail in any way
                error = type(exc).__name__
            else:
                return Near(embedder.name, vector)
        _log.warning("embedder_failed", source=self.id, embedder=embedder.name, error=error)
        return None


def _see(task: asyncio.Task[Refreshed] | asyncio.Task[None]) -> None:
    """Look at the outcome, so that a failure that nobody waits for any more is no complaint of the event loop."""
    if not task.cancelled():
        task.exception()


class RetrieveSource:
    """A retrieve function as a source: candidates are its chunks by ``index``, ``text`` and ``score`` (D.K.8)."""

    kind: SourceKind = "rag"

    def __init__(
        self,
        retrieve: Retrieve,
        *,
        source_id: str = DEFAULT_ID,
        required: bool = False,
        threads: int = DEFAULT_THREADS,
    ) -> None:
        if not callable(retrieve):
            raise InvalidTypeError("retrieve must be a function (query, top_k) -> chunks, async or not")
        self.id = source_id
        self.required = required
        self._retrieve = UserFunction(retrieve, name=str(source_id), arguments=2, threads=threads)
        check_source(self)

    async def query(self, query: Query, *, charge: Charge | None = None) -> Answer:
        """Retrieve ``limit`` chunks (D.K.9); a function with a keyword ``charge`` gets it (D.K.10)."""
        found = await self._retrieve(query.text, query.limit, charge=charge)
        if not isinstance(found, Sequence) or isinstance(found, str | bytes):
            raise MalformedAnswerError("retrieve must return a list of chunks")
        return [_chunk_candidate(chunk) for chunk in cast("Sequence[object]", found)]


def rag_source(
    *,
    retrieve: Retrieve,
    id: str = DEFAULT_ID,  # noqa: A002  (the word that users write)
    required: bool = False,
) -> RetrieveSource:
    """Make a source of ``async retrieve(query, top_k)`` (D.K.1, D.K.8, D.K.9).

    The chunks have ``index``, ``text`` and ``score``, as attributes or keys.  A function that is not async runs in a
    thread.  One with a keyword ``charge`` gets a ``Charge`` for a query that somebody accounts for, and else is called
    without it (D.K.10); to embed a text with it, ``Embedder.embed`` takes it.

    Raises:
        InvalidTypeError: the id is unusable, ``retrieve`` is no function, or its ``charge`` has no default (D.K.20).
    """
    return RetrieveSource(retrieve, source_id=id, required=required)


def _chunk_candidate(chunk: object) -> Candidate:
    index, text, score = (_read(chunk, name) for name in ("index", "text", "score"))
    if type(index) is not int or index < 0 or not isinstance(text, str):
        raise MalformedAnswerError("a chunk needs an index (an integer from 0) and a text")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise MalformedAnswerError("a chunk needs a score, a finite number")
    return candidate(str(index), text, score)


def _read(chunk: object, name: str) -> object:
    if isinstance(chunk, Mapping):
        return cast("Mapping[object, object]", chunk).get(name)
    return getattr(chunk, name, None)
