"""The rules of Gemini's generateContent (gemini.G1 to G9, L8).

Members are read in both spellings that the API takes, ``functionCall`` and ``function_call``; a null member is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from contextbus.core.json_text import as_list, as_object
from contextbus.validation.findings import SHAPE, Finding, Object, as_text, error, read_objects, warning
from contextbus.validation.models import checks_signatures

_DATA: Final = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
_INNER_CAPITAL = re.compile(r"(?<=[a-z])[A-Z]")
_EXCLUDED: Final = ("systemInstruction", "tools", "toolConfig")


class _Part(msgspec.Struct, frozen=True):
    """A part: which data fields it has, and where it stands."""

    place: str
    kinds: tuple[str, ...]
    fields: Object

    @property
    def signed(self) -> bool:
        return bool(as_text(_get(self.fields, "thoughtSignature")))

    def named(self, kind: str) -> str | None:
        """The name of its call or response."""
        return as_text((as_object(_get(self.fields, kind)) or {}).get("name"))


class _Content(msgspec.Struct, frozen=True):
    """A content: its role (empty where it is none), its parts, and where it stands."""

    place: str
    role: str
    parts: tuple[_Part, ...]

    def all_of(self, kind: str) -> list[_Part]:
        """Its parts of a kind."""
        return [part for part in self.parts if kind in part.kinds]


def _snake(key: str) -> str:
    return _INNER_CAPITAL.sub(lambda match: "_" + match[0].lower(), key)


_SPELLINGS: Final = {key: _snake(key) for key in (*_DATA, *_EXCLUDED, "cachedContent", "thoughtSignature")}


def _get(value: Object, key: str) -> object:
    found = value.get(key)
    return value.get(_SPELLINGS[key]) if found is None else found


def check(body: Object, model: str | None) -> Iterator[Finding]:
    """What breaks the rules."""
    yield from _check_cached(body, "")
    config = as_object(body.get("config"))
    if config is not None:
        yield from _check_cached(config, "config.")
    if not as_list(body.get("contents")):
        yield error("gemini.G1", "contents", "There is no list of contents with something in it; send at least one.")
        return
    contents: list[_Content] = []
    for place, content in read_objects(body["contents"], "contents", "content"):
        if isinstance(content, Finding):
            yield content
        else:
            yield from _read_content(content, place, contents)
    yield from _check_roles(contents)
    yield from _check_pairs(contents)
    if checks_signatures(model):
        yield from _check_signatures(contents)


def _check_cached(body: Object, prefix: str) -> Iterator[Finding]:
    if _get(body, "cachedContent") is None:
        return
    for key in _EXCLUDED:
        if _get(body, key) is not None:
            yield error(
                "gemini.G9", prefix + key, f"cachedContent holds the {key} already; leave it out, or the cache."
            )


def _read_content(content: Object, place: str, contents: list[_Content]) -> Iterator[Finding]:
    parts: list[_Part] = []
    given, where = content.get("parts"), f"{place}.parts"
    if given is None or as_list(given) in ([], ()):
        yield error("gemini.G3", where, "This content has no parts; drop it.")
    for part_place, fields in read_objects(given, where, "part"):
        if isinstance(fields, Finding):
            yield fields
            continue
        kinds = tuple(key for key in _DATA if _get(fields, key) is not None)
        part = _Part(part_place, kinds, fields)
        parts.append(part)
        yield from _check_part(part)
    contents.append(_Content(place, as_text(content.get("role")) or "", tuple(parts)))


def _check_part(part: _Part) -> Iterator[Finding]:
    if len(part.kinds) > 1:
        yield error("gemini.G5", part.place, "This part holds more than one kind of data; make one part of each.")
    # A signature may come in a part of its own, behind the last text of a stream.
    if not part.kinds and not part.signed:
        yield error("gemini.G3", part.place, "This part holds no data; drop it.")
    text = _get(part.fields, "text")
    if text is not None and not isinstance(text, str):
        yield error(SHAPE, f"{part.place}.text", "The text is no text; write one.")
    if text == "" and not part.signed:
        yield error("gemini.G3", part.place, "The text of this part is empty; drop it.")
    for kind, member, needed in (("functionCall", "args", False), ("functionResponse", "response", True)):
        if kind not in part.kinds:
            continue
        found = as_object(_get(part.fields, kind))
        if found is None or not as_text(found.get("name")):
            yield error(SHAPE, f"{part.place}.{kind}", f"This {kind} has no name; write it.")
        value = None if found is None else found.get(member)
        if (value is not None or needed) and as_object(value) is None:
            yield error("gemini.G6", f"{part.place}.{kind}.{member}", f"The {member} is no object; write one.")


def _check_roles(contents: Sequence[_Content]) -> Iterator[Finding]:
    if contents and contents[0].role != "user":
        yield error(
            "gemini.G1", contents[0].place, "The first content is not the user's; put a user content before it."
        )
    for number, content in enumerate(contents):
        if content.role not in ("user", "model"):
            yield error("gemini.G2", content.place, "The role is neither user nor model; use one of them.")
        if number and contents[number - 1].role == content.role:
            yield error("gemini.G4", content.place, "Two neighbours have one role; merge them.")
        for kind, role in (("functionCall", "model"), ("functionResponse", "user")):
            if content.role != role:
                for part in content.all_of(kind):
                    yield error("gemini.G2", part.place, f"A {kind} stands outside a {role} content; move it.")
        if content.all_of("functionResponse"):
            for part in content.all_of("text"):
                yield warning(
                    "gemini.L8", part.place, "Text stands beside a functionResponse; send it with the next turn."
                )


def _check_pairs(contents: Sequence[_Content]) -> Iterator[Finding]:
    """The responses right behind the calls, as many, with the same names in the same order (gemini.G7)."""
    calls: list[_Part] = []
    asked: _Content | None = None
    for content in contents:
        responses = content.all_of("functionResponse") if content.role == "user" else []
        yield from _compare(calls, responses, asked)
        calls = content.all_of("functionCall") if content.role == "model" else []
        asked = content
    yield from _compare(calls, [], asked)


def _compare(calls: list[_Part], responses: list[_Part], asked: _Content | None) -> Iterator[Finding]:
    if not calls:
        for part in responses:
            yield error("gemini.G7", part.place, "This response answers no call of the content before it; drop it.")
    elif len(calls) != len(responses):
        place = asked.place if asked is not None else calls[0].place
        yield error(
            "gemini.G7",
            place,
            f"There are {len(calls)} calls here and {len(responses)} responses in the next content; answer each, once.",
        )
    else:
        for call, response in zip(calls, responses, strict=True):
            if call.named("functionCall") != response.named("functionResponse"):
                yield error(
                    "gemini.G7",
                    response.place,
                    "This response has not the name of the call in its position; put responses in the order of calls.",
                )


def _check_signatures(contents: Sequence[_Content]) -> Iterator[Finding]:
    """The first call of each step of the current turn is signed (gemini.G8).

    A turn begins with the last user content that holds more than responses; a step is one content with calls.
    """
    start = 0
    for number, content in enumerate(contents):
        if content.role != "model" and any(set(part.kinds) - {"functionResponse"} for part in content.parts):
            start = number
    for content in contents[start:]:
        calls = content.all_of("functionCall") if content.role == "model" else []
        if calls and not calls[0].signed:
            yield error(
                "gemini.G8",
                calls[0].place,
                "The first call of this step has no thoughtSignature; send it as it came or, for one from elsewhere, "
                "the documented value that skips the check.",
            )
