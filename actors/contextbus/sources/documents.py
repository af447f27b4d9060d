"""Documents in a folder: which files there are, and what texts they hold.  All of it blocks: use a thread."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from contextbus_protocol.digests import clean_text

DEFAULT_PATTERNS: Final = ("*.md", "*.markdown", "*.txt", "*.rst", "*.jsonl")
MAX_FILE_BYTES: Final = 32 * 1024 * 1024
_BINARY_PROBE: Final = 8192

OTHER_ENDING: Final = "other ending"
TOO_LARGE: Final = "too large"
UNREADABLE: Final = "unreadable"
WITHOUT_TEXT: Final = "without text"


class FoundFile(msgspec.Struct, frozen=True):
    """A file by its path relative to the folder, with ``/``; size in bytes, time of change in nanoseconds."""

    path: str
    size: int
    changed: int


class Survey(msgspec.Struct, frozen=True):
    """What a folder holds: the files to take, ordered by path, and how many others there are by reason."""

    files: tuple[FoundFile, ...]
    skipped: Mapping[str, int]


class Document(msgspec.Struct, frozen=True):
    """One text: a file, or one line of a JSON Lines file."""

    id: str
    title: str
    text: str


class _Line(msgspec.Struct):
    text: str
    id: str | int | None = None
    title: str = ""


_lines: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)

Check = Callable[[], None]


def _go_on() -> None:
    """Let the work go on."""


def find_files(folder: Path, patterns: tuple[str, ...] = DEFAULT_PATTERNS) -> tuple[FoundFile, ...]:
    """List the files of a folder and its subfolders that match a pattern, ordered by path; see ``survey_folder``."""
    return survey_folder(folder, patterns).files


def has_files(folder: Path, patterns: tuple[str, ...] = DEFAULT_PATTERNS, *, check: Check = _go_on) -> bool:
    """Whether a folder holds any file that matches a pattern; ``check`` as in ``survey_folder``."""
    return next(_walk(folder, patterns, Counter(), check), None) is not None


def survey_folder(folder: Path, patterns: tuple[str, ...] = DEFAULT_PATTERNS, *, check: Check = _go_on) -> Survey:
    """List the files of a folder and its subfolders that match a pattern, and count those left out.

    ``check`` is called between files; what it raises ends the work.  Hidden files and folders, links, files above
    ``MAX_FILE_BYTES`` and names that are not UTF-8 are left out: a link could lead out of the folder.  Of these only
    files that are too large, and what cannot be read, are counted.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"no folder of documents at {str(folder)!r}: name one that exists")
    skipped: Counter[str] = Counter()
    files = sorted(_walk(folder, patterns, skipped, check), key=lambda file: file.path)
    return Survey(tuple(files), dict(skipped))


def read_file(folder: Path, path: str) -> bytes | None:
    """The bytes of a file; None if it is gone, cannot be read, or turned into a link."""
    try:
        descriptor = os.open(folder / path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return None


def parse_file(path: str, data: bytes) -> Iterator[Document]:
    """The documents of a file: its lines if it is a JSON Lines file of ``{id, title, text}``, else its text.

    Lines that are no such object, binary files and empty texts yield nothing.  A text that is not UTF-8 is taken as
    Windows-1252, or as Latin-1 where it is not that either.
    """
    if path.lower().endswith(".jsonl"):
        seen: set[str] = set()
        for number, line in enumerate(data.split(b"\n"), start=1):
            document = _parse_line(path, number, line)
            if document is not None and document.id not in seen:
                seen.add(document.id)
                yield document
    elif b"\0" not in data[:_BINARY_PROBE]:
        text = _decode(data).replace("\r\n", "\n")
        if text.strip():
            yield Document(path, path.rsplit("/", 1)[-1], text)


def _decode(data: bytes) -> str:
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


def _parse_line(path: str, number: int, line: bytes) -> Document | None:
    if not line.strip():
        return None
    try:
        found = _lines.decode(line.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not found.text.strip():
        return None
    name = str(number) if found.id in (None, "") else str(found.id)
    return Document(clean_text(f"{path}/{name}"), clean_text(found.title), clean_text(found.text))


def _walk(folder: Path, patterns: tuple[str, ...], skipped: Counter[str], check: Check) -> Iterator[FoundFile]:
    pending = [("", folder)]
    # A pattern that starts with "/" names files of the folder itself; nothing below needs to be looked at for it.
    deep = not all(pattern.startswith("/") for pattern in patterns)
    while pending:
        prefix, here = pending.pop()
        try:
            entries = list(os.scandir(here))
        except OSError:
            skipped[UNREADABLE] += 1  # not ours to read, or gone meanwhile
            continue
        for entry in entries:
            check()
            path = prefix + entry.name
            if entry.name.startswith(".") or clean_text(entry.name) != entry.name:
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                skipped[UNREADABLE] += 1
                continue
            if stat.S_ISDIR(found.st_mode) and deep:
                pending.append((path + "/", here / entry.name))
            elif not stat.S_ISREG(found.st_mode):
                continue
            elif not _matches(path, patterns):
                skipped[OTHER_ENDING] += deep
            elif found.st_size > MAX_FILE_BYTES:
                skipped[TOO_LARGE] += 1
            else:
                yield FoundFile(path, found.st_size, found.st_mtime_ns)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    name = path.rsplit("/", 1)[-1]
    return any(
        fnmatch.fnmatchcase(f"/{path}", pattern)
        if pattern.startswith("/")
        else fnmatch.fnmatchcase(path if "/" in pattern else name, pattern)
        for pattern in patterns
    )
