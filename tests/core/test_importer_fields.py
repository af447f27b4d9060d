"""Field by field: what the importers keep of parts, and what tells two providers apart (P.E.9, P.A.5)."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest

from contextbus.core.importers import detect, from_anthropic, from_openai, read_conversations
from contextbus_protocol.chat import (
    AnyPart,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from contextbus_protocol.errors import InvalidTypeError

Block = dict[str, Any]
ANTHROPIC: list[tuple[Block, AnyPart]] = [
    ({"type": "text", "text": "t"}, Text(text="t")),
    ({"type": "thinking", "thinking": "t", "signature": "s"}, Reasoning(text="t", signature="s")),
    ({"type": "redacted_thinking", "data": "d"}, Reasoning(redacted="d")),
    ({"type": "tool_use", "id": "a", "name": "f", "input": {"q": 1}}, ToolCall(id="a", name="f", arguments='{"q":1}')),
    ({"type": "tool_use", "id": "a", "name": "f"}, ToolCall(id="a", name="f", arguments="{}")),
    (
        {"type": "tool_result", "tool_use_id": "a", "content": "r", "is_error": True},
        ToolResult(id="a", content=(Text(text="r"),), error=True),
    ),
    (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
        Image(media_type="image/png", data="AA"),
    ),
    ({"type": "image", "source": {"type": "url", "url": "u"}}, Image(url="u")),
    ({"type": "image", "source": {"type": "file", "file_id": "i"}}, Image(file_id="i")),
    (
        {"type": "document", "title": "n", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}},
        Document(media_type="application/pdf", title="n", data="AA"),
    ),
    (
        {"type": "document", "title": "n", "source": {"type": "text", "media_type": "text/plain", "data": "p"}},
        Document(media_type="text/plain", title="n", text="p"),
    ),
    ({"type": "document", "title": "n", "source": {"type": "url", "url": "u"}}, Document(title="n", url="u")),
    ({"type": "document", "title": "n", "source": {"type": "file", "file_id": "i"}}, Document(title="n", file_id="i")),
]
OPENAI: list[tuple[Block, AnyPart]] = [
    ({"type": "text", "text": "t"}, Text(text="t")),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}, Image(media_type="image/png", data="AA")),
    ({"type": "image_url", "image_url": "data:;base64,AA"}, Image(data="AA")),
    ({"type": "image_url", "image_url": {"url": "https://example.org/i.png"}}, Image(url="https://example.org/i.png")),
]
# Only their issuer takes these back, so they always name it.
MARKED = (Reasoning, Unknown)


def from_one(provider: str, block: Block) -> AnyPart:
    read = from_anthropic if provider == "anthropic" else from_openai
    (message,) = read([{"role": "user", "content": [block]}]).messages
    return message.content[0]


def cases() -> list[tuple[str, Block, AnyPart]]:
    return [("anthropic", *case) for case in ANTHROPIC] + [("openai", *case) for case in OPENAI]


@pytest.mark.rule("P.E.9", "P.A.5")
@pytest.mark.parametrize(("provider", "block", "part"), cases())
def test_a_part_is_read_with_every_field(provider: str, block: Block, part: AnyPart) -> None:
    bound = isinstance(part, MARKED) or getattr(part, "file_id", None) is not None
    nothing = ProviderData(provider, "{}") if bound else None
    assert from_one(provider, block) == msgspec.structs.replace(part, provider_data=nothing)
    more = from_one(provider, {**block, "x": 1, "y": None})
    assert more == msgspec.structs.replace(part, provider_data=ProviderData(provider, '{"x":1}'))


@pytest.mark.rule("P.E.9", "P.E.4")
@pytest.mark.parametrize(("provider", "block", "part"), cases())
def test_a_breakpoint_behind_a_part_is_read(provider: str, block: Block, part: AnyPart) -> None:
    read = from_one(provider, {**block, "_cache_breakpoint": True})
    assert read.cache is not isinstance(part, Reasoning)  # no breakpoint stands behind thinking
    assert not from_one(provider, {**block, "_cache_breakpoint": "yes"}).cache
    assert not from_one(provider, block).cache
    kept = from_one(provider, {**block, "cache_control": {"type": "ephemeral"}})
    assert kept == read  # nothing of it is stored beside the word
    for ttl in ("5m", "1h"):
        kept = from_one(provider, {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}})
        assert kept.cache == (ttl if read.cache else False)


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    ("provider", "block"),
    [
        ("anthropic", {"type": "new", "z": 1}),
        ("anthropic", {"type": "image", "source": {"type": "new"}}),
        ("anthropic", {"type": "document", "source": {"type": "new"}}),
        ("openai", {"type": "new", "z": 1}),
        ("openai", {"type": "file", "file": {"filename": "f", "file_data": "no data url"}}),
    ],
)
def test_a_part_of_an_unknown_form_is_kept_whole(provider: str, block: Block) -> None:
    read = from_one(provider, block)
    assert isinstance(read, Unknown)
    assert json.loads(read.data) == block
    assert read.provider_data == ProviderData(provider, "{}")
    assert not read.cache
    assert from_one(provider, {**block, "_cache_breakpoint": True}).cache


@pytest.mark.rule("P.E.9")
def test_texts_among_the_parts_are_text_parts() -> None:
    for read in (from_openai, from_anthropic):
        (message,) = read([{"role": "user", "content": ["one", {"type": "text", "text": "two"}]}]).messages
        assert message.content == (Text(text="one"), Text(text="two"))


@pytest.mark.rule("P.E.9")
def test_files_of_openai() -> None:
    inline = {"type": "file", "file": {"filename": "d.pdf", "file_data": "data:application/pdf;base64,AA"}}
    named = {"type": "file", "file": {"filename": "d.pdf", "file_id": "i"}}
    assert from_one("openai", inline) == Document(media_type="application/pdf", title="d.pdf", data="AA")
    origin = ProviderData("openai", "{}")
    assert from_one("openai", named) == Document(title="d.pdf", file_id="i", provider_data=origin)
    for block in (inline, named):
        assert from_one("openai", {**block, "_cache_breakpoint": True}).cache


@pytest.mark.rule("P.E.9")
def test_messages_of_openai_keep_what_they_have_beside_their_parts() -> None:
    messages: list[Block] = [
        {
            "role": "assistant",
            "content": None,
            "audio": {"id": "audio_1"},
            "refusal": "no",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "x": 1}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "r", "_cache_breakpoint": True, "x": 1},
        {"role": "user", "content": "q", "name": "ada", "_cache_breakpoint": True},
    ]
    asked, answered, more = from_openai(messages).messages
    assert asked.role == "assistant"
    assert asked.provider_data is None
    refusal, audio, call = asked.content
    assert refusal == Text(text="no", provider_data=ProviderData("openai", '{"refusal":"message"}'))
    assert json.loads(cast("Unknown", audio).data) == {"type": "audio", "id": "audio_1"}
    assert audio.provider_data == ProviderData("openai", '{"member":"audio"}')
    assert call == ToolCall(id="a", name="f", provider_data=ProviderData("openai", '{"x":1}'))
    assert (answered.role, answered.provider_data) == ("tool", ProviderData("openai", '{"x":1}'))
    assert answered.content == (ToolResult(id="a", name="f", content=(Text(text="r"),), cache=True),)
    assert (more.role, more.name, more.cache, more.provider_data) == ("user", "ada", True, None)


WRONG: list[tuple[Block, str]] = [
    ({"role": "tool", "tool_call_id": "a", "content": [5]}, "messages[0].content[0]:"),
    ({"role": "tool", "tool_call_id": 5}, "messages[0].tool_call_id:"),
    ({"role": "tool", "tool_call_id": "a", "name": 5}, "messages[0].name:"),
    ({"role": "user", "content": "q", "name": 5}, "messages[0].name:"),
    ({"role": "assistant", "refusal": 5}, "messages[0].refusal:"),
    ({"role": "assistant", "audio": 5}, "messages[0].audio:"),
    ({"role": "assistant", "function_call": 5}, "messages[0].function_call.function:"),
    ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0]:"),
    ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name:"),
    ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[0].tool_calls[0].custom:"),
    (
        {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "c"}}]},
        "messages[0].tool_calls[0].custom.input:",
    ),
    (
        {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"input": "c"}}]},
        "messages[0].tool_calls[0].custom.name:",
    ),
    ({"role": "user", "content": [{"type": "refusal"}]}, "messages[0].content[0].refusal:"),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
        "messages[0].content[0].image_url.url:",
    ),
    ({"role": "user", "content": [{"type": "file"}]}, "messages[0].content[0].file:"),
    ({"role": "user", "content": [{"type": "file", "file": {}}]}, "messages[0].content[0].file.file_data:"),
    (
        {"role": "user", "content": [{"type": "file", "file": {"filename": 5}}]},
        "messages[0].content[0].file.filename:",
    ),
    (
        {"role": "user", "content": [{"type": "file", "file": {"file_id": 5}}]},
        "messages[0].content[0].file.file_id:",
    ),
]


@pytest.mark.parametrize(("message", "place"), WRONG)
def test_a_wrong_field_of_openai_is_named(message: Block, place: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        from_openai([message])
    assert caught.value.message.startswith(place)
    assert caught.value.data.field == place[:-1]


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "thinking", "thinking": "t", "signature": 5}, "signature"),
        ({"type": "redacted_thinking"}, "data"),
        ({"type": "tool_use", "id": "a", "input": {}}, "name"),
        ({"type": "tool_result", "tool_use_id": "a", "content": [5]}, "content[0]"),
        ({"type": "image", "source": {"type": "base64", "media_type": 5, "data": "AA"}}, "source.media_type"),
        ({"type": "image", "source": {"type": "base64"}}, "source.data"),
        ({"type": "image", "source": {"type": "url"}}, "source.url"),
        ({"type": "image", "source": {"type": "file"}}, "source.file_id"),
        ({"type": "document"}, "source"),
        ({"type": "document", "title": 5, "source": {"type": "url", "url": "u"}}, "title"),
        ({"type": "document", "source": {"type": "url", "media_type": 5}}, "source.media_type"),
        ({"type": "document", "source": {"type": "text"}}, "source.data"),
        ({"type": "document", "source": {"type": "url"}}, "source.url"),
        ({"type": "document", "source": {"type": "file"}}, "source.file_id"),
    ],
)
def test_a_wrong_field_of_anthropic_is_named(block: Block, field: str) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        from_anthropic([{"role": "user", "content": [block]}])
    assert caught.value.message.startswith(f"messages[0].content[0].{field}:")
    assert caught.value.data.field == f"messages[0].content[0].{field}"


def test_what_json_has_not_is_refused() -> None:
    for read in (from_openai, from_anthropic):
        with pytest.raises(InvalidTypeError, match="tools: expected a JSON value"):
            read({"messages": [], "tools": [object()]})
        with pytest.raises(InvalidTypeError, match="provider data: expected a JSON value"):
            read([{"role": "user", "content": "q", "x": object()}])
        odd = {"role": "user", "content": "q", "x": {0: "\ud83d"}}
        assert read([odd]).messages[0].provider_data == ProviderData(
            "openai" if read is from_openai else "anthropic", '{"x":{"0":"\ufffd"}}'
        )


@pytest.mark.parametrize("role", ["developer", "tool", "function"])
def test_roles_of_openai_tell_it(role: str) -> None:
    both = [{"role": role, "content": "x"}, {"role": "user", "content": [{"type": "document"}]}]
    assert detect(both) == "openai"
    assert detect(both[1:]) == "anthropic"


@pytest.mark.parametrize("key", ["tool_calls", "tool_call_id", "function_call", "refusal"])
def test_keys_of_openai_tell_it(key: str) -> None:
    after = {"role": "user", "content": [{"type": "document"}]}
    assert detect([{"role": "assistant", "content": "x", key: "y"}, after]) == "openai"
    assert detect([{"role": "assistant", "content": "x", key: None}, after]) == "anthropic"


@pytest.mark.parametrize("kind", ["tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"])
def test_parts_of_anthropic_tell_it(kind: str) -> None:
    assert detect([{"role": "user", "content": [{"type": "text", "text": "t"}, {"type": kind}]}]) == "anthropic"
    assert detect([5, {"role": "user", "content": [5, {"type": kind}]}]) == "anthropic"


def test_system_and_schemas_of_anthropic_tell_it() -> None:
    messages = [{"role": "user", "content": "q"}]
    assert detect({"system": "s", "messages": messages}) == "anthropic"
    assert detect({"system": None, "messages": messages}) == "openai"
    schema: Block = {"name": "f", "input_schema": {}}
    assert detect({"tools": [schema], "messages": messages}) == "anthropic"
    assert detect({"tools": [{"name": "g"}, schema], "messages": messages}) == "anthropic"
    wrong: list[object] = [[5], ["input_schema"], [{"function": {}}], "input_schema", 5, []]
    for tools in wrong:
        assert detect({"tools": tools, "messages": messages}) == "openai"


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    data = b'[{"role":"user","content":"a\xff"}]'
    for read in (from_openai, from_anthropic):
        assert read(data).messages[0].content == (Text(text="a\ufffd"),)
    assert detect(bytearray(data)) == "openai"
    (conversation,) = read_conversations(data)
    assert conversation.messages[0].content == (Text(text="a\ufffd"),)


def test_a_list_with_a_message_that_is_none_is_one_conversation() -> None:
    with pytest.raises(InvalidTypeError) as caught:
        read_conversations([{"role": "user", "content": "q"}, {"content": "x"}])
    assert caught.value.message.startswith("messages[1].role:")


def test_where_a_message_is_none_is_said_exactly() -> None:
    for read in (from_openai, from_anthropic):
        for data, place in (([{"role": "user"}, 5], "messages[1]:"), ([{"role": 5}], "messages[0].role:")):
            with pytest.raises(InvalidTypeError) as caught:
                read(data)
            assert caught.value.message.startswith(place)
    with pytest.raises(InvalidTypeError) as caught:
        from_openai([{"role": "robot"}])
    assert "one of system, developer, user, assistant, tool, function, found" in caught.value.message


def test_what_was_expected_and_what_was_found_are_said_without_content() -> None:
    for content, said in ((5, "a text, found int"), (None, "a text, found nothing"), (["x"], "a text, found list")):
        for read in (from_openai, from_anthropic):
            with pytest.raises(InvalidTypeError) as caught:
                read([{"role": "user", "content": [{"type": "text", "text": content}]}])
            assert caught.value.message == f"messages[0].content[0].text: expected {said}"


def test_messages_come_before_what_else_an_object_has() -> None:
    messages = [{"role": "user", "content": "q"}]
    choices = [{"message": {"role": "assistant", "content": "a"}}]
    for more in ({"choices": choices}, {"role": "assistant", "content": "a"}):
        assert from_openai({"messages": messages, **more}).messages == from_openai(messages).messages
    assert from_openai({"choices": choices}).messages[0].role == "assistant"
    assert detect({"choices": choices}) == "openai"


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    "url", ["data:image/png;base64", "data:image/png,AA", "xdata:image/png;base64,AA", "https://u"]
)
def test_a_url_without_base64_data_stays_a_url(url: str) -> None:
    assert from_one("openai", {"type": "image_url", "image_url": {"url": url}}) == Image(url=url)
