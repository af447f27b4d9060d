"""The rules of the OpenAI Responses API (responses.R1 to R9, L6, L7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from contextbus.core.json_text import as_list, read_value
from contextbus.validation.findings import (
    SHAPE,
    Finding,
    Object,
    as_text,
    error,
    find_unknown_keys,
    read_objects,
    warning,
)
from contextbus.validation.models import may_reason

_LONGEST_ID: Final = 64
_OUTPUTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
}
_CALLS: Final = {output: call for call, output in _OUTPUTS.items()}
# What the model itself writes: one of these is what a reasoning item belongs to.
_MODELS: Final = (
    *_OUTPUTS,
    "code_interpreter_call",
    "compaction",
    "file_search_call",
    "image_generation_call",
    "item_reference",
    "mcp_approval_request",
    "mcp_call",
    "mcp_list_tools",
    "web_search_call",
)
_WITH_ARGUMENTS: Final = ("function_call", "mcp_call")
_STORED: Final = ("previous_response_id", "conversation", "prompt")
_ROLES: Final = ("user", "assistant", "system", "developer")
_INPUTS: Final = ("input_text", "input_image", "input_file", "input_audio")
_ANSWERS: Final = ("output_text", "refusal")
_COMPACTION: Final = ("type", "id", "encrypted_content", "created_by")


class _Item(msgspec.Struct, frozen=True):
    """An input item, its type (empty where it is none), and where it stands."""

    place: str
    kind: str
    fields: Object

    @property
    def call_id(self) -> str | None:
        """What pairs call and output; a local shell's output may name it ``id``."""
        found = self.fields.get("call_id")
        if found is None and self.kind == "local_shell_call_output":
            found = self.fields.get("id")
        return as_text(found)

    @property
    def by_model(self) -> bool:
        """Whether the model wrote it."""
        return self.kind in _MODELS or (self.kind == "message" and self.fields.get("role") == "assistant")


def check(body: Object, model: str | None) -> Iterator[Finding]:
    """What breaks the rules."""
    stored = any(body.get(key) is not None for key in _STORED)
    given = body.get("input")
    if isinstance(given, str) and given:
        return
    if not as_list(given):
        if given is not None or not stored:
            yield error(
                "responses.R1", "input", "There is no input with something in it; send a text or at least one item."
            )
        return
    items: list[_Item] = []
    for place, fields in read_objects(given, "input", "item"):
        if isinstance(fields, Finding):
            yield fields
            continue
        item = _Item(place, _read_kind(fields), fields)
        items.append(item)
        yield from _check_item(item, stores=body.get("store") is not False)
    yield from _check_pairs(items, stored=stored or any(item.kind == "item_reference" for item in items))
    yield from _check_reasoning(items, model)
    yield from _check_compaction(items)


def _read_kind(fields: Object) -> str:
    """The type; without one it is a message if it has a role, else a reference if it has an id."""
    if fields.get("type") is not None:
        return as_text(fields["type"]) or ""
    return "message" if "role" in fields else "item_reference" if "id" in fields else ""


def _check_item(item: _Item, *, stores: bool) -> Iterator[Finding]:
    if not item.kind:
        yield error(SHAPE, item.place, "This item has neither a type nor a role; write one.")
    elif item.kind == "message":
        yield from _check_message(item)
    elif item.kind in _WITH_ARGUMENTS:
        arguments = as_text(item.fields.get("arguments"))
        if arguments is None or not read_value(arguments)[1]:
            yield error(
                "responses.R3",
                f"{item.place}.arguments",
                "The arguments are no text that holds JSON; write one, {} if there are none.",
            )
    elif item.kind == "reasoning":
        if not stores and not as_text(item.fields.get("encrypted_content")):
            yield error(
                "responses.R6",
                item.place,
                "With store=false a reasoning item carries its encrypted_content; include that, or drop the item.",
            )
    elif item.kind == "compaction":
        if not as_text(item.fields.get("encrypted_content")):
            yield error(
                "responses.R8", item.place, "A compaction item has lost its encrypted_content; send it as it came."
            )
        yield from find_unknown_keys(item.fields, _COMPACTION, item.place, "responses.R8", "A compaction item")


def _check_message(item: _Item) -> Iterator[Finding]:
    role, content, where = item.fields.get("role"), item.fields.get("content"), f"{item.place}.content"
    if role not in _ROLES:
        yield error(SHAPE, item.place, f"The role is none of {', '.join(_ROLES)}; use one of them.")
        return
    if isinstance(content, str):
        return
    if content is None:
        yield error(SHAPE, where, "This message has no content; write a text or a list of parts.")
    allowed = _ANSWERS if role == "assistant" else _INPUTS
    for place, part in read_objects(content, where, "content part"):
        if isinstance(part, Finding):
            yield part
        elif part.get("type") not in allowed:
            whose = "an assistant" if role == "assistant" else "any other"
            yield error(
                "responses.R7",
                place,
                f"The content of {whose} message is {', '.join(allowed)}; change this part's type.",
            )


def _check_pairs(items: list[_Item], *, stored: bool) -> Iterator[Finding]:
    """Calls and outputs (responses.R2, R4, R9).

    Where the API holds items that the input does not, the call of an output may be among those.
    """
    used: set[str] = set()
    calls: dict[tuple[str, str], str] = {}
    answered: set[tuple[str, str]] = set()
    for item in items:
        call_id = item.call_id
        if item.kind in _OUTPUTS:
            if item.kind == "tool_search_call" and item.fields.get("call_id") is None:
                continue  # the provider searched, and needs no answer
            if call_id is None or not 1 <= len(call_id) <= _LONGEST_ID:
                yield error(
                    "responses.R2",
                    item.place,
                    f"The call_id is no text of 1 to {_LONGEST_ID} characters; give call and output another one.",
                )
            if call_id is not None:
                if call_id in used:
                    yield error(
                        "responses.R2", item.place, "This call_id was used before; give call and output another one."
                    )
                used.add(call_id)
                calls.setdefault((item.kind, call_id), item.place)
        elif item.kind in _CALLS:
            if item.kind == "tool_search_output" and item.fields.get("call_id") is None:
                continue
            key = None if call_id is None else (_CALLS[item.kind], call_id)
            if key is None or (key not in calls and not stored):
                yield error(
                    "responses.R4",
                    item.place,
                    "This output matches no call before it; put it behind its call, or drop it.",
                )
            elif key in answered:
                yield error("responses.R4", item.place, "This call has an output already; keep one.")
            if key is not None:
                answered.add(key)
    for key, place in calls.items():
        if key not in answered:
            yield error("responses.R9", place, "This call has no output behind it; add one, or drop the call.")


def _check_reasoning(items: list[_Item], model: str | None) -> Iterator[Finding]:
    """Reasoning with its item (responses.R5), and an item's id with its reasoning (responses.L6)."""
    reasoned = not may_reason(model)
    for number, item in enumerate(items):
        if item.kind == "reasoning":
            reasoned = True
            after = items[number + 1] if number + 1 < len(items) else None
            if after is None or not (after.kind == "reasoning" or after.by_model):
                yield error(
                    "responses.R5",
                    item.place,
                    "What the model wrote behind this reasoning is not behind it; drop both.",
                )
        elif item.kind in ("message", "compaction") and item.fields.get("role") != "assistant":
            reasoned = not may_reason(model)
        elif item.kind in ("message", "function_call") and as_text(item.fields.get("id")) and not reasoned:
            yield warning(
                "responses.L6", item.place, "This item has an id, yet its turn has no reasoning item; leave the id out."
            )


def _check_compaction(items: list[_Item]) -> Iterator[Finding]:
    """What the host says stays in front of a compaction item, which stands for the conversation (responses.L7)."""
    newest = max((number for number, item in enumerate(items) if item.kind == "compaction"), default=0)
    before = [item for item in items[:newest] if item.fields.get("role") not in ("system", "developer")]
    if before:
        count = len(before)
        yield warning(
            "responses.L7", before[0].place, f"{count} items stand before the newest compaction item; drop them."
        )
