"""Session files of the Codex CLI to chat messages (P.E.9).

A line is an object with ``type`` and ``payload``; items of the conversation have the form of the OpenAI Responses API.
Files of early releases hold the items themselves, behind a first line with the session's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from contextbus.core.importers.reading import Conversation, Object, a_list, a_text, an_object, conversation_id
from contextbus.core.importers.responses_items import Item, join_items
from contextbus.core.importers.session_lines import Line, session_lines
from contextbus.core.json_text import as_list, as_object
from contextbus_protocol.chat import ChatMessage, Text
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError

_ENVELOPES: Final = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_BARE_ITEMS: Final = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "web_search_call",
)
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_LEFT_OUT: Final = ("ghost_snapshot",)  # the host's own, not sent to the model
# How a user message begins that the host wrote and that starts no turn.
_CONTEXT: Final = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<turn_aborted>",
    "<user_shell_command>",
    "<skill>",
    "<subagent_notification>",
)


def from_codex(data: object) -> Conversation:
    """Read a session: its text, its lines, or its lines decoded.

    The conversation is what the model has before it at the end of the file: ``compacted`` replaces what was before it,
    turns that were rolled back are gone.  A compaction without a ``replacement_history`` leaves the user's and the
    developer's messages and puts its own message behind them.  The instructions lead as the system message; events are
    copies for the screen and no messages.  The id is the session's; tools are not in the file.

    Raises:
        InvalidTypeError: something cannot be used; the message names the line's number and the field.
    """
    session = _Session()
    for line in session_lines(data):
        session.add(line)
    try:
        messages = join_items(map(_as_the_api, session.history))
    except RecursionError:
        raise InvalidTypeError("session: content nested too deep") from None
    if session.instructions:
        messages.insert(0, ChatMessage(role="system", content=(Text(text=session.instructions),)))
    return Conversation(messages=tuple(messages), id=session.id)


def is_codex(values: Sequence[object]) -> bool:
    """Whether decoded lines are those of a Codex session."""
    return any(map(_is_own, values))


def _is_own(value: object) -> bool:
    line = as_object(value)
    if line is None:
        return False
    if line.get("type") in _ENVELOPES:
        return as_object(line.get("payload")) is not None
    return (_is_bare_meta(line) and "instructions" in line) or line.get("record_type") == "state"


def _is_bare_meta(line: Object) -> bool:
    """Whether a line is the first one of an early release's file."""
    foreign = ("type", "role", "messages", "choices")
    return isinstance(line.get("id"), str) and "timestamp" in line and not any(key in line for key in foreign)


class _Session:
    """What was read so far: the history as the next request would hold it."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.instructions: str | None = None
        self.history: list[Item] = []
        self._model: str | None = None
        self._known = False
        self._summary: Item | None = None
        self._kept = 0  # so many items stand in front that every compaction without a replacement leaves
        self._turns: list[int] = []  # where turns start in the history

    def add(self, line: Line) -> None:
        number, value = line
        place = f"line {number}"
        kind = value.get("type")
        if kind in _BARE_ITEMS and "payload" not in value:
            self._add_item(Item(place, value))
        elif _is_bare_meta(value):
            self._add_meta(value, place)
        elif kind in _ENVELOPES:
            place = f"{place}.payload"
            payload = an_object(value.get("payload"), place)
            match kind:
                case "session_meta":
                    self._add_meta(payload, place)
                case "response_item":
                    self._add_item(Item(place, payload, self._model))
                case "turn_context":
                    model = payload.get("model")
                    self._model = clean_text(model) if isinstance(model, str) else None
                case "compacted":
                    self._compact(payload, place)
                case "event_msg" if payload.get("type") == "thread_rolled_back":
                    self._roll_back(payload.get("num_turns"))
                case _:
                    pass

    def _add_item(self, item: Item) -> None:
        if item.value.get("type") in _LEFT_OUT:
            return
        if _starts_turn(item):
            self._turns.append(len(self.history))
        self.history.append(item)

    def _add_meta(self, value: Object, place: str) -> None:
        if self._known:  # a forked session repeats its parent's lines behind its own first one
            return
        self._known = True
        self.id = conversation_id(value)
        for name in ("base_instructions", "instructions"):
            found = value.get(name)
            fields = as_object(found)
            found = found if fields is None else fields.get("text")
            if found is not None:
                self.instructions = a_text(found, f"{place}.{name}")
                return

    def _compact(self, value: Object, place: str) -> None:
        replacement = value.get("replacement_history")
        if replacement is not None:
            at = f"{place}.replacement_history"
            items = a_list(replacement, at)
            self._cut(0)
            for index, item in enumerate(items):
                self._add_item(Item(f"{at}[{index}]", an_object(item, f"{at}[{index}]")))
            return
        later = self.history[self._kept :]
        former = self._summary
        self._cut(self._kept)
        for item in later:
            if item is not former and _is_from_outside(item):
                self._add_item(item)
        self._kept = len(self.history)
        text = value.get("message")
        if text is not None and a_text(text, f"{place}.message"):
            content = [{"type": "input_text", "text": text}]
            self._summary = Item(place, {"type": "message", "role": "user", "content": content})
            self.history.append(self._summary)

    def _roll_back(self, turns: object) -> None:
        """Take the last turns away; what stands before the first turn stays."""
        if isinstance(turns, int) and turns > 0 and self._turns:
            self._cut(self._turns[-min(turns, len(self._turns))])

    def _cut(self, length: int) -> None:
        del self.history[length:]
        self._kept = min(self._kept, length)
        while self._turns and self._turns[-1] >= length:
            self._turns.pop()


def _as_the_api(item: Item) -> Item:
    """An item as the API has it: older files name the call of a local shell and mark a failed output their own way."""
    value = item.value
    kind = a_text(value.get("type"), f"{item.place}.type")
    if kind == "local_shell_call" and value.get("call_id") is None and value.get("id") is not None:
        return item._replace(value={**value, "call_id": value["id"]})  # its own id is what the output names
    output = as_object(value.get("output"))
    if kind in _OUTPUTS and output is not None and "content" in output:
        return item._replace(value={**value, "output": output["content"]}, failed=output.get("success") is False)
    return item


def _is_from_outside(item: Item) -> bool:
    return item.value.get("type") == "message" and item.value.get("role") in ("user", "developer", "system")


def _starts_turn(item: Item) -> bool:
    if item.value.get("type") != "message" or item.value.get("role") != "user":
        return False
    return not any(text.lstrip().startswith(_CONTEXT) for text in _texts(item.value.get("content")))


def _texts(content: object) -> Iterable[str]:
    if isinstance(content, str):
        yield content
    for part in as_list(content) or ():
        text = (as_object(part) or {}).get("text")
        if isinstance(text, str):
            yield text
