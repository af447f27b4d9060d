"""The event of a placed step and the blobs beside it: placement commits them, ``verify`` makes them again."""

from __future__ import annotations

from typing import Final

from contextbus.actors import gather
from contextbus.core.estimate import Estimator
from contextbus.core.package_bytes import encode_package
from contextbus_protocol import blobs, codec, digests
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commit_requests import Place
from contextbus_protocol.events import (
    BlockFact,
    EntryFact,
)
from contextbus_protocol.events import (
    StepCompiled as StepCompiledEvent,
)
from contextbus_protocol.package import BlockPlacement, Package, StepDecision

LARGEST_FACTS: Final = 128 * 1024
"""Bytes of entries that a commit holds itself; more go to a blob (design: section 3)."""


def compile_event(
    message: Place, package: Package, estimator: Estimator
) -> tuple[StepCompiledEvent, str, tuple[tuple[str, bytes], ...]]:
    """The event of a placed step, the package's JSON text, and the blobs to store.

    ``verify`` makes the event from recorded inputs with this same function.
    """
    encoded = encode_package(package)
    data = encoded.data
    keeps_query = message.rewritten or message.overflow is not None
    output = blobs.encode_output(
        data,
        message.results,
        message.user_text,
        restored=message.restored,
        query=message.query if keeps_query else None,
        prepared=message.prepared,
        tools=message.tools,
    )
    reference = digests.digest_bytes(output)
    stored: tuple[tuple[str, bytes], ...] = ((reference, output),)
    entries = entry_facts(message.decision)
    facts: str | None = None
    if len(entries) * _SMALLEST_ENTRY > LARGEST_FACTS or len(codec.encode_json(entries)) > LARGEST_FACTS:
        all_entries = blobs.encode_facts(entries)
        facts = digests.digest_bytes(all_entries)
        stored += ((facts, all_entries),)
        entries = tuple(e for e in entries if e.selected)
    if message.prompt is not None and message.prompt.layer is not None:
        stored += ((digests.digest_bytes(message.prompt.layer), message.prompt.layer),)
    manifest = package.manifest
    messages: list[tuple[BlockPlacement, ChatMessage]] = [
        (block.placement, message) for block in package.blocks for message in block.messages
    ]
    memory = message.working_memory
    event = StepCompiledEvent(
        step=manifest.step,
        refresh=manifest.refresh,
        pass_=manifest.pass_,
        host_request=message.host_request,
        options=message.options,
        sources=gather.facts_of(message.results),
        query_digest=digests.digest_text(message.query) if message.query else None,
        query_length=len(message.query),
        working_memory=None if memory is None else memory.used,
        active_task_id=message.active_task_id,
        budget=manifest.budget,
        entries=entries,
        facts=facts,
        counts=message.decision.counts,
        blocks=tuple(
            BlockFact(placement, digest, estimator.message(message))
            for (placement, message), digest in zip(messages, encoded.message_digests, strict=True)
        ),
        placement=manifest.placement,
        cache_prefix_changed=manifest.cache_prefix_changed,
        cache_prefix_cause=manifest.cache_prefix_cause,
        fallback=manifest.fallback,
        count=message.history.count,
        chain=message.history.chain,
        manifest_digest=encoded.manifest_digest,
        package_digest=digests.digest_bytes(data),
        package=reference,
        rewritten=message.rewritten,
        prepared=message.prepared_fact,
        demanded=message.demanded,
        overflow=message.overflow,
        redacted=manifest.redacted,
        erasures=message.erasures,
        usage=message.usage,
        warnings=message.warnings,
        prompt=None if message.prompt is None else message.prompt.fact,
    )
    return event, data.decode(), stored


_SMALLEST_ENTRY: Final = 120
"""Fewer bytes than any entry takes: below this product nothing needs to be measured."""


def entry_facts(decision: StepDecision) -> tuple[EntryFact, ...]:
    """The entries of a decision as facts: with scores, without queries."""
    return tuple(
        EntryFact(
            source=e.source,
            kind=e.kind,
            record_id=e.record_id,
            digest=e.digest,
            tokens=e.tokens,
            selected=e.selected,
            reason=e.reason,
            score=score,
            revision=e.revision,
            mandatory=mandatory,
        )
        for e, score, mandatory in zip(decision.manifest.entries, decision.scores, decision.mandatory, strict=True)
    )
