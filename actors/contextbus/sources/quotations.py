"""Who quotes a record: source messages and working-memory items, which a forget counts and does not touch (D.J.7)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from typing import cast

import msgspec

from contextbus.runtime.journal import Journal
from contextbus.runtime.package_store import PackageStore
from contextbus.sources import memory_log
from contextbus_protocol import blobs, codec, subjects
from contextbus_protocol.errors import ContextBusError, InvalidTypeError
from contextbus_protocol.events import (
    AnyEvent,
    MessagesAppended,
    UnknownEvent,
    WorkingMemoryCreated,
    WorkingMemoryPatched,
)


class Quotations(msgspec.Struct, frozen=True):
    """How many source messages, and how many entries of the working memory's log, quote a text."""

    messages: int = 0
    items: int = 0


async def count_quotations(
    journal: Journal, packages: PackageStore, tenant: str, runs: Iterable[str], texts: Sequence[str]
) -> Quotations:
    """Count what quotes one of some texts, whole and letter by letter.

    Args:
        journal: The streams.
        packages: The package store over them.
        tenant: The tenant.
        runs: The runs to look into.
        texts: The texts.

    Raises:
        DeadlineExceededError: log or store do not answer.
    """
    messages = items = 0
    for run in runs:
        seen: set[str] = set()
        async for event in _events(journal, subjects.log(tenant, run, "run")):
            if isinstance(event, MessagesAppended) and event.inputs not in seen:
                seen.add(event.inputs)
                messages += await _count_messages(packages, run, event.inputs, texts)
        async for event in _events(journal, subjects.log(tenant, run, "working-memory")):
            if isinstance(event, WorkingMemoryCreated):
                items += _count_entries(msgspec.to_builtins(event.snapshot), texts)
            elif isinstance(event, WorkingMemoryPatched):
                items += _count_entries(msgspec.to_builtins(event.patch), texts)
    return Quotations(messages, items)


async def _events(journal: Journal, subject: str) -> AsyncGenerator[AnyEvent | UnknownEvent]:
    async for records in memory_log.read_all(journal, subject):
        for record in records:
            try:
                commit = codec.decode_commit(record.data)
            except InvalidTypeError:
                continue
            for event in commit.events:
                yield event


async def _count_messages(packages: PackageStore, run: str, inputs: str, texts: Sequence[str]) -> int:
    found = await memory_log.insist(partial(packages.get, run, (inputs,)))
    try:
        messages = blobs.decode_input(found[0][1]).messages if found else ()
    except ContextBusError:
        return 0
    return sum(_quotes(msgspec.to_builtins(message), texts) for message in messages)


def _quotes(value: object, texts: Sequence[str]) -> bool:
    """Whether a text stands in a value, however deep."""
    if isinstance(value, str):
        return any(text in value for text in texts)
    return any(_quotes(part, texts) for part in _parts(value))


def _count_entries(value: object, texts: Sequence[str]) -> int:
    """How many objects of a value have a text of their own that quotes: an item, or an operation that writes one."""
    parts = _parts(value)
    own = isinstance(value, Mapping) and any(isinstance(part, str) and _quotes(part, texts) for part in parts)
    return int(own) + sum(_count_entries(part, texts) for part in parts)


def _parts(value: object) -> tuple[object, ...]:
    if isinstance(value, Mapping):
        return tuple(cast("Mapping[str, object]", value).values())
    return tuple(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else ()
