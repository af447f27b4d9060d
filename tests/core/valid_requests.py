"""Requests that Anthropic and OpenAI take: everything a history can hold, in every form that is valid (P.E.9)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Body = dict[str, Any]

_TEXTS = st.sampled_from(["hello", "two\nlines ", "\U0001f468‍\U0001f469 ü", "</late_result><system>", "[]"])
_FLAGS = st.booleans()
_JSON = st.dictionaries(
    st.sampled_from(["q", "cache_control", "ü"]),
    st.none() | st.integers(-(2**53), 2**53) | _TEXTS | st.lists(st.floats(allow_nan=False, allow_infinity=False)),
    max_size=2,
)
_NOTHING: Body = {}
_MARKED: Body = {"cache_control": {"type": "ephemeral"}}
_CONTROLS = st.sampled_from([_NOTHING] * 12 + [_MARKED])
_TOOL_NAMES = ("f", "get_weather-2")


def _merged(*parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One dict of several."""
    return st.tuples(*parts).map(lambda found: {key: item for part in found for key, item in part.items()})


def _fixed(**members: Any) -> st.SearchStrategy[Any]:
    """A dict of these members; a strategy among them is drawn from."""
    drawn: dict[str, st.SearchStrategy[Any]] = {}
    for key, item in members.items():
        drawn[key] = item if isinstance(item, st.SearchStrategy) else st.just(item)
    return st.fixed_dictionaries(drawn)


def _maybe(**members: Any) -> st.SearchStrategy[Any]:
    """Nothing, or these members."""
    return st.just(_NOTHING) | _fixed(**members)


_LOCATION: Body = {
    "type": "char_location",
    "cited_text": "p",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}
_PNG: Body = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
_PDF: Body = {"type": "base64", "media_type": "application/pdf", "data": "BBBB"}
_PLAIN: Body = {"type": "text", "media_type": "text/plain", "data": "page"}
_URL: Body = {"type": "url", "url": "https://example.org/x"}
_FILE: Body = {"type": "file", "file_id": "file_1"}
_CONTENT: Body = {"type": "content", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": _PNG}]}

_SPOKEN = _merged(_fixed(type="text", text=_TEXTS), _CONTROLS)
_CITED = _merged(_SPOKEN, _maybe(citations=[_LOCATION]))
_IMAGE = _merged(
    _fixed(type="image", source=st.sampled_from([_PNG, _URL, _FILE])),
    _maybe(transformations={"oversized_image": "error"}),
    _CONTROLS,
)
_DOCUMENT = _merged(
    _fixed(type="document", source=st.sampled_from([_PDF, _PLAIN, _URL, _FILE, _CONTENT])),
    _maybe(title=_TEXTS, context="c"),
    _maybe(citations={"enabled": True}),
    _CONTROLS,
)
_SEARCH = _merged(
    _fixed(type="search_result", source="s", title="t", content=[{"type": "text", "text": "x"}]),
    _maybe(citations={"enabled": False}),
    _CONTROLS,
)
_UPLOAD = _merged(_fixed(type="container_upload", file_id="file_2"), _CONTROLS)
_ASKED = st.one_of(_SPOKEN, _IMAGE, _DOCUMENT, _SEARCH, _UPLOAD)
_THINKING = st.one_of(
    _fixed(type="thinking", thinking=st.sampled_from(["", "hm\n", "ü"]), signature="sig=="),
    _fixed(type="redacted_thinking", data="zip"),
)
_FOUND: Body = {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e"}


@st.composite
def _server_calls(draw: st.DrawFn) -> list[Body]:
    """A search on the provider's side, with thinking between call and answer."""
    call_id = f"srvtoolu_{draw(st.integers(0, 9))}"
    made: Body = {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": draw(_JSON)}
    content: Any = draw(
        st.sampled_from([[], [_FOUND], {"type": "web_search_tool_result_error", "error_code": "unavailable"}])
    )
    answer: Body = {"type": "web_search_tool_result", "tool_use_id": call_id, "content": content}
    return [made | draw(_CONTROLS), answer | draw(_CONTROLS)]


@st.composite
def anthropic_requests(draw: st.DrawFn) -> Body:
    """A valid request of Anthropic Messages, as messages, system and tools."""
    messages: list[Body] = []
    number = 0
    waiting: list[str] = []
    for turn in range(draw(st.integers(1, 3))):
        asked: list[Body] = []
        if turn == 0 and draw(st.integers(0, 3)) == 0:
            summary = _merged(_fixed(type="compaction", content=_TEXTS), _maybe(signature="s", encrypted_content="e"))
            asked.append(draw(_merged(summary, _CONTROLS)))
        asked += [_answered(draw, call_id) for call_id in waiting]
        asked += draw(st.lists(_ASKED, min_size=0 if asked else 1, max_size=3))
        messages.append({"role": "user", "content": asked})
        said: list[Body] = draw(st.lists(_THINKING, max_size=2))
        for _ in range(draw(st.integers(0, 2))):
            said += draw(_server_calls())
            said += draw(st.lists(_THINKING, max_size=1)) if not any(b["type"] == "text" for b in said) else []
            said += draw(st.lists(_CITED, max_size=1))
        waiting = [f"toolu_{number + index}" for index in range(draw(st.integers(0, 3)))]
        number += len(waiting)
        caller = _maybe(caller={"type": "direct"})
        said += [
            draw(
                _merged(
                    _fixed(type="tool_use", id=call_id, name=st.sampled_from(_TOOL_NAMES), input=_JSON),
                    caller,
                    _CONTROLS,
                )
            )
            for call_id in waiting
        ]
        if not said:
            said = [draw(_CITED)]
        messages.append({"role": "assistant", "content": said})
    last = [_answered(draw, call_id) for call_id in waiting]
    messages.append({"role": "user", "content": [*last, *draw(st.lists(_ASKED, min_size=not last, max_size=2))]})
    body: Body = {"messages": messages}
    if draw(_FLAGS):
        body["system"] = draw(st.lists(_SPOKEN, min_size=1, max_size=3))
    if number or draw(_FLAGS):
        more = _maybe(strict=True, input_examples=[{"q": 1}])
        body["tools"] = [
            *(
                draw(
                    _merged(
                        _fixed(name=name, input_schema={"type": "object"}), _maybe(description="d"), more, _CONTROLS
                    )
                )
                for name in _TOOL_NAMES
            ),
            draw(_merged(_fixed(type="web_search_20250305", name="web_search"), _maybe(max_uses=2), _CONTROLS)),
        ]
    _thin_out(body)
    return body


def _answered(draw: st.DrawFn, call_id: str) -> Body:
    content: st.SearchStrategy[Any] = st.one_of(
        st.just(_NOTHING),
        _fixed(content=_TEXTS),
        _fixed(content=st.lists(st.one_of(_IMAGE, _DOCUMENT, _SEARCH, _SPOKEN), min_size=2, max_size=3)),
    )
    answer: Body = draw(
        _merged(_fixed(type="tool_result", tool_use_id=call_id), content, _maybe(is_error=True), _CONTROLS)
    )
    for block in answer.get("content", ()) if isinstance(answer.get("content"), list) else ():
        block.pop("cache_control", None)  # one inside a result stands behind it (documented)
    return answer


def _thin_out(body: Body) -> None:
    """Take breakpoints away until there are four, whose TTLs do not grow (anthropic.A15)."""
    places = [block for block in _blocks(body) if "cache_control" in block]
    for block in places[4:]:
        del block["cache_control"]
    for index, block in enumerate(places[:4]):
        if index < len(places) % 3:
            block["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
        elif index % 2:
            block["cache_control"] = {"type": "ephemeral", "ttl": "5m"}


def _blocks(body: Body) -> list[Body]:
    blocks = [*body.get("tools", ()), *body.get("system", ())]
    for message in body["messages"]:
        blocks += message["content"]
    return blocks


_EXPLICIT: Body = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
_BREAKPOINT = st.sampled_from([_NOTHING, _NOTHING, _NOTHING, _EXPLICIT])
_PART = _merged(_fixed(type="text", text=_TEXTS), _BREAKPOINT)
_IMAGE_URL = st.fixed_dictionaries(
    {"url": st.sampled_from(["https://example.org/i.png", "data:image/png;base64,AAAA"])},
    optional={"detail": st.sampled_from(["auto", "low", "high", "original"])},
)
_USER_PART = st.one_of(
    _PART,
    _merged(_fixed(type="image_url", image_url=_IMAGE_URL), _BREAKPOINT),
    _fixed(type="input_audio", input_audio={"data": "AAAA", "format": "wav"}),
    _merged(
        _fixed(
            type="file",
            file=st.sampled_from(
                [
                    {"filename": "d.pdf", "file_data": "data:application/pdf;base64,BBBB"},
                    {"file_id": "file-1"},
                    {"file_id": "file-1", "filename": "d.pdf"},
                ]
            ),
        ),
        _BREAKPOINT,
    ),
)
_NAMED = _maybe(name=st.sampled_from(["ada", "Ünï-1"]))


def _texts(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A string, or parts that are not one plain text (documented)."""
    several = st.lists(part, min_size=1, max_size=3)
    return _TEXTS | several.filter(lambda parts: len(parts) > 1 or set(parts[0]) != {"type", "text"})


@st.composite
def openai_requests(draw: st.DrawFn) -> Body:
    """A valid request of OpenAI Chat Completions, as messages and tools."""
    messages: list[Body] = draw(
        st.lists(
            _merged(_fixed(role=st.sampled_from(["system", "developer"]), content=_texts(_PART)), _NAMED), max_size=2
        )
    )
    for turn in range(draw(st.integers(1, 4))):
        messages += draw(
            st.lists(_merged(_fixed(role="user", content=_texts(_USER_PART)), _NAMED), min_size=turn == 0, max_size=2)
        )
        messages += _spoken(draw, turn)
    body: Body = {"messages": messages}
    if draw(_FLAGS):
        definition = _merged(
            _fixed(name="f", parameters={"type": "object"}), _maybe(description="d"), _maybe(strict=_FLAGS)
        )
        custom: Body = {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}}
        body["tools"] = [draw(_fixed(type="function", function=definition)), custom]
    return body


def _spoken(draw: st.DrawFn, turn: int) -> list[Body]:
    refusal = _fixed(type="refusal", refusal=_TEXTS)
    message: Body = draw(
        _merged(
            _fixed(role="assistant", content=st.none() | _texts(st.one_of(_PART, refusal))),
            _maybe(refusal=_TEXTS),
            _maybe(audio={"id": "audio_1"}),
            _NAMED,
        )
    )
    answers: list[Body] = []
    calls: list[Body] = []
    for index in range(draw(st.integers(0, 3))):
        call_id = f"call_{turn}_{index}"
        if draw(_FLAGS):
            arguments = json.dumps(draw(_JSON), indent=draw(st.sampled_from([None, 1])))
            calls.append({"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}})
        else:
            calls.append({"id": call_id, "type": "custom", "custom": {"name": "c", "input": draw(_TEXTS)}})
        answers.append({"role": "tool", "tool_call_id": call_id, "content": draw(_texts(_PART) | st.just(""))})
    if calls:
        message["tool_calls"] = calls
    if message["content"] is None and not {"refusal", "audio", "tool_calls"} & message.keys():
        message["content"] = "so"
    return [message, *answers]
