"""Right payloads of the four targets, short ways to write others, and what is found in them."""

from __future__ import annotations

import copy
from typing import Any

from contextbus.validation import validate

Body = dict[str, Any]

PREFILLED = "claude-sonnet-4-5"
INLINE = "claude-opus-4-8"


def rules(body: object, target: str, model: str | None = None) -> set[str]:
    """The codes of what is found."""
    return {finding.rule for finding in validate(body, target, model)}


def changed(body: Body, *path: str | int, to: object) -> Body:
    """A copy with another value at a place."""
    made = copy.deepcopy(body)
    target: Any = made
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = to
    return made


def text(words: str = "words", **members: object) -> Body:
    return {"type": "text", "text": words, **members}


def think(words: str = "hm", signature: str = "c2ln") -> Body:
    return {"type": "thinking", "thinking": words, "signature": signature}


def use(call_id: str = "a", **members: object) -> Body:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}, **members}


def result(call_id: str = "a", **members: object) -> Body:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "ok", **members}


def user(*blocks: Body) -> Body:
    return {"role": "user", "content": list(blocks) or "words"}


def assistant(*blocks: Body) -> Body:
    return {"role": "assistant", "content": list(blocks) or "words"}


def anthropic(*messages: Body, **members: object) -> Body:
    tools = [{"name": "f", "description": "does f", "input_schema": {"type": "object"}}]
    return {"tools": tools, "messages": list(messages), **members}


def call(call_id: str = "a", name: str = "f", arguments: str = "{}") -> Body:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(role: str, content: object = "words", **members: object) -> Body:
    return {"role": role, "content": content, **members}


def calls(*made: Body) -> Body:
    return {"role": "assistant", "content": None, "tool_calls": list(made)}


def answer(call_id: str = "a") -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


def openai(*messages: Body, **members: object) -> Body:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    return {"messages": list(messages), "tools": tools, **members}


def fcall(call_id: str = "c", **members: object) -> Body:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **members}


def output(call_id: str = "c") -> Body:
    return {"type": "function_call_output", "call_id": call_id, "output": "ok"}


def reasoning(**members: object) -> Body:
    return {"type": "reasoning", "id": "rs_1", "summary": [], **members}


def spoken(**members: object) -> Body:
    part: Body = {"type": "output_text", "text": "words", "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part], **members}


def compaction(**members: object) -> Body:
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": "xyz", **members}


def responses(*items: Body, **members: object) -> Body:
    return {"input": list(items), **members}


def gcall(name: str = "f", *, signature: str | None = "c2ln", **members: object) -> Body:
    signed = {} if signature is None else {"thoughtSignature": signature}
    return {"functionCall": {"name": name, "args": {}, **members}, **signed}


def gresponse(name: str = "f", **members: object) -> Body:
    return {"functionResponse": {"name": name, "response": {"output": "ok"}, **members}}


def gtext(words: str = "words") -> Body:
    return {"text": words}


def asks(*parts: Body) -> Body:
    return {"role": "user", "parts": list(parts or (gtext(),))}


def replies(*parts: Body) -> Body:
    return {"role": "model", "parts": list(parts or (gtext(),))}


def gemini(*contents: Body, **members: object) -> Body:
    return {"contents": list(contents), **members}


ANTHROPIC: Body = anthropic(
    user(
        text("look", cache_control={"type": "ephemeral", "ttl": "1h"}),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}, "title": "t"},
    ),
    assistant(think(), {"type": "redacted_thinking", "data": "x"}, text("two calls"), use("a"), use("b")),
    user(
        result("b"), result("a", content=[text("ok")], is_error=True, cache_control={"type": "ephemeral"}), text("now")
    ),
    assistant(text("done")),
    user(text("thanks")),
    system=[text("be brief", cache_control={"type": "ephemeral", "ttl": "1h"})],
)
OPENAI: Body = openai(
    says("system", "be brief"),
    says("developer", [{"type": "text", "text": "and kind"}]),
    says(
        "user", [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}]
    ),
    calls(call("a"), call("b", arguments='{"x": [1]}')),
    answer("b"),
    answer("a"),
    says("assistant", "done"),
    says("user", "thanks"),
)
RESPONSES: Body = responses(
    says("developer", "be kind"),
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]},
    reasoning(encrypted_content="x"),
    fcall("c", id="fc_1"),
    fcall("d"),
    output("d"),
    output("c"),
    spoken(id="msg_1"),
    says("user", "thanks"),
    instructions="be brief",
    store=False,
    tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
)
GEMINI: Body = gemini(
    asks(gtext("look"), {"inlineData": {"mimeType": "image/png", "data": "aGk="}}),
    replies({"text": "hm", "thought": True}, gcall("f"), gcall("g", signature=None)),
    asks(gresponse("f"), gresponse("g")),
    replies(gtext("done")),
    asks(gtext("again")),
    replies(gcall("f")),
    asks(gresponse("f")),
    systemInstruction={"parts": [gtext("be brief")]},
    tools=[{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}, {"name": "g"}]}],
    toolConfig={"functionCallingConfig": {"mode": "AUTO"}},
)
RIGHT: dict[str, Body] = {
    "anthropic": ANTHROPIC,
    "openai": OPENAI,
    "openai-responses": RESPONSES,
    "gemini": GEMINI,
}


def anything(*values: object) -> tuple[object, ...]:
    """Values of any kind, to loop over."""
    return values
