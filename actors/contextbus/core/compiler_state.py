"""What a compiler without a run remembers: which of its blocks stand, and what each step changes (D.H).

Outside a run nobody reports how a model call went.  The messages of the next call tell: a block counts as placed while
its digest is among them (D.H.6).  A block that was given out and is not among them is gone, whether the host dropped it
or its call failed (D.F.13); the newest placement of each of its records comes back from the text that the same object
retrieved (D.H.5).  It competes once: what finds no room waits for the next retrieval, as in a run.  Without that text
an optional one competes again at the next retrieval only (D.H.7), and a mandatory one is asked of its source at once
(D.H.8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from contextbus.core.budget import require_count
from contextbus.core.owed import group_offers, is_newer
from contextbus_protocol.codec import encode_json
from contextbus_protocol.compiler_state import ContextCompilerState, RequestPrefix, SentBlock
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.package import Package
from contextbus_protocol.values import Candidate, PlacedEntry, SourceKind, SourceResult, SourceStatus

STATE_VERSION: Final = 1

RecordKey = tuple[str, str, int | None, str]
"""A record as it was offered: source, record id, revision and digest (D.C.11)."""

Texts = Mapping[RecordKey, tuple[SourceKind, Candidate]]
"""What a compiler retrieved of the records that it placed (D.H.5)."""


class Standing(msgspec.Struct, frozen=True):
    """Placed entries: those that stand in a history, and of the others the newest placement of each record."""

    live: tuple[PlacedEntry, ...] = ()
    gone: tuple[PlacedEntry, ...] = ()


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a compiled step adds to the state.

    ``blocks`` are the blocks that it gave out, ``prefix`` what its request begins with, ``stale_thinking`` how many of
    its messages are sent without thinking, and ``missing`` the source and id of each record that was asked for and is
    no more.  ``absent`` are the bodies that no source has, each with the
    chain digest of its skill's load.
    """

    package: Package
    blocks: tuple[SentBlock, ...]
    prefix: RequestPrefix
    prefix_before: RequestPrefix | None
    stale_thinking: int = 0
    present: tuple[str, ...]
    retrieved: bool = False
    host_request: bool = False
    active_task_id: str | None = None
    missing: tuple[tuple[str, str], ...] = ()
    absent: tuple[tuple[str, str], ...] = ()


def read_state(given: ContextCompilerState | Mapping[str, Any] | None) -> ContextCompilerState:
    """The state to begin with: a new one, or the one that is given, as a value or as the JSON object of one.

    Raises:
        InvalidTypeError: it has another version, or is no state (D.H.3).
    """
    if given is None:
        return ContextCompilerState(version=STATE_VERSION)
    plain = cast("object", msgspec.to_builtins(given) if isinstance(given, ContextCompilerState) else given)
    fields = dict(cast("Mapping[str, object]", plain)) if isinstance(plain, Mapping) else {}
    version = fields.get("version")
    if type(version) is not int or version != STATE_VERSION:
        raise InvalidTypeError(f"no compiler state of version {STATE_VERSION}: give what state() returned")
    try:
        state = msgspec.convert(fields, ContextCompilerState)
    except msgspec.ValidationError as exc:
        raise InvalidTypeError(f"malformed compiler state: {exc}") from None
    encode_json(state)
    for name in ("passes", "last_step", "last_refresh_step", "stale_thinking"):
        value: object = getattr(state, name)
        if value is not None:
            require_count(f"state.{name}", value)
    last = -1 if state.last_step is None else state.last_step
    steps = [-1 if state.last_refresh_step is None else state.last_refresh_step]
    for entry in state.placed:
        for name, number in (("step", entry.step), ("pass", entry.pass_), ("tokens", entry.tokens)):
            require_count(f"state.placed.{name}", number)
        if entry.revision is not None:
            require_count("state.placed.revision", entry.revision)
        steps.append(entry.step)
    for block in state.blocks:
        for name, number in (("step", block.step), ("pass", block.pass_)):
            require_count(f"state.blocks.{name}", number)
        steps.append(block.step)
    if max(steps) > last:
        raise InvalidTypeError("malformed compiler state: it names a step behind last_step; give what state() returned")
    for prefix in (state.prefix, state.prefix_before):
        if prefix is not None:
            require_count("state.prefix.count", prefix.count)
    return state


def key_of(entry: PlacedEntry) -> RecordKey:
    """Which offer a placement was of."""
    return entry.source, entry.record_id, entry.revision, entry.digest


def sort_placed(state: ContextCompilerState, present: Collection[str]) -> Standing:
    """Tell what stands from what is gone (D.H.6).

    Only the newest placement of a record is listed as gone, and only while it does not stand: no older revision may
    follow a newer one (D.H.9).
    """
    standing = {(b.step, b.pass_) for b in state.blocks if b.placement == "append" and b.digest in present}
    newest: dict[tuple[str, str], PlacedEntry] = {}
    for entry in state.placed:
        before = newest.get((entry.source, entry.record_id))
        if before is None or is_newer(entry, before):
            newest[entry.source, entry.record_id] = entry
    live = tuple(p for p in state.placed if (p.step, p.pass_) in standing)
    kept = set(map(key_of, live))
    return Standing(live, tuple(p for p in newest.values() if key_of(p) not in kept))


def restorable(standing: Standing, texts: Texts, sources: Sequence[str]) -> tuple[SourceResult, ...]:
    """The recorded offers of what is gone, in source order (D.H.5)."""
    found = [(entry.source, *texts[key_of(entry)]) for entry in standing.gone if key_of(entry) in texts]
    return group_offers(found, sources)


def settle(state: ContextCompilerState, outcome: StepOutcome) -> ContextCompilerState:
    """The state after a compiled step.

    A step that is compiled again replaces its placements (D.I.2, D.J.5); what stands already stays.
    """
    package = outcome.package
    manifest, step = package.manifest, package.step
    standing = sort_placed(state, outcome.present)
    live, placed = set(standing.live), state.placed
    if state.last_step is not None and step > state.last_step:
        newest = live.union(standing.gone)
        placed = tuple(p for p in placed if p in newest)
    placed = tuple(
        p for p in placed if p in live or (p.step != step and (p.source, p.record_id) not in outcome.missing)
    )
    added = tuple(
        PlacedEntry(
            source=e.source,
            record_id=e.record_id,
            digest=e.digest,
            step=step,
            pass_=manifest.pass_,
            tokens=e.tokens,
            revision=e.revision,
            mandatory=e.reason == "mandatory",
        )
        for e in manifest.entries
        if e.selected and e.kind != "working-memory"
    )
    blocks = tuple(
        b for b in state.blocks if b.digest in outcome.present or (b.placement == "append" and b.step != step)
    )
    limited = manifest.fallback == "pass-limit"
    asked = state.refresh_requested or outcome.host_request
    return msgspec.structs.replace(
        state,
        passes=manifest.pass_,
        last_step=step,
        last_refresh_step=step if outcome.retrieved else state.last_refresh_step,
        last_active_task=outcome.active_task_id if outcome.retrieved else state.last_active_task,
        placed=placed + added,
        blocks=blocks + outcome.blocks,
        last_package=digest_bytes(encode_json(package)),
        prefix=outcome.prefix,
        prefix_before=outcome.prefix_before,
        stale_thinking=outcome.stale_thinking,
        refresh_requested=asked and not (outcome.retrieved or limited),
        refused_task=(outcome.active_task_id,) if limited else () if outcome.retrieved else state.refused_task,
        absent=tuple(record for record, _ in outcome.absent),
        absent_loads=tuple(load for _, load in outcome.absent),
    )


def keep_texts(
    texts: Texts, results: Iterable[SourceResult], live: Iterable[PlacedEntry], state: ContextCompilerState
) -> Texts:
    """What of the texts at hand and of new answers a placed entry may come back from.

    Args:
        texts: the texts at hand.
        results: the answers of the step.
        live: the placements that stand in the step's history.
        state: the compiler after the step.
    """
    wanted = set(map(key_of, state.placed))
    kept = {key: text for key, text in texts.items() if key in wanted}
    # What is offered again and finds no room goes on waiting: only what stands or was placed just now may come back.
    sent = {*map(key_of, live), *_sent_last(state)}
    for result in results:
        if result.status is not SourceStatus.OK:
            continue
        for candidate in result.candidates:
            key = (result.source, candidate.record_id, candidate.revision, candidate.digest)
            if key in sent:
                kept[key] = result.kind, candidate
    return kept


def drop_waiting(texts: Texts, restored: Iterable[SourceResult], state: ContextCompilerState) -> Texts:
    """The texts without those of what waits: what could return with the last step and did not (D.H.10).

    It competes again once its source offers it; what is mandatory does not wait.

    Args:
        texts: the texts at hand.
        restored: what could return with the last step.
        state: the compiler after that step.
    """
    sent = _sent_last(state)
    waiting = {
        (result.source, candidate.record_id, candidate.revision, candidate.digest)
        for result in restored
        for candidate in result.candidates
        if not candidate.mandatory
    } - sent
    return {key: text for key, text in texts.items() if key not in waiting} if waiting else texts


def _sent_last(state: ContextCompilerState) -> set[RecordKey]:
    return {key_of(entry) for entry in state.placed if entry.step == state.last_step}
