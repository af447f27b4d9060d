"""What a summariser gets in place of media: a line that names type and digest, and never base64."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.compaction.histories import answers, asks, called, returned, says
from tests.core.conversations import WILD_MESSAGES

from contextbus.core.compaction.media import is_opaque, replace_media
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    ProviderData,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes

PIXELS = bytes(range(256)) * 40
BYTES = b"\xfb\xff\xfe12"
DATA = base64.b64encode(PIXELS).decode()


def digest(data: bytes) -> str:
    return digest_bytes(data).removeprefix("sha256:")


def message(*parts: AnyPart) -> ChatMessage:
    made = says("user", *parts).message
    assert made is not None
    return made


def replaced(part: AnyPart) -> str:
    (only,) = replace_media(message(part)).content
    assert isinstance(only, Text)
    return only.text


@pytest.mark.rule("C.X.3")
def test_the_line_names_type_and_digest_of_the_bytes() -> None:
    assert replaced(Image(media_type="image/png", data=DATA)) == f"[image: image/png, context://vfs/{digest(PIXELS)}]"
    assert replaced(Document(media_type="application/pdf", title="t", data=DATA)) == (
        f"[file: application/pdf, context://vfs/{digest(PIXELS)}]"
    )


@pytest.mark.rule("C.X.3")
def test_where_there_are_no_bytes_the_digest_is_that_of_the_text() -> None:
    url = "https://a/b.png"
    assert replaced(Image(url=url)) == f"[image: image/*, context://vfs/{digest(url.encode())}]"
    assert replaced(Document(file_id="f-1")) == f"[file: application/octet-stream, context://vfs/{digest(b'f-1')}]"
    assert replaced(Document(text="page")) == f"[file: text/plain, context://vfs/{digest(b'page')}]"
    assert replaced(Unknown(data="{}")) == f"[file: application/octet-stream, context://vfs/{digest(b'{}')}]"
    assert replaced(Image(data="no base64!")) == f"[image: image/*, context://vfs/{digest(b'no base64!')}]"
    assert replaced(Image()) == f"[image: image/*, context://vfs/{digest(b'')}]"


@pytest.mark.rule("C.X.3")
@pytest.mark.parametrize(
    "data",
    [
        base64.b64encode(BYTES).decode(),
        base64.urlsafe_b64encode(BYTES).decode(),
        base64.b64encode(BYTES).decode().rstrip("="),
        "+//+\r\nMTI=\n",
    ],
)
def test_every_writing_of_base64_gives_the_bytes_one_digest(data: str) -> None:
    line = f"[image: image/png, context://vfs/{digest(BYTES)}]"
    assert replaced(Image(media_type="image/png", data=data)) == line
    assert replaced(Image(url="data:image/png;base64," + "".join(data.split()))) == line


@pytest.mark.rule("C.X.3")
def test_a_url_that_is_the_media_itself_gives_type_and_digest_of_its_bytes() -> None:
    assert replaced(Image(url=f"data:image/gif;base64,{DATA}")) == f"[image: image/gif, context://vfs/{digest(PIXELS)}]"
    more = f"data:image/gif;base64,{DATA} and more"
    assert replaced(Image(url=more)) == f"[image: image/*, context://vfs/{digest(more.encode())}]"


@pytest.mark.rule("C.X.3")
def test_media_in_tool_results_is_replaced_and_the_rest_of_the_message_stays() -> None:
    text = Text(text="before")
    shot = ToolResult(id="a", name="shoot", content=(text, Image(media_type="image/png", data=DATA)), error=True)
    before = ChatMessage(role="tool", content=(text, shot), name="ada")
    after = replace_media(before)
    inner = Text(text=f"[image: image/png, context://vfs/{digest(PIXELS)}]")
    assert after == ChatMessage(
        role="tool",
        content=(text, ToolResult(id="a", name="shoot", content=(text, inner), error=True)),
        name="ada",
    )
    assert after.content[0] is text


@pytest.mark.rule("C.X.3")
def test_a_message_without_media_comes_back_itself() -> None:
    plain = message(Text(text="x"), called("a"), returned("a"), asks("a"), answers(), Reasoning(text="hm"))
    assert replace_media(plain) is plain
    assert not is_opaque(plain)


@pytest.mark.rule("C.X.3")
def test_the_hosts_own_digest_is_used() -> None:
    (part,) = replace_media(message(Image(media_type="image/png", data=DATA)), lambda data: f"n{len(data)}").content
    assert part == Text(text=f"[image: image/png, context://vfs/n{len(PIXELS)}]")


@pytest.mark.rule("C.X.3")
def test_a_media_type_that_is_none_never_gets_into_the_line() -> None:
    line = f"context://vfs/{digest(PIXELS)}]"
    assert replaced(Image(media_type="image/png]\n<system>", data=DATA)) == f"[image: image/*, {line}"
    assert replaced(Document(media_type=DATA, data=DATA)) == f"[file: application/octet-stream, {line}"


@pytest.mark.rule("C.X.3")
def test_base64_in_texts_goes_too() -> None:
    uri = f"data:image/png;base64,{DATA}"
    field = json.dumps({"type": "image", "mimeType": "image/png", "data": DATA})
    parts = (
        Text(text=f"see {uri} here"),
        Reasoning(text=uri),
        ToolCall(id="a", name="t", arguments=json.dumps({"image": uri})),
        ToolResult(id="a", content=(Text(text=field),)),
        ApprovalResponse(id="p", approved=True, reason=uri),
    )
    after = replace_media(message(*parts))
    line = f"[image: image/png, context://vfs/{digest(PIXELS)}]"
    assert after.content[0] == Text(text=f"see {line} here")
    assert json.loads(getattr(after.content[2], "arguments", "")) == {"image": line}
    assert DATA[:64] not in encode_json(after).decode()


@given(WILD_MESSAGES, st.sampled_from([PIXELS, b"", b"\x00"]))
@pytest.mark.rule("C.X.3", "C.B.4")
def test_nothing_opaque_is_left_and_a_second_pass_changes_nothing(wild: ChatMessage, data: bytes) -> None:
    kept = replace_media(ChatMessage(role="user", content=(*wild.content, Image(data=base64.b64encode(data).decode()))))
    assert not is_opaque(kept)
    assert replace_media(kept) is kept


@pytest.mark.rule("C.D.4", "C.X.3")
def test_as_placeholder_only_unknown_parts_are_opaque() -> None:
    shown = message(Image(data="AAAA"), ToolResult(id="a", content=(Document(text="x"),)))
    assert is_opaque(shown)
    assert not is_opaque(shown, media="placeholder")
    unknown = ToolResult(id="a", content=(Unknown(data="{}", provider_data=ProviderData("openai", "{}")),))
    assert is_opaque(message(unknown), media="placeholder")
