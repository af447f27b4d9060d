"""Messages over the wire: every type there and back in both encodings, and bytes that are no message of ours."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.values import EVENTS, MESSAGES, values_of

from contextbus_protocol import codec
from contextbus_protocol.chat import ChatMessage, Text
from contextbus_protocol.errors import (
    ConflictError,
    ContextBusError,
    InvalidRequestError,
    InvalidTypeError,
    UnsupportedVersionError,
)
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Elapsed
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Scope

ENCODINGS = [codec.MSGPACK, codec.JSON]
DEEP = b"[" * 100_000


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("type_", MESSAGES, ids=lambda t: str(t.__name__))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_message_comes_back_the_same(type_: type[AnyMessage], encoding: str, data: st.DataObject) -> None:
    message = data.draw(values_of(type_))
    sent = codec.encode_message(message, encoding)
    assert codec.decode_message(sent, encoding) == message
    assert codec.encode_message(codec.decode_message(sent, encoding), encoding) == sent


@pytest.mark.parametrize("type_", EVENTS, ids=lambda t: str(t.__name__))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_event_comes_back_the_same(type_: type[msgspec.Struct], data: st.DataObject) -> None:
    event = data.draw(values_of(type_))
    assert codec.decode_json(codec.encode_json(event), type_) == event


def test_tags_are_kebab_case_and_none_is_used_twice() -> None:
    for types in (MESSAGES, EVENTS):
        tags = [str(t.__struct_config__.tag) for t in types]
        assert len(set(tags)) == len(tags)
        assert all(tag == tag.lower() and tag.replace("-", "").isalnum() for tag in tags)


@pytest.mark.rule("D.W.6")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_unknown_field_on_the_wire_is_ignored(encoding: str) -> None:
    fields = {"type": "elapsed", "run": "r", "token": "t", "later": {"deep": [1, "x", None]}}
    encode = msgspec.json.encode if encoding == codec.JSON else msgspec.msgpack.encode
    assert codec.decode_message(encode(fields), encoding) == Elapsed(run="r", token="t")


HOSTILE: list[bytes] = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{}",
    b'{"type":"no-such-message","run":"r"}',
    b'{"type":7,"run":"r"}',
    b'{"type":"elapsed"}',
    b'{"type":"elapsed","run":null,"token":"t"}',
    b'{"type":"elapsed","run":"r","token":"\\ud83d"}',
    b'{"type":"elapsed","run":"r","token":"\xed\xa0\xbd"}',
    b'{"type":"elapsed","run":"r","token":"\xff"}',
    b'{"type":"elapsed","run":"r","token":"t"} and more',
    b'{"type":"elapsed","run":"r","token":"t","x":' + DEEP,
    b'{"type":"elapsed","run":"r","token":"t","x":' + DEEP + b"]" * 100_000 + b"}",
    b'{"type":"loaded","run":"r","token":"t","part":"run","after":' + b"9" * 5000 + b"}",
    b'{"type":"loaded","run":"r","token":"t","part":"run","after":18446744073709551616}',
    b'{"type":"loaded","run":"r","token":"t","part":"run","after":1e400}',
    b'{"type":"loaded","run":"r","token":"t","part":"run","after":NaN}',
    b'{"type":"loaded","run":"r","token":"t","part":"elsewhere","after":0}',
    DEEP,
    b"\x91" * 100_000,
    b"\x81\xa4type" * 20_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xc7\x04\x05beef",
    msgspec.msgpack.encode({"type": "elapsed", "run": "r", "token": b"raw"}),
    msgspec.msgpack.encode({"type": "elapsed", "run": "r"})[:-1],
    b"\x83\xa4type\xa7elapsed\xa3run\xa1r\xa5token\xa3\xed\xa0\xbd",
]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_bytes_that_are_no_message_are_one_clear_error(data: bytes, encoding: str) -> None:
    with pytest.raises(InvalidRequestError):
        codec.decode_message(data, encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(deadline=None)
@given(data=st.data())
def test_damaged_messages_never_raise_anything_else(encoding: str, data: st.DataObject) -> None:
    message = data.draw(values_of(data.draw(st.sampled_from(MESSAGES))))
    sent = bytearray(codec.encode_message(message, encoding))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        read = codec.decode_message(bytes(sent), encoding)
    except InvalidRequestError:
        return
    for other in ENCODINGS:  # what was accepted can be passed on in either encoding
        try:
            codec.encode_message(read, other)
        except InvalidTypeError:
            assert other == codec.JSON  # only JSON has no form for it


@pytest.mark.parametrize(
    "data",
    [
        {"type": "my 'secret' - at `$.x`\n!"},
        {"type": "offered", "run": "r", "token": "t", "source": "s", "kind": "secret", "candidates": []},
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_word_that_is_none_of_ours_is_not_repeated(data: dict[str, str], encoding: str) -> None:
    encode = msgspec.json.encode if encoding == codec.JSON else msgspec.msgpack.encode
    with pytest.raises(InvalidRequestError) as caught:
        codec.decode_message(encode(data), encoding)
    assert "secret" not in caught.value.message
    assert "$." in caught.value.message


def test_the_error_names_the_place_and_not_the_content() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        codec.decode_message(b'{"type":"elapsed","run":"r","token":["my secret"]}', codec.JSON)
    assert "$.token" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_lone_surrogate_is_refused_before_it_is_sent(encoding: str) -> None:
    with pytest.raises(InvalidTypeError):
        codec.encode_message(Elapsed(run="r", token="\ud83d"), encoding)
    with pytest.raises(InvalidTypeError):
        codec.encode_json(ChatMessage(role="user", content=(Text(text="half \ud83d"),)))


def test_integers_beyond_64_bits_are_refused_in_both_directions() -> None:
    query: dict[str, Any] = json.loads(codec.encode_json(_query(limit=3)))
    assert codec.decode_message(json.dumps(query).encode(), codec.JSON) == _query(limit=3)
    query["limit"] = 10**30
    with pytest.raises(InvalidRequestError, match="64 bits"):
        codec.decode_message(json.dumps(query).encode(), codec.JSON)
    with pytest.raises(InvalidTypeError):
        codec.encode_message(_query(limit=10**30))


def _query(limit: int) -> Query:
    return Query(
        run="r",
        tenant="t",
        command="c",
        token="t",
        reply_to="i",
        source="s",
        step=0,
        text="x",
        scope=Scope(user_id="u"),
        limit=limit,
        budget_tokens=0,
        seconds_left=1.0,
    )


@pytest.mark.parametrize("data", ['{"userId":"\ud83d"}', '{"userId":"\\ud83d"}', b'{"userId":"\xff"}', DEEP, b"", "["])
def test_bad_json_is_an_error_of_ours(data: bytes | str) -> None:
    with pytest.raises(InvalidTypeError):
        codec.decode_json(data, Scope)


@pytest.mark.rule("D.A.6")
@settings(max_examples=30, deadline=None)
@given(values_of(Scope), st.permutations(["userId", "agentId", "runId", "actorId", "chatId"]))
def test_json_bytes_do_not_depend_on_the_order_in_which_fields_were_given(scope: Scope, order: list[str]) -> None:
    fields: dict[str, Any] = msgspec.to_builtins(scope)
    shuffled = {name: fields[name] for name in order if name in fields}
    assert codec.encode_json(shuffled) == codec.encode_json(fields) == codec.encode_json(dict(sorted(fields.items())))


def test_an_error_is_described_without_its_text() -> None:
    assert codec.describe(ConflictError("my secret")) == "ConflictError(conflict)"
    assert issubclass(UnsupportedVersionError, ContextBusError)
