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

from contextbus.sources.chunking import DEFAULT_TARGET_TOKENS
from contextbus.sources.documents import DEFAULT_PATTERNS
from contextbus.sources.interface import Answer, MalformedAnswerError, candidate, check_source, is_async
from contextbus.sources.rag_index import IndexStoppedError, Progress, RagIndex, Refreshed
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.questions import Query
from contextbus_protocol.subjects import encode_name
from contextbus_protocol.values import Candidate, SourceKind

DEFAULT_ID: Final = "rag"
FRESH_SECONDS: Final = 2.0
_REST_FACTOR: Final = 10

Retrieve = Callable[[str, int], Awaitable[Sequence[object]]]


class FolderSource:
    """A folder of text files as a source: chunked, indexed and kept fresh (D.K.1).

    Args:
        folder: The folder of documents.
        data: The folder for the index file.
        id: The source's id; by default the kind's name.
        required: Whether a step fails without it.
        patterns: Which files to take, as ``fnmatch`` patterns of names or relative paths.
        target_tokens: The longest chunk, in tokens of four characters (D.M.12).
        fresh_seconds: For how long the folder is not looked at again.
        progress: Told, from a worker thread, how many files are read of how many.
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
    ) -> None:
        self.id = id
        self.required = required
        path = Path(data) / f"rag-{encode_name(id)}.sqlite"
        self._index = RagIndex(Path(folder), path, patterns=tuple(patterns), target_tokens=target_tokens)
        self.options_digest = self._index.options_digest
        self._fresh_seconds = fresh_seconds
        self._progress = progress
        self._due = 0.0
        self._task: asyncio.Task[Refreshed] | None = None
        check_source(self)

    async def refresh(self) -> Refreshed:
        """Bring the index up to date; who asks while that goes on waits for the same work.

        Raises:
            NotADirectoryError: the folder does not exist.
            IndexStoppedError: the source was closed meanwhile.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._refresh())
            self._task.add_done_callback(_see)
        # A query that is given up must not stop what others wait for, nor have it begun once more beside it.
        return await asyncio.shield(self._task)

    async def query(self, query: Query) -> Answer:
        """The best chunks for the query's text, best first."""
        await self._freshen()
        hits = await anyio.to_thread.run_sync(self._index.search, query.text, query.limit, abandon_on_cancel=True)
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
        await anyio.to_thread.run_sync(self._index.close)

    async def _freshen(self) -> None:
        if time.monotonic() >= self._due:
            try:
                await self.refresh()
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
        return done


def _see(task: asyncio.Task[Refreshed]) -> None:
    """Look at the outcome, so that a failure that nobody waits for any more is no complaint of the event loop."""
    if not task.cancelled():
        task.exception()


class RetrieveSource:
    """A retrieve function as a source: candidates are its chunks by ``index``, ``text`` and ``score`` (D.K.8)."""

    kind: SourceKind = "rag"

    def __init__(self, retrieve: Retrieve, *, source_id: str = DEFAULT_ID, required: bool = False) -> None:
        if not is_async(retrieve):
            raise InvalidTypeError("retrieve must be an async function (query, top_k) -> chunks")
        self.id = source_id
        self.required = required
        self._retrieve = retrieve
        check_source(self)

    async def query(self, query: Query) -> Answer:
        """Retrieve ``limit`` chunks (D.K.9)."""
        found = await self._retrieve(query.text, query.limit)
        return [_chunk_candidate(chunk) for chunk in found]


def rag_source(
    *,
    retrieve: Retrieve,
    id: str = DEFAULT_ID,  # noqa: A002  (the word that users write)
    required: bool = False,
) -> RetrieveSource:
    """Make a source of ``async retrieve(query, top_k)`` (D.K.1, D.K.8, D.K.9).

    The chunks have ``index``, ``text`` and ``score``, as attributes or keys.

    Raises:
        InvalidTypeError: the id is unusable or ``retrieve`` is no async function (D.K.20).
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
