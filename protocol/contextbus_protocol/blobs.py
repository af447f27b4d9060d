"""What a step stores beside its commit, as JSON blobs version 1 (docs/decisions/0001).

A blob's digest is over its bytes.  The package's own bytes stand unchanged within the step's output.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.codec import decode_json, encode_json
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import EntryFact, RecordReference
from contextbus_protocol.package import Block
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import SourceResult, Value


class StepInput(Value, frozen=True, kw_only=True):
    """The source messages that a commit adds."""

    version: int
    messages: tuple[ChatMessage, ...]


class StepOutput(Value, frozen=True, kw_only=True):
    """A step's package as its own JSON bytes, what the sources answered, and the latest user text (D.G.17).

    ``restored`` are the recorded offers of records whose block had left the history (D.H.5).  ``query``,
    ``prepared`` and ``tools`` are what the host's functions gave, where they were asked (D.D.25).
    """

    version: int
    package: msgspec.Raw
    results: tuple[SourceResult, ...] = ()
    user_text: str = ""
    restored: tuple[SourceResult, ...] = ()
    query: str | None = None
    prepared: tuple[ChatMessage, ...] | None = None
    tools: str | None = None


class PromptLayer(Value, frozen=True, kw_only=True):
    """What a prompt adds to a request and does not put into the tail: its parts without state and guardrails.

    It seldom changes from step to step, so it is stored once for all steps that have it (P.A.6, D.D.25).
    """

    version: int
    parts: PromptParts


class RedactedOutput(Value, frozen=True, kw_only=True):
    """What stays of a step's output after a forget: other records' offers, and the blocks without the record (D.J.6).

    ``redacts`` is the blob that it takes the place of.
    """

    version: int
    redacts: str
    results: tuple[SourceResult, ...] = ()
    blocks: tuple[Block, ...] = ()


class StepFacts(Value, frozen=True, kw_only=True):
    """All entries of a step that has too many for its commit; ids, digests and counts only."""

    version: int
    entries: tuple[EntryFact, ...]


class Replacement(Value, frozen=True, kw_only=True):
    """The messages that stand in place of the first source messages (C.L.1), in the order of the event's facts.

    ``records`` are those of the event (C.X.11).  They come first: a forget finds them in a blob that no commit names,
    and what is compacted again without a forgotten record is another blob, so that erasing the old one twice is safe.
    """

    version: int
    records: tuple[RecordReference, ...] = ()
    messages: tuple[ChatMessage, ...] = msgspec.field(name="replacement")


class ArchivedSpan(Value, frozen=True, kw_only=True):
    """The source messages, and an earlier summary, that a compaction replaced (C.X.8).

    ``records`` are as in ``Replacement``; with them no span has the bytes of an input, which no forget erases (D.J.7).
    """

    version: int
    records: tuple[RecordReference, ...] = ()
    messages: tuple[ChatMessage, ...] = msgspec.field(name="archived")


Blob = TypeVar("Blob", StepInput, StepOutput, StepFacts, RedactedOutput, Replacement, ArchivedSpan, PromptLayer)


def encode_input(messages: tuple[ChatMessage, ...]) -> bytes:
    """Bytes of a step's input."""
    return encode_json(StepInput(version=1, messages=messages))


def encode_output(
    package: bytes,
    results: tuple[SourceResult, ...],
    user_text: str,
    *,
    restored: tuple[SourceResult, ...] = (),
    query: str | None = None,
    prepared: tuple[ChatMessage, ...] | None = None,
    tools: str | None = None,
) -> bytes:
    """Bytes of a step's output around the package's bytes."""
    output = StepOutput(
        version=1,
        package=msgspec.Raw(package),
        results=results,
        user_text=user_text,
        restored=restored,
        query=query,
        prepared=prepared,
        tools=tools,
    )
    return encode_json(output)


def encode_layer(parts: PromptParts) -> bytes:
    """Bytes of a prompt's parts beside its tail."""
    return encode_json(PromptLayer(version=1, parts=parts))


def encode_redacted(redacts: str, results: tuple[SourceResult, ...], blocks: tuple[Block, ...]) -> bytes:
    """Bytes of what stays of a redacted output; ``redacts`` is the reference of the blob that is erased."""
    return encode_json(RedactedOutput(version=1, redacts=redacts, results=results, blocks=blocks))


def encode_replacement(messages: tuple[ChatMessage, ...], records: tuple[RecordReference, ...] = ()) -> bytes:
    """Bytes of what stands in place of source messages; ``records`` are those of the blocks in or before the range."""
    return encode_json(Replacement(version=1, records=records, messages=messages))


def encode_archive(messages: tuple[ChatMessage, ...], records: tuple[RecordReference, ...] = ()) -> bytes:
    """Bytes of an archived span; ``records`` are those of the blocks in or before the range."""
    return encode_json(ArchivedSpan(version=1, records=records, messages=messages))


def encode_facts(entries: tuple[EntryFact, ...]) -> bytes:
    """Bytes of a step's entries."""
    return encode_json(StepFacts(version=1, entries=entries))


def decode_input(data: bytes) -> StepInput:
    """Read a step's input.

    Raises:
        InvalidTypeError: the bytes are damaged or of a newer version.
    """
    return _checked(decode_json(data, StepInput))


def decode_output(data: bytes) -> StepOutput:
    """Read a step's output.

    Raises:
        InvalidTypeError: the bytes are damaged or of a newer version.
    """
    return _checked(decode_json(data, StepOutput))


def decode_redacted(data: bytes) -> RedactedOutput:
    """Read what stays of a redacted output.

    Raises:
        InvalidTypeError: the bytes are damaged, of a newer version, or a step's whole output.
    """
    return _checked(decode_json(data, RedactedOutput))


def decode_replacement(data: bytes) -> Replacement:
    """Read what stands in place of source messages.

    Raises:
        InvalidTypeError: the bytes are damaged or of a newer version.
    """
    return _checked(decode_json(data, Replacement))


def decode_archive(data: bytes) -> ArchivedSpan:
    """Read an archived span.

    Raises:
        InvalidTypeError: the bytes are damaged or of a newer version.
    """
    return _checked(decode_json(data, ArchivedSpan))


def decode_layer(data: bytes) -> PromptLayer:
    """Read a prompt's parts beside its tail.

    Raises:
        InvalidTypeError: the bytes are damaged or of a newer version.
    """
    return _checked(decode_json(data, PromptLayer))


def decode_facts(data: bytes) -> StepFacts:
    """Read a step's entries.

    Raises:
        InvalidTypeError: the bytes are damaged or of a newer version.
    """
    return _checked(decode_json(data, StepFacts))


def _checked(blob: Blob) -> Blob:
    if blob.version != 1:
        raise InvalidTypeError(f"blob version {blob.version} is not one this release reads (1); upgrade contextbus")
    return blob
