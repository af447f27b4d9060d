"""Folders of documents are indexed, and what they hold is told."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from contextbus.cli import inputs
from contextbus.cli.options import Place
from contextbus.cli.output import note, show_progress, stderr
from contextbus.sources.rag import FolderSource
from contextbus.sources.rag_index import Refreshed

LONG_SECONDS: Final = 1.0


class Announcer:
    """Says once that files are indexed, if that takes long; made in the event loop, told from a worker thread."""

    def __init__(self, path: Path, seconds: float = LONG_SECONDS) -> None:
        self._path = path
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._done = 0
        self._of = 0

    def __call__(self, done: int, of: int) -> None:
        """Take note of how many files are done of how many."""
        self._done, self._of = done, of
        if done == 0:
            with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                self._loop.call_soon_threadsafe(self._loop.call_later, self._seconds, self._tell)

    def _tell(self) -> None:
        if self._done < self._of:
            note(f"indexing {count(self._of, 'file')} of {self._path}")


async def index_docs(path: Path, name: str, place: Place) -> tuple[FolderSource, Refreshed]:
    """A source of a folder of documents, indexed; it is to be closed."""
    announcer = Announcer(path)
    with show_progress() as progress:
        task = progress.add_task(f"index {path}", total=None)

        def advance(done: int, of: int) -> None:
            progress.update(task, completed=done, total=of)

        docs = await anyio.to_thread.run_sync(
            lambda: inputs.open_docs(
                path,
                source_id=name,
                data=place.folder,
                progress=advance if stderr().is_terminal else announcer,
            )
        )
        try:
            return docs, await docs.refresh()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await docs.aclose()
            raise


def show_index(done: Refreshed) -> str:
    """What an index holds and what was left out, for people."""
    held = f"{count(done.files, 'file')}, {count(done.chunks, 'chunk')}"
    skipped = ", ".join(f"{number:,} {reason}" for reason, number in done.skipped.items())
    return held + (f"; skipped: {skipped}" if skipped else "")


def count(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
