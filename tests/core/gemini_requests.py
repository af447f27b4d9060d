"""Valid requests of Gemini's, and histories made of their messages and of everybody else's."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import strategies as st
from tests.core.conversations import WILD_MESSAGES

from contextbus.core.importers import from_anthropic, from_gemini
from contextbus.core.targets.gemini import NO_SIGNATURE
from contextbus_protocol.chat import ChatMessage, ProviderData, Reasoning, Text, ToolCall, ToolResult, Unknown

Body = dict[str, Any]

TEXTS = st.text(min_size=1, max_size=12) | st.sampled_from([" ", "a\nb", "</x>"])
_NAMES = st.sampled_from(["f", "g", "look_up", "a.b:c-d", "_x"])
_BASE64 = st.binary(min_size=1, max_size=9).map(lambda raw: base64.b64encode(raw).decode())
_SIGNATURES = st.none() | st.binary(min_size=1, max_size=9).map(lambda raw: base64.urlsafe_b64encode(raw).decode())
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=6,
)
_OBJECTS = st.dictionaries(st.sampled_from(["q", "n", "result", "error", "output"]), _VALUES, max_size=3)
_TYPES = ("image/png", "image/gif", "application/pdf", "text/csv", "audio/mp3", "video/mp4")


def _inline(media_type: str, data: str) -> Body:
    return {"inlineData": {"mimeType": media_type, "data": data}}


def _file(media_type: str | None, uri: str) -> Body:
    return {"fileData": {**({"mimeType": media_type} if media_type else {}), "fileUri": uri}}


_INLINE = st.builds(_inline, st.sampled_from(_TYPES), _BASE64)
_URIS = ("https://example.org/a.png?x=1", "gs://bucket/b", "https://generativelanguage.googleapis.com/v1beta/files/1")
_FILES = st.builds(_file, st.sampled_from([None, *_TYPES]), st.sampled_from(_URIS))
_TEXT_PARTS: st.SearchStrategy[Body] = TEXTS.map(lambda text: {"text": text})
_MEDIA: st.SearchStrategy[Body] = st.one_of(
    _INLINE,
    _FILES,
    st.just({"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}, "videoMetadata": {"fps": 2.0}}),
    st.just({"inlineData": {"mimeType": "image/png", "data": "AAAA", "displayName": "i.png"}}),
    st.just(
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"}}
    ),
)
_NATIVE: st.SearchStrategy[Body] = st.sampled_from(
    [
        {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"text": "so", "partMetadata": {"k": "v"}},
    ]
)


def _signed(part: Body, signature: str | None) -> Body:
    return part if signature is None else {**part, "thoughtSignature": signature}


_SPOKEN: st.SearchStrategy[Body] = st.one_of(
    st.builds(_signed, st.one_of(_TEXT_PARTS, _NATIVE, _MEDIA), _SIGNATURES),
    st.builds(_signed, TEXTS.map(lambda text: {"text": text, "thought": True}), _SIGNATURES),
)
_RESPONSES = st.one_of(
    _OBJECTS,
    TEXTS.map(lambda text: {"result": text}),
    st.sampled_from([{"result": ""}, {"error": "no"}, {"error": ""}]),
)


@st.composite
def _steps(draw: st.DrawFn, number: int) -> tuple[Body, Body]:
    """A content of the model, and the user's behind it."""
    parts: list[Body] = draw(st.lists(_SPOKEN, max_size=3))
    with_ids = draw(st.booleans())
    calls: list[Body] = []
    for place in range(draw(st.integers(0, 3))):
        call: Body = {"name": draw(_NAMES), "args": draw(_OBJECTS)}
        if with_ids:
            call = {"id": f"functions.f:{number}|{place}", **call}
        signature = draw(_SIGNATURES) or (NO_SIGNATURE if place == 0 else None)
        calls.append(_signed({"functionCall": call}, signature))
    if not parts and not calls:
        parts = [{"text": "well"}]
    for place, part in zip(
        sorted(draw(st.lists(st.integers(0, len(parts)), min_size=3, max_size=3))), calls, strict=False
    ):
        parts.insert(place + calls.index(part), part)
    made: list[Body] = [part["functionCall"] for part in parts if "functionCall" in part]
    answers: list[Body] = []
    for call in made:
        answer: Body = {"name": call["name"], "response": draw(_RESPONSES)}
        if with_ids:
            answer["id"] = call["id"]
        nested = draw(st.lists(st.one_of(_INLINE, _FILES), max_size=2))
        if nested:
            answer["parts"] = nested
        answers.append({"functionResponse": answer})
    said = (
        draw(st.lists(_MEDIA, max_size=2)) if answers else draw(st.lists(_TEXT_PARTS | _MEDIA, min_size=1, max_size=3))
    )
    return {"role": "model", "parts": parts}, {"role": "user", "parts": [*answers, *said]}


_SCHEMA: Body = {"type": "OBJECT", "properties": {"q": {"type": "STRING", "nullable": True}}, "required": ["q"]}
_TOOLS: st.SearchStrategy[list[Body]] = st.sampled_from(
    [
        [{"functionDeclarations": [{"name": "f", "description": "d", "parameters": _SCHEMA}]}],
        [
            {"googleSearch": {}},
            {
                "functionDeclarations": [
                    {
                        "name": "f",
                        "parametersJsonSchema": {"type": "object", "properties": {"q": {"type": ["string", "null"]}}},
                    },
                    {"name": "a.b:c-d", "response": {"type": "STRING"}},
                ]
            },
            {"codeExecution": {}},
        ],
    ]
)


@st.composite
def valid_requests(draw: st.DrawFn) -> Body:
    """A request that obeys every rule of gemini.G1 to G9 and L8, and ends with the user."""
    contents = [{"role": "user", "parts": draw(st.lists(_TEXT_PARTS | _MEDIA, min_size=1, max_size=3))}]
    for number in range(draw(st.integers(0, 4))):
        contents += draw(_steps(number))
    body: Body = {"contents": contents}
    if draw(st.booleans()):
        body["systemInstruction"] = {"parts": draw(st.lists(_TEXT_PARTS, min_size=1, max_size=2))}
    if draw(st.booleans()):
        body["tools"] = draw(_TOOLS)
    return body


_SIGNED = ProviderData("gemini", '{"thoughtSignature":"c2ln","id":true,"metadata":1}', "gemini-3-pro")
_OWN = ProviderData("gemini", '{"response":"object","thought":true,"timestamp":5}')
_HAND_MADE: tuple[ChatMessage, ...] = (
    ChatMessage(
        role="assistant",
        content=(
            Reasoning(text="hm", signature="c2ln", provider_data=_SIGNED),
            Reasoning(text="", signature="no base64", provider_data=_OWN),
            Text(text="so", provider_data=_SIGNED),
            ToolCall(id="a", name="f", provider_data=_SIGNED),
            ToolCall(id="a", name="1 odd", provider_data=_SIGNED),
            ToolCall(id="b", name="f", arguments="[", provider_data=_OWN),
        ),
    ),
    ChatMessage(
        role="tool",
        content=(
            ToolResult(id="a", content=(Text(text='{"n":1}'),), provider_data=_OWN),
            ToolResult(id="b", content=(Text(text="[1]"), Text(text="2")), error=True, provider_data=_OWN),
        ),
    ),
    ChatMessage(
        role="assistant",
        content=(
            Unknown(data='{"type":"functionCall","functionCall":{"name":"f"}}', provider_data=_OWN),
            Unknown(data='{"type":"toolCall","toolCall":{}}', provider_data=_OWN),
            Unknown(data='{"type":"x","data":1}', provider_data=_OWN),
        ),
    ),
)
_ANTHROPIC = from_anthropic(
    [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig=="},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"q": 1}},
                {"type": "tool_use", "id": "b", "name": "g", "input": "{"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "first"},
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "content": [
                        {"type": "text", "text": "t"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                        {"type": "image", "source": {"type": "url", "url": "https://example.org/i.png"}},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "AAAA"}},
                        {"type": "document", "title": "t", "source": {"type": "text", "data": "page"}},
                    ],
                },
            ],
        },
    ]
).messages


@st.composite
def histories(draw: st.DrawFn) -> list[ChatMessage]:
    """Messages of every provider, good and bad, in any order."""
    own = from_gemini(draw(valid_requests())).messages
    others = st.sampled_from((*_HAND_MADE, *_ANTHROPIC))
    return draw(st.lists(st.one_of(WILD_MESSAGES, st.sampled_from(own), others), max_size=10))
