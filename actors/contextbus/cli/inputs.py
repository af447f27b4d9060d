"""Files that commands read: conversations, memory records, working memory, documents."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

import anyio.to_thread
import msgspec

from contextbus.cli.failures import UsageFault
from contextbus.cli.models import Written
from contextbus.core.importers import SESSIONS, Conversation, Form, detect, read_conversations
from contextbus.runtime.datafolder import PRIVATE_FOLDER
from contextbus.sources.documents import DEFAULT_PATTERNS, MAX_FILE_BYTES, has_files
from contextbus.sources.rag import FolderSource
from contextbus.sources.rag_index import Progress
from contextbus.sources.skill_files import SKILL_FILE
from contextbus_protocol.errors import ForbiddenError, InvalidTypeError
from contextbus_protocol.values import Scope, Value
from contextbus_protocol.working_memory import TasksInput, WorkingMemorySnapshot

LONGEST_BYTES: Final = 256 * 1024 * 1024
DOCS_ID: Final = "docs"
ENDINGS: Final = ", ".join(pattern.removeprefix("*") for pattern in DEFAULT_PATTERNS)
_MAX_TOKENS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MEMORY_FORM: Final = (
    '{"goal": "…", "constraints": ["…"], "tasks": {"list": {"goal": "…", "tasks": '
    '[{"id": "…", "title": "…", "status": "pending"}]}, "activeTaskId": "…"}}, or a snapshot'
)

T = TypeVar("T")


class MemoryLine(msgspec.Struct, frozen=True):
    """One memory record to remember; ``id`` names the record that it changes, if it changes one."""

    text: str
    id: str | None = None
    origin: str = "asserted"


class WorkingMemoryFile(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new working memory is made of."""

    goal: str | None = None
    constraints: tuple[str, ...] = ()
    tasks: TasksInput | None = None
    goal_ref: str | None = None


def read_bytes(path: Path) -> bytes:
    """The bytes of a file that a user named.

    Raises:
        UsageFault: it is missing, no file, not readable, empty, or too large.
    """
    try:
        if path.is_dir():
            raise UsageFault(f"{path} is a folder; name a file")
        if path.stat().st_size > LONGEST_BYTES:
            raise UsageFault(f"{path} is larger than {LONGEST_BYTES // 1024 // 1024} MiB; split it")
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageFault(f"there is no file {path}; check the path") from None
    except OSError as exc:
        raise UsageFault(f"{path} cannot be read: {exc.strerror}") from None
    if not data.strip():
        raise UsageFault(f"{path} is empty; it should hold JSON")
    return data


class ConversationFile(msgspec.Struct, frozen=True):
    """The conversations of a file, what it says of the call of each, and whose form it has."""

    conversations: tuple[Conversation, ...]
    written: tuple[Written, ...]
    form: Form


def read_conversation_file(path: Path) -> ConversationFile:
    """Every conversation of a file.

    Raises:
        UsageFault: it cannot be read; the message names the file and the place in it.
    """
    data = read_bytes(path)
    try:
        conversations, form = read_conversations(data), detect(data)
    except InvalidTypeError as exc:
        raise UsageFault(f"{path}: {exc.message}") from None
    for number, conversation in enumerate(conversations):
        if not conversation.messages:
            raise UsageFault(f"{path}: conversation {number} holds no messages")
    written = (Written(_issuer_of(conversations[0])),) if form in SESSIONS else _read_written(data, len(conversations))
    return ConversationFile(conversations, written, form)


def _issuer_of(conversation: Conversation) -> str | None:
    """The model that wrote the newest answer of a session, where its file says so."""
    for message in reversed(conversation.messages):
        for part in (message, *reversed(message.content)):
            if part.provider_data is not None and part.provider_data.model is not None:
                return part.provider_data.model
    return None


def _read_written(data: bytes, count: int) -> tuple[Written, ...]:
    """What a file that could be read says of its calls; nothing where that is no member beside the messages."""
    text = data.decode("utf-8-sig", "replace")
    values: list[object]
    try:
        value = json.loads(text)
        values = cast("list[object]", value) if isinstance(value, list) else [value]
    except ValueError:
        values = [json.loads(line) for line in text.split("\n") if line.strip()]
    if len(values) != count:
        return (Written(),) * count
    return tuple(_written_in(value) for value in values)


def _written_in(value: object) -> Written:
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    model = fields.get("model")
    counts = [fields.get(name) for name in _MAX_TOKENS]
    most = next((count for count in counts if type(count) is int and count > 0), None)
    return Written(model if isinstance(model, str) and model.strip("/ ") else None, most)


def choose_conversation(
    path: Path,
    conversations: tuple[Conversation, ...],
    wanted: str | None,
    otherwise: str = ", or compile all of them with --all",
) -> int:
    """The index of the one conversation that is meant, by id or by its index from 0.

    ``otherwise`` is what else the command can do with several, told where none is named.

    Raises:
        UsageFault: there is no such conversation, or the file holds several and none is named.
    """
    if wanted is None:
        if len(conversations) == 1:
            return 0
        raise UsageFault(
            f"{path} holds {len(conversations)} conversations; pick one with --conversation ID "
            f"or 0 to {len(conversations) - 1}{otherwise}"
        )
    for index, conversation in enumerate(conversations):
        if conversation.id == wanted:
            return index
    if wanted.isdecimal() and int(wanted) < len(conversations):
        return int(wanted)
    raise UsageFault(f"{path} has no conversation {wanted!r}; give an id in it, or 0 to {len(conversations) - 1}")


def read_memories(path: Path) -> tuple[MemoryLine, ...]:
    """Memory records, one a line: ``{"text": …}`` or a JSON string.

    Raises:
        UsageFault: a line is neither; the message names it.
    """
    lines: list[MemoryLine] = []
    for number, line in enumerate(read_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line, type=MemoryLine | str)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise UsageFault(f'{path}, line {number}: expected {{"text": "…"}} or a JSON string') from None
        memory = MemoryLine(found) if isinstance(found, str) else found
        if not memory.text.strip():
            raise UsageFault(f"{path}, line {number}: the text is empty")
        lines.append(memory)
    return tuple(lines)


def message_id(memory: MemoryLine, scope: Scope) -> str:
    """The id under which a record is remembered: the same text is remembered once for a scope."""
    content = json.dumps([memory.id, memory.text, memory.origin, as_fields(scope)], ensure_ascii=False)
    return f"cli-{hashlib.sha256(content.encode('utf-8', 'replace')).hexdigest()[:32]}"


def explain_refused(refused: Sequence[ForbiddenError]) -> str:
    """How many lines of a file were skipped because their texts were forgotten, and how the first is allowed again."""
    number = len(refused)
    lines = "1 record was" if number == 1 else f"{number} records were"
    return f"{lines} skipped; the {'' if number == 1 else 'first '}reason: {refused[0].message}"


def read_working_memory(path: Path) -> WorkingMemoryFile | WorkingMemorySnapshot:
    """What a new working memory is made of, or a snapshot of one.

    Raises:
        UsageFault: it is neither.
    """
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    fields = _decode(path, data, dict[str, object])
    if "version" in fields:
        return _decode(path, data, WorkingMemorySnapshot)
    return _decode(path, data, WorkingMemoryFile)


def _decode(path: Path, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise UsageFault(f"{path}: {exc}; expected {_MEMORY_FORM}") from None


def name_docs(count: int, first: str = DOCS_ID) -> tuple[str, ...]:
    """The source ids of several folders of documents: docs, docs-2 and so on."""
    return tuple(first if number == 1 else f"{first}-{number}" for number in range(1, count + 1))


async def check_docs(paths: Sequence[Path]) -> None:
    """Make sure that there is something to index, before anything is started for it.

    Raises:
        UsageFault: there is nothing at a path, or no document.
    """
    ended = threading.Event()

    def check() -> None:
        if ended.is_set():
            raise InterruptedError

    try:
        for path in paths:
            await anyio.to_thread.run_sync(_check_docs, path, check)
    finally:
        ended.set()  # a large folder must not be looked through for a command that was ended


def _check_docs(path: Path, check: Callable[[], None]) -> None:
    if not path.exists():
        raise UsageFault(f"there are no documents at {path}; check the path given to --docs")
    if path.is_dir():
        if not has_files(path, check=check):
            raise UsageFault(
                f"{path} holds no documents: give --docs a folder with files of {ENDINGS} "
                f"(up to {MAX_FILE_BYTES // 1024 // 1024} MiB each; hidden files and links do not count)"
            )
    elif not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in DEFAULT_PATTERNS):
        raise UsageFault(f"{path} is no document: give --docs a folder, or a file of {ENDINGS}")
    elif not has_files(path.parent, (f"/{glob.escape(path.name)}",)):
        raise UsageFault(
            f"{path} cannot be taken: it is hidden, a link, or larger than {MAX_FILE_BYTES // 1024 // 1024} MiB; "
            "name the file itself, or split it"
        )


def check_skills(path: Path | None) -> None:
    """Make sure that there is a folder with skills, if one is named.

    Raises:
        UsageFault: there is none, or nothing in it is named like a skill.
    """
    if path is None:
        return
    if not path.is_dir():
        raise UsageFault(f"there is no folder of skills at {path}; check the path given to --skills")
    if not has_files(path, (SKILL_FILE,)):
        raise UsageFault(f"{path} holds no skills: give --skills a folder with folders that each have a {SKILL_FILE}")


def open_docs(
    path: Path, *, source_id: str, data: Path, required: bool = False, progress: Progress | None = None
) -> FolderSource:
    """A source of a folder of documents, or of one file of them; its index is kept for the next time."""
    folder, patterns = (path, DEFAULT_PATTERNS) if path.is_dir() else (path.parent, (f"/{glob.escape(path.name)}",))
    # Another folder under the same id, here or in another process, must not throw this index away.
    place = data / "indexes" / hashlib.sha256(str(path.absolute()).encode("utf-8", "replace")).hexdigest()[:12]
    place.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    return FolderSource(folder, data=place, id=source_id, required=required, patterns=patterns, progress=progress)


def as_fields(value: object) -> dict[str, object]:
    """A struct as JSON would hold it."""
    return cast("dict[str, object]", msgspec.to_builtins(value))
