"""What the rendering of a request and its targets talk about: pieces of JSON, open groups, repairs, fixed texts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec

from contextbus.core import json_text
from contextbus.core.cache_control import without_breakpoints
from contextbus.core.escape import escape_attribute, escape_text
from contextbus_protocol.chat import AnyPart, Cache, ChatMessage, Part, Text, ToolCall, ToolResult, Unknown

TEXTS_VERSION: Final = 1
"""Version of the fixed texts below (P.E.2)."""
NO_RESULT: Final = "no result was recorded"
BAD_ARGUMENTS: Final = "the arguments were not a JSON object, so the call was not executed"
DENIED: Final = "denied"
OPENING: Final = "The conversation continues."
CONTINUE: Final = "Continue."
LEFT_OUT: Final = "[{kind} left out: this model's API does not take it here]"
COMPACTION: Final = "compaction"
"""Kind of a piece that stands for everything before it but the system layer (anthropic.A17, responses.L7)."""

_SOURCES: Final = ("base64", "url", "file", "text")
_KIND = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SNAPSHOT = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")

RepairCode = Literal[
    "missing-result",
    "moved-result",
    "orphan-result",
    "late-result",
    "approval",
    "first-user",
    "last-assistant",
    "merged",
    "late-system",
    "empty",
    "repeated-id",
    "bad-arguments",
    "breakpoint",
    "thinking",
    "id",
    "unknown-part",
    "misplaced",
    "missing-tools",
    "compacted",
    "prefill",
]

Layer = Literal["system", "user", "assistant", "result"]
"""Where a part stands; ``result`` is inside a tool result."""


class Repair(msgspec.Struct, frozen=True, gc=False):
    """One repair: its code, the index of the message that was appended when it was made, and the call's id if any."""

    code: RepairCode
    message: int
    id: str | None = None


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A part as the target writes it; ``kind`` is the target's own note on how to lay it out.

    ``cache`` asks for a breakpoint behind it (P.E.4).
    """

    json: bytes
    kind: str = ""
    cache: Cache = False


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A place in a written message where a breakpoint may go: the index of the byte that ends its block (P.E.4)."""

    end: int
    cache: Cache


class Written(msgspec.Struct, frozen=True, gc=False):
    """A provider message as JSON, without breakpoints, and where breakpoints are asked for.

    ``kind`` is the target's own note on where it belongs.
    """

    json: bytes
    marks: tuple[Mark, ...] = ()
    kind: str = ""


class WrittenResult(msgspec.Struct, frozen=True, gc=False):
    """A tool's result as the target writes it: ``beside`` are blocks that stand behind all results of the group."""

    json: bytes
    codes: tuple[RepairCode, ...] = ()
    beside: tuple[bytes, ...] = ()


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One message of the open group: its pieces, and further members of the message as JSON, comma in front."""

    role: Literal["system", "developer", "user", "assistant"]
    pieces: tuple[Piece, ...]
    members: bytes = b""


class Call(msgspec.Struct, frozen=True, gc=False):
    """A call of the open group.

    ``turn`` is the assistant message that made it, ``place`` the number of pieces of that message before it, ``name``
    the tool's as it was called, ``error`` what is missing says, ``beside`` what a result brings that stands behind all
    results.  ``order`` is the place of its result among the group's as they came: Responses alone lays them out so
    (responses.R9), the others in the order of their calls.
    """

    id: str
    wire: str
    name: str
    turn: int
    place: int
    json: bytes
    error: str = NO_RESULT
    result: bytes | None = None
    beside: tuple[bytes, ...] = ()
    cache: Cache = False
    result_cache: Cache = False
    order: int = 0


class Group(msgspec.Struct, frozen=True, gc=False):
    """What can still change: assistant messages in a row, their calls, and what came after them.

    ``answered`` says that a result came, ``user`` that a message of the role user did.
    """

    turns: tuple[Turn, ...] = ()
    calls: tuple[Call, ...] = ()
    others: tuple[Turn, ...] = ()
    answered: bool = False
    user: bool = False

    @property
    def pending(self) -> bool:
        """Whether a call waits for its result."""
        return any(call.result is None for call in self.calls)


class Target(Protocol):
    """One provider's form of a request, for one model.  All methods are pure."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """The name under which a request asks for it."""
        ...

    @property
    def model_id(self) -> str | None:
        """The model that the request is for; None where it is not known."""
        ...

    @property
    def provider(self) -> str:
        """The provider whose data goes back to it (P.A.5)."""
        ...

    @property
    def list_name(self) -> str:
        """The member of the body that holds the messages."""
        ...

    @property
    def takes_prefill(self) -> bool:
        """Whether the model continues an assistant message at the end of a request (P.C.2)."""
        ...

    @property
    def takes_breakpoints(self) -> bool:
        """Whether the provider takes breakpoints from the caller; the others' are dropped (P.E.4)."""
        ...

    @property
    def merges(self) -> bool:
        """Whether neighbours of one role become one message."""
        ...

    @property
    def calls_last(self) -> bool:
        """Whether an assistant's calls end its message, and nothing may follow them (anthropic.L3)."""
        ...

    @property
    def results_alone(self) -> bool:
        """Whether anything beside results is found fault with, though it has to stand there (gemini.L8)."""
        ...

    @property
    def needs_tools(self) -> bool:
        """Whether a request with tool blocks must define tools."""
        ...

    def takes_id(self, call_id: str) -> bool:
        """Whether the provider accepts the id of a call."""
        ...

    def write_breakpoint(self, cache: Cache) -> bytes:
        """The members of a block that ask for a breakpoint behind it, comma in front; empty where none is taken."""
        ...

    def read_breakpoint(self, members: Mapping[str, object]) -> Cache:
        """What an object of the caller's in the provider's own form asks for."""
        ...

    def thinks(self, members: Mapping[str, object]) -> bool:
        """Whether members of the caller's for the body make the model think, which no prefill goes with (P.C.4)."""
        ...

    def loses_signature(self, part: Part) -> bool:
        """Whether a part came with a signature of a call or text that does not go back with it (P.E.5)."""
        ...

    def part(self, part: AnyPart, layer: Layer) -> tuple[Piece | None, RepairCode | None]:
        """A part that is neither call nor result; None where nothing of it is sent."""
        ...

    def members(self, message: ChatMessage) -> bytes:
        """Further members of a message, comma in front."""
        ...

    def call(self, call: ToolCall, wire: str, arguments: str) -> bytes:
        """A call with its wire id and sound arguments."""
        ...

    def result(self, result: ToolResult, call: Call) -> WrittenResult:
        """A tool's result for a call."""
        ...

    def error_result(self, text: str, call: Call) -> bytes:
        """A result that says what went wrong with a call."""
        ...

    def text(self, text: str) -> Piece:
        """A piece of plain text."""
        ...

    def late_system(self, pieces: tuple[Piece, ...], message: ChatMessage) -> Turn:
        """A system message after the start."""
        ...

    def lay_out(self, group: Group) -> tuple[Written, ...]:
        """The provider messages of a group whose calls all have results."""
        ...

    def tool(self, name: str, description: str, parameters: bytes) -> bytes:
        """A tool definition; ``parameters`` is a JSON Schema."""
        ...

    def fields(self, system: tuple[Written, ...], tools: Written | None) -> dict[str, Written]:
        """The members of the body before ``messages``."""
        ...

    def lead(self, system: tuple[Written, ...]) -> tuple[bytes, ...]:
        """What of the system layer begins the list of messages; the rest is in a field of its own."""
        ...

    def system(self, message: ChatMessage) -> Written | None:
        """A message of the system layer, marked where its parts ask for it; None where it is empty."""
        ...

    def opening(self) -> bytes | None:
        """What stands before a conversation that the assistant opens; None where none is needed."""
        ...

    def close(self, group: Group, *, prefilled: bool) -> tuple[Group, bool]:
        """The last group made fit to end a request, and whether that changed anything (P.E.17, anthropic.A5).

        ``prefilled`` tells that a prefill follows it.
        """
        ...

    def prefill(self, text: str) -> bytes:
        """A prefill as the last message of a request, where the model takes one (P.C.4)."""
        ...


@runtime_checkable
class Fitting(Protocol):
    """A target that looks at a whole message of the assistant before its parts are written."""

    def fit(self, message: ChatMessage) -> tuple[ChatMessage, tuple[RepairCode, ...]]:
        """The message as this target takes it, and what was repaired in it; its calls and results stay."""
        ...


def wire_name(name: str, longest: int) -> str:
    """A tool's name as providers take it: itself, or a readable form made unique by a digest.

    One function for calls and definitions, so both always agree.
    """
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in name)
    if kept == name and 0 < len(name) <= longest:
        return name
    return f"{kept[: longest - 9]}_{digest_hex(name)[:8]}"


def native_part(part: Unknown, provider: str, modelled: tuple[str, ...]) -> str | None:
    """The JSON of a part that is its provider's own and of a kind we do not model; None for any other (P.A.5)."""
    if part.provider_data is None or part.provider_data.provider != provider:
        return None
    data = json_text.sound_object(part.data)
    value = {} if data is None else json_text.read_object(data)
    kind = value.get("type")
    if data is None or not isinstance(kind, str) or (kind in modelled and not _has_new_source(value)):
        return None
    kept = without_breakpoints(value)
    return data if kept == value else json_text.encode(kept).decode()


def _has_new_source(value: dict[str, object]) -> bool:
    """Whether an image or document comes in a form that we do not model."""
    source = json_text.as_object(value.get("source"))
    return source is not None and source.get("type") not in _SOURCES


def is_issued_elsewhere(part: Part, target: Target) -> bool:
    """Whether another provider or model issued a part: what is signed goes back to its issuer alone (P.E.5).

    A dated id and the name that it is a snapshot of are one model.
    """
    data = part.provider_data
    if data is None:
        return False
    if data.provider != target.provider:
        return True
    issuer, model_id = data.model, target.model_id
    return issuer is not None and model_id is not None and _SNAPSHOT.sub("", issuer) != _SNAPSHOT.sub("", model_id)


def kind_of(part: Unknown) -> str:
    """The kind of a part, for a text that names it."""
    kind = json_text.read_object(part.data).get("type")
    return kind if isinstance(kind, str) and _KIND.fullmatch(kind) else "part"


def left_out(part: Part) -> str:
    """The fixed text in place of a part that the target does not take."""
    return LEFT_OUT.format(kind=kind_of(part) if isinstance(part, Unknown) else type(part).__name__.lower())


def late_system_turn(message: ChatMessage, target: Target) -> Turn:
    """A system message after the start as a user message in a fixed escaped element (P.E.19)."""
    text = "\n".join(part.text for part in message.content if isinstance(part, Text))
    return Turn("user", (target.text(element("system_message", text)),))


def digest_hex(text: str) -> str:
    """Hex SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def element(name: str, text: str, call_id: str | None = None) -> str:
    """A fixed element around escaped text, as repairs put it."""
    attribute = "" if call_id is None else f' id="{escape_attribute(call_id)}"'
    return f"<{name}{attribute}>\n{escape_text(text)}\n</{name}>"
