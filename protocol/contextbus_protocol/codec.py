"""Bytes to messages and commits, and back.

Messages travel as msgpack, or as JSON for whoever asks in JSON.  Commits and blobs are JSON bytes in deterministic
order; a digest is always over those bytes.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from contextbus_protocol import upcast
from contextbus_protocol.errors import (
    ContextBusError,
    InvalidRequestError,
    InvalidTypeError,
    UnsupportedVersionError,
)
from contextbus_protocol.events import AnyEvent, Commit, UnknownEvent
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.subjects import Part
from contextbus_protocol.values import Value

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
COMMIT_VERSION: Final = 1

_QUOTED = re.compile(r"(Invalid (?:enum )?value) .*?(?=(?: - at `\$[^`]*`)?\Z)", re.DOTALL)

T = TypeVar("T")

_json = msgspec.json.Encoder(order="deterministic")
_msgpack = msgspec.msgpack.Encoder(order="deterministic")
_json_messages: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)
_msgpack_messages: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class _Tag(msgspec.Struct, frozen=True):
    type: str


class _Envelope(Value, frozen=True, kw_only=True):
    """A commit whose events are still bytes, so that one unknown event cannot hide the others."""

    version: int
    tenant: str
    run: str
    part: Part
    command: str
    command_digest: str
    attempt: int
    engine: str
    policy: int
    previous: str
    at: int
    events: tuple[msgspec.Raw, ...]


_envelopes: msgspec.json.Decoder[_Envelope] = msgspec.json.Decoder(_Envelope)
_tags: msgspec.json.Decoder[_Tag] = msgspec.json.Decoder(_Tag)


def encode_json(value: object) -> bytes:
    """JSON bytes in deterministic order; the form that digests are taken of.

    Raises:
        InvalidTypeError: the value holds a lone surrogate or a type that JSON has not, or nests too deep.
    """
    try:
        return _json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidTypeError(f"not encodable as JSON: {type(exc).__name__}") from None


def decode_json(data: bytes | str, type_: type[T]) -> T:
    """Read a value of a type from JSON.

    Raises:
        InvalidTypeError: the bytes are not JSON of that type; the message names the place, not the content.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except UnicodeEncodeError:
        raise InvalidTypeError(f"not a {type_.__name__}: the text holds a lone surrogate") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidTypeError(f"not a {type_.__name__}: {_name_place(exc)}") from None


def encode_message(message: AnyMessage, content_type: str = MSGPACK) -> bytes:
    """Bytes of a message for the wire.

    Raises:
        InvalidTypeError: the message holds a lone surrogate.
    """
    encoder = _json if content_type == JSON else _msgpack
    try:
        return encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidTypeError(f"not encodable: {type(exc).__name__}") from None


def decode_message(data: bytes, content_type: str = MSGPACK) -> AnyMessage:
    """Read a message from the wire.

    Raises:
        InvalidRequestError: the bytes are no message of ours; the text names the place, not the content.
    """
    try:
        if content_type != JSON:
            return _msgpack_messages.decode(data)
        return _portable(_json_messages.decode(data))
    except OverflowError:
        raise InvalidRequestError("not a message of this protocol: an integer does not fit 64 bits") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise InvalidRequestError(f"not a message of this protocol: {_name_place(exc)}") from None


def _name_place(error: Exception) -> str:
    """What msgspec says without the value that it quotes: somebody's content, of any length."""
    return _QUOTED.sub(r"\1", str(error))


def _portable(message: AnyMessage) -> AnyMessage:
    """The message, if msgpack can say it too: JSON knows integers of any size, and none may reach an actor."""
    _msgpack.encode(message)
    return message


def encode_commit(commit: Commit) -> bytes:
    """Bytes of a commit as the log stores them; an unknown event is written as it was read (B74).

    Raises:
        InvalidTypeError: the commit holds a lone surrogate.
    """
    fields = {name: getattr(commit, name) for name in _Envelope.__struct_fields__}
    fields["events"] = tuple(msgspec.Raw(_encode_event(event)) for event in commit.events)
    return encode_json(_Envelope(**fields))


def _encode_event(event: AnyEvent | UnknownEvent) -> bytes:
    if not isinstance(event, UnknownEvent):
        return encode_json(event)
    try:
        return event.data.encode()
    except UnicodeEncodeError:
        raise InvalidTypeError("not encodable as JSON: an unknown event holds a lone surrogate") from None


def decode_commit(data: bytes) -> Commit:
    """Read a commit; events of older versions are lifted, unknown ones kept as they are (B74).

    Raises:
        UnsupportedVersionError: a newer release wrote the commit in a form we cannot read.
        InvalidTypeError: the bytes are damaged.
    """
    try:
        envelope = _envelopes.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidTypeError(f"damaged commit: {_name_place(exc)}") from None
    if envelope.version < 0:
        raise InvalidTypeError("damaged commit: a version is not negative")
    if envelope.version > COMMIT_VERSION:
        raise UnsupportedVersionError(
            f"commit version {envelope.version} is newer than this release reads ({COMMIT_VERSION}); upgrade contextbus"
        )
    fields = {name: getattr(envelope, name) for name in _Envelope.__struct_fields__}
    fields["events"] = tuple(_decode_event(bytes(raw), envelope.version) for raw in envelope.events)
    return Commit(**fields)


def _decode_event(raw: bytes, version: int) -> AnyEvent | UnknownEvent:
    try:
        text = raw.decode()  # what is skipped is not checked by the JSON reader
    except UnicodeDecodeError:
        raise InvalidTypeError("damaged commit: an event is not UTF-8") from None
    try:
        return _events.decode(upcast.lift_event(raw, version))
    except (msgspec.MsgspecError, RecursionError):
        try:
            tag = _tags.decode(raw).type
        except (msgspec.MsgspecError, RecursionError):
            tag = ""
        return UnknownEvent(name=tag, data=text)


def describe(error: ContextBusError) -> str:
    """One line for a log: code and type, no content."""
    return f"{type(error).__name__}({error.code})"
