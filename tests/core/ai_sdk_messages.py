"""Random AI SDK conversations that are valid, with every part type in every form that its schema allows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Object = dict[str, Any]

CALL: Object = {"type": "tool-call", "toolCallId": "a", "toolName": "t", "input": {"q": 1}}
TOOL_RESULT: Object = {
    "type": "tool-result",
    "toolCallId": "a",
    "toolName": "t",
    "output": {"type": "text", "value": "r"},
}

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
WORDS = st.sampled_from(["a", "call_1", "x y", "\u00e9", "<|endoftext|>"])
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([2**64, -(10**40)])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.dictionaries(
    st.sampled_from(["anthropic", "openai"]), st.dictionaries(TEXTS, JSON, max_size=2), max_size=2
)
IDS = st.dictionaries(st.sampled_from(["openai", "anthropic", "type"]), WORDS, min_size=1).filter(
    lambda ids: ids.get("type") not in ("data", "url", "text", "reference")
)
BASE64 = st.sampled_from(["", "AA==", "iVBORw0KGgo="])
URLS = st.sampled_from(
    [
        "https://example.org/a.png",
        "data:image/png;base64,AA==",
        "data:text/plain;charset=utf-8;base64,AA==",
        "data:;base64,",
        "data:text/plain,hello",
    ]
)
MEDIA_TYPES = st.sampled_from(["image/png", "image", "application/pdf", "text/plain", "audio/*", ""])
BARE = BASE64 | URLS | IDS
TAGGED = st.one_of(
    st.fixed_dictionaries({"type": st.just("data"), "data": BASE64 | URLS}),
    st.fixed_dictionaries({"type": st.just("url"), "url": URLS}, optional={"x": st.integers()}),
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS | st.just("")}),
    st.fixed_dictionaries({"type": st.just("reference"), "reference": IDS}),
)
EXTRA: Object = {"providerOptions": OPTIONS, "newMember": JSON.filter(lambda value: value is not None)}
# A member of the name that we use ourselves must survive as well.
FORMS: list[Any] = [{"part": {}, "at": ["x"], "head": ""}, {"output": {}}, 5]
CLASH: Object = {**EXTRA, "_form": st.sampled_from(FORMS)}


def made(
    kind: str, extra: Object = EXTRA, optional: Object | None = None, /, **members: Any
) -> st.SearchStrategy[Object]:
    """Parts of one type: the members it must have, those it may have, and some that nobody knows."""
    return st.fixed_dictionaries({"type": st.just(kind), **members}, optional={**(optional or {}), **extra})


TEXT = made("text", CLASH, text=TEXTS)
IMAGE = made("image", CLASH, {"mediaType": MEDIA_TYPES}, image=BARE | TAGGED)
FILE = made("file", CLASH, {"filename": WORDS}, data=BARE | TAGGED, mediaType=MEDIA_TYPES)
UNKNOWN = made("soon-there", {**EXTRA, "data": JSON})
ITEMS = st.one_of(
    made("text", text=TEXTS),
    made("media", data=BASE64, mediaType=MEDIA_TYPES),
    made("file", CLASH, {"filename": WORDS}, data=TAGGED, mediaType=MEDIA_TYPES),
    made("file-data", CLASH, {"filename": WORDS}, data=BASE64, mediaType=MEDIA_TYPES),
    made("file-url", CLASH, {"mediaType": MEDIA_TYPES}, url=URLS),
    made("image-data", data=BASE64, mediaType=MEDIA_TYPES),
    made("image-url", url=URLS),
    made("file-id", fileId=WORDS | IDS),
    made("image-file-reference", providerReference=IDS),
    made("custom"),
)
OUTPUTS = st.one_of(
    made("text", {}, {"providerOptions": OPTIONS}, value=TEXTS | st.just("")),
    made("json", value=JSON),
    made("execution-denied", {}, {"reason": TEXTS | st.just(""), **EXTRA}),
    made("error-text", {}, {"reason": TEXTS}, value=TEXTS | st.just("")),
    made("error-json", value=JSON),
    made("content", value=st.lists(ITEMS, max_size=3)),
)
REASONING = made("reasoning", CLASH, text=TEXTS | st.just(""))
REASONING_FILE = made("reasoning-file", data=BARE | TAGGED, mediaType=MEDIA_TYPES)
CUSTOM = made("custom", kind=WORDS)
CALLS = made("tool-call", CLASH, {"providerExecuted": st.booleans()}, toolCallId=WORDS, toolName=WORDS, input=JSON)
RESULT = made("tool-result", CLASH, toolCallId=WORDS, toolName=WORDS | st.just(""), output=OUTPUTS)
REQUEST = made("tool-approval-request", CLASH, {"isAutomatic": st.booleans()}, approvalId=WORDS, toolCallId=WORDS)
RESPONSE = made(
    "tool-approval-response", CLASH, {"reason": TEXTS | st.just("")}, approvalId=WORDS, approved=st.booleans()
)


def said(role: str, content: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    """Messages of a role."""
    return st.fixed_dictionaries({"role": st.just(role), "content": content}, optional=CLASH)


SPOKEN = TEXTS | st.just("")
USER = st.one_of(TEXT, IMAGE, FILE, UNKNOWN)
ASSISTANT = st.one_of(TEXT, REASONING, FILE, REASONING_FILE, CUSTOM, CALLS, RESULT, REQUEST, UNKNOWN)
TOOL = st.one_of(RESULT, RESPONSE, UNKNOWN)
MESSAGES = st.one_of(
    said("system", SPOKEN),
    said("user", SPOKEN | st.lists(USER, min_size=1, max_size=3)),
    said("assistant", SPOKEN | st.lists(ASSISTANT, min_size=1, max_size=3)),
    said("tool", st.lists(TOOL, max_size=3)),
)
CONVERSATIONS = st.lists(MESSAGES, max_size=5)


def with_defaults(message: Object) -> Object:
    """A message as it comes back: a list of one plain text part is the string."""
    content: Any = message["content"]
    if isinstance(content, str):
        return message
    parts: list[Object] = content
    if len(parts) == 1 and parts[0] == {"type": "text", "text": parts[0].get("text")}:
        return {**message, "content": parts[0]["text"]}
    return message
