"""Ordering rules of Gemini's generateContent, checked on a payload (gemini.G1 to G9, L8, all.S1).

A step is one content of the model.  The current turn begins at the last content of the user that answers no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Found = list[tuple[str, str]]
Block = Mapping[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")

DATA_FIELDS = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
    "audioTranscription",
)


def check_gemini(body: Mapping[str, Any]) -> Found:
    """What breaks the rules of generateContent."""
    text = json.dumps(body, ensure_ascii=False)
    found: Found = [("all.S1", "body")] if _SURROGATE.search(text) else []
    if body.get("cachedContent") and any(key in body for key in ("systemInstruction", "tools", "toolConfig")):
        found.append(("gemini.G9", "cachedContent"))
    contents: Sequence[Block] = body["contents"]
    if not contents or contents[0].get("role", "user") != "user":
        found.append(("gemini.G1", "contents"))
    turn = max((index for index, content in enumerate(contents) if _asks(content)), default=0)
    waiting: list[str | None] = []
    for index, content in enumerate(contents):
        place = f"contents[{index}]"
        role = content.get("role", "user")
        if index and contents[index - 1].get("role", "user") == role:
            found.append(("gemini.G4", place))
        if not content["parts"]:
            found.append(("gemini.G3", place))
        for part in content["parts"]:
            found += _part(part, place)
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        answers = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if role not in ("user", "model") or (calls and role != "model") or (answers and role != "user"):
            found.append(("gemini.G2", place))
        if [answer.get("name") for answer in answers] != waiting:
            found.append(("gemini.G7", place))
        waiting = [call["name"] for call in calls]
        if answers and any("text" in part for part in content["parts"]):
            found.append(("gemini.L8", place))
        first = next((part for part in content["parts"] if "functionCall" in part), None)
        if first is not None and index > turn and not first.get("thoughtSignature"):
            found.append(("gemini.G8", place))
    if waiting:
        found.append(("gemini.G7", "end"))
    return found


def _asks(content: Block) -> bool:
    return content.get("role", "user") == "user" and not any("functionResponse" in part for part in content["parts"])


def _part(part: Block, place: str) -> Iterator[tuple[str, str]]:
    fields = [field for field in DATA_FIELDS if field in part]
    if not fields or part.get("text") == "":
        yield "gemini.G3", place
    if len(fields) > 1:
        yield "gemini.G5", place
    if "functionCall" in part and not isinstance(part["functionCall"].get("args", {}), dict):
        yield "gemini.G6", place
    if "functionResponse" in part and not isinstance(part["functionResponse"].get("response"), dict):
        yield "gemini.G6", place
