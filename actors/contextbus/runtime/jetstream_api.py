"""The answers of JetStream's API, as far as they are used, and the headers of its messages."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from contextbus.runtime.journal import COMMAND_HEADER, MESSAGE_ID_HEADER, Record


class Failure(msgspec.Struct, frozen=True):
    """Why a request was refused."""

    err_code: int = 0
    code: int = 0
    description: str = ""


class Acknowledgement(msgspec.Struct, frozen=True):
    """The answer to a published message."""

    seq: int = 0
    duplicate: bool = False
    error: Failure | None = None


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as the leader gives it; `hdrs` are the raw header lines."""

    subject: str
    seq: int
    data: bytes = b""
    hdrs: bytes = b""
    time: str = ""


class MessageAnswer(msgspec.Struct, frozen=True):
    """The answer to a get through the leader."""

    message: StoredMessage | None = None
    error: Failure | None = None


class Done(msgspec.Struct, frozen=True):
    """The answer to a delete or a purge."""

    success: bool = False
    purged: int = 0
    error: Failure | None = None


class StreamState(msgspec.Struct, frozen=True):
    """What a stream holds."""

    last_seq: int = 0
    subjects: dict[str, int] | None = None


class StreamAnswer(msgspec.Struct, frozen=True):
    """The answer to a question about a stream; `total` counts the subjects on all pages."""

    state: StreamState = StreamState()
    total: int = 0
    error: Failure | None = None


acknowledgement = msgspec.json.Decoder(Acknowledgement).decode
message_answer = msgspec.json.Decoder(MessageAnswer).decode
done = msgspec.json.Decoder(Done).decode
stream_answer = msgspec.json.Decoder(StreamAnswer).decode


def parse_headers(raw: bytes) -> dict[str, str]:
    """Read raw header lines; what is no header is left out."""
    headers: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers


def record_of(message: StoredMessage) -> Record:
    """Turn a message of the leader into a record."""
    headers = parse_headers(message.hdrs)
    return Record(
        message.seq,
        message.data,
        headers.get(COMMAND_HEADER, ""),
        headers.get(MESSAGE_ID_HEADER, ""),
        message.time,
    )


def record_from(headers: Mapping[str, str], data: bytes) -> Record:
    """Turn a message of a direct get into a record; its sequence stands in its headers.

    Raises:
        ValueError: The sequence is missing.
    """
    return Record(
        int(headers.get("Nats-Sequence", "")),
        data,
        headers.get(COMMAND_HEADER, ""),
        headers.get(MESSAGE_ID_HEADER, ""),
        headers.get("Nats-Time-Stamp", ""),
    )
