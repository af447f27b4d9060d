"""Runs as placement would write them, and whoever records redactions in them: a log to forget from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from contextbus.runtime.journal import Appended, Journal, Page, Record
from contextbus.runtime.package_store import PackageStore, name_command
from contextbus.sources.interface import candidate
from contextbus_protocol import blobs, codec, subjects
from contextbus_protocol.chat import ChatMessage, user
from contextbus_protocol.commands import Recorded, RedactPackages
from contextbus_protocol.digests import digest_bytes, digest_text
from contextbus_protocol.errors import NotFoundError
from contextbus_protocol.events import (
    AnyEvent,
    Commit,
    CompactionCompleted,
    EntryFact,
    MessageFact,
    MessagesAppended,
    PackageRedacted,
    RecordReference,
    ReplacedRange,
    StepCompiled,
    SummaryRedacted,
    TokenChange,
    UnknownEvent,
)
from contextbus_protocol.package import (
    Block,
    BudgetSummary,
    ContextEntry,
    ContextManifest,
    EstimatorSummary,
    Package,
    PlacementSummary,
)
from contextbus_protocol.subjects import Part
from contextbus_protocol.values import Candidate, Model, Scope, SourceResult, StepOptions

_commands = itertools.count(1)
_BUDGET = BudgetSummary(input_tokens=1, used_tokens=1, context_tokens=1, selected_tokens=1, working_memory_tokens=0)
_OPTIONS = StepOptions(scope=Scope(user_id="ada"), model=Model("test", "m", 1000, 100))


class Runs:
    """Writes the runs of a tenant."""

    def __init__(self, journal: Journal, tenant: str) -> None:
        self.journal = journal
        self.tenant = tenant
        self.packages = PackageStore(journal, tenant)
        self.asked: list[RedactPackages] = []

    async def commit(
        self, run: str, events: tuple[AnyEvent | UnknownEvent, ...], command: str, part: Part = "run"
    ) -> int:
        """Append a commit."""
        subject = subjects.log(self.tenant, run, part)
        last = await self.journal.last(subject)
        before = last if isinstance(last, Record) else None
        commit = Commit(
            version=1,
            tenant=self.tenant,
            run=run,
            part=part,
            command=command,
            command_digest="",
            attempt=1,
            engine="test",
            policy=1,
            previous=digest_bytes(before.data) if before else "",
            at=1,
            events=events,
        )
        appended = await self.journal.append(
            subject,
            codec.encode_commit(commit),
            expected=before.sequence if before else 0,
            message_id=f"{run}-{command}",
            command=name_command(command),
        )
        assert isinstance(appended, Appended)
        return appended.sequence

    async def say(self, run: str, *texts: str) -> None:
        """Add source messages."""
        data = blobs.encode_input(tuple(user(text) for text in texts))
        command = f"say-{next(_commands)}"
        await self.packages.put(run, ((digest_bytes(data), data),), command)
        facts = tuple(MessageFact(digest_text(text), 18) for text in texts)
        event = MessagesAppended(start=0, messages=facts, chain="c", inputs=digest_bytes(data))
        await self.commit(run, (event,), command)

    async def step(
        self,
        run: str,
        number: int,
        offers: Sequence[tuple[str, Candidate]],
        *,
        placed: Sequence[str] = (),
        restored: Sequence[tuple[str, Candidate]] = (),
        padding: str = "",
        facts: bool = False,
        stored: bool = True,
        committed: bool = True,
    ) -> str:
        """Compile a step as far as asked; gives the reference of its package."""
        command = f"step-{number}-{next(_commands)}"
        every = [*offers, *restored]
        data = output(run, number, offers, placed=placed, restored=restored, padding=padding)
        reference = digest_bytes(data)
        entries = tuple(
            EntryFact(
                source=source,
                kind="memory",
                record_id=one.record_id,
                digest=one.digest,
                tokens=1,
                selected=one.record_id in placed,
                reason="ranked" if one.record_id in placed else "over-budget",
            )
            for source, one in every
        )
        listed = blobs.encode_facts(entries)
        if stored:
            await self.packages.put(run, ((reference, data),), command)
            if facts:
                await self.packages.put(run, ((digest_bytes(listed), listed),), command)
        event = StepCompiled(
            step=number,
            refresh="initial",
            pass_=1,
            options=_OPTIONS,
            budget=_BUDGET,
            entries=tuple(e for e in entries if e.selected) if facts else entries,
            facts=digest_bytes(listed) if facts else None,
            placement=PlacementSummary(append=bool(placed), tail=True),
            cache_prefix_changed=False,
            count=0,
            chain="c",
            manifest_digest="",
            package_digest="",
            package=reference,
        )
        if committed:
            await self.commit(run, (event,), command)
        return reference

    async def compact(
        self,
        run: str,
        summary: str,
        *records: str,
        source: str = "memory",
        archived: Sequence[ChatMessage] | None = None,
        committed: bool = True,
    ) -> CompactionCompleted:
        """Compact a history as far as asked; the records are those whose blocks lay in it."""
        command = f"compact-{next(_commands)}"
        listed = tuple(RecordReference(source, name, 1) for name in records)
        replacement = blobs.encode_replacement((user(summary),), listed)
        span = None if archived is None else blobs.encode_archive(tuple(archived), listed)
        stored = [(digest_bytes(data), data) for data in (replacement, span) if data is not None]
        await self.packages.put(run, stored, command)
        event = CompactionCompleted(
            evaluation=command,
            tokens=TokenChange(9, 1),
            replaced_range=ReplacedRange(0, 1),
            source_count=1,
            source_hash="c",
            replacement=(),
            replaced_by=digest_bytes(replacement),
            archive=None if span is None else digest_bytes(span),
            records=listed,
        )
        if committed:
            await self.commit(run, (event,), command)
        return event

    async def redact(self, command: RedactPackages) -> Recorded:
        """Record redactions as selection and placement do: once for a command."""
        self.asked.append(command)
        last = await self.journal.last(subjects.log(self.tenant, command.run, "run"))
        if not isinstance(last, Record):
            raise NotFoundError("no such run")
        if last.command == name_command(command.command):
            return recorded(command, last.sequence)
        events: tuple[AnyEvent, ...] = tuple(
            PackageRedacted(
                step=one.step,
                package=one.package,
                replacement=one.replacement,
                source=command.source,
                record_id=command.record_id,
                erasure=command.erasure,
            )
            for one in command.packages
        ) + tuple(
            SummaryRedacted(
                replaced_by=one.replaced_by,
                archive=one.archive,
                source=command.source,
                record_id=command.record_id,
                erasure=command.erasure,
            )
            for one in command.summaries
        )
        return recorded(command, await self.commit(command.run, events, command.command))

    async def replacement(self, run: str, reference: str) -> blobs.RedactedOutput:
        """What took the place of a package, found by the log."""
        page = await self.journal.read(subjects.log(self.tenant, run, "run"), after=0)
        assert isinstance(page, Page)
        events = [event for record in page.records for event in codec.decode_commit(record.data).events]
        (found,) = [e.replacement for e in events if isinstance(e, PackageRedacted) and e.package == reference]
        stored = await self.packages.get(run, (found,))
        assert isinstance(stored, tuple)
        ((_, data),) = stored
        return blobs.decode_redacted(data)

    async def stored(self) -> bytes:
        """The bytes of all blobs, one behind the other."""
        found = await self.journal.subjects(subjects.blobs_of_tenant(self.tenant))
        assert isinstance(found, tuple)
        parts = [await self.journal.get(subject) for subject in found]
        return b"".join(part for part in parts if isinstance(part, bytes))


def recorded(command: RedactPackages, sequence: int) -> Recorded:
    """The answer of selection."""
    return Recorded(run=command.run, command=command.command, sequence=sequence, commit="", count=0, chain="c")


def offer(record_id: str, text: str) -> Candidate:
    """A candidate with a query of its own."""
    return candidate(record_id, text, 1.0, 1, query=f"what was asked for {record_id}")


def output(
    run: str,
    number: int,
    offers: Sequence[tuple[str, Candidate]],
    *,
    placed: Sequence[str] = (),
    restored: Sequence[tuple[str, Candidate]] = (),
    padding: str = "",
) -> bytes:
    """The blob of a step: the placed records in one block, and a tail."""
    every = [*offers, *restored]
    texts = [one.text for _, one in every if one.record_id in placed]
    blocks = (Block("append", (user("\n".join(texts)),)),) if texts else ()
    tail: tuple[ChatMessage, ...] = (user("the working memory"),)
    manifest = ContextManifest(
        version=1,
        run_id=run,
        step=number,
        refresh="initial",
        pass_=1,
        budget=_BUDGET,
        estimator=EstimatorSummary(kind="estimate", calibrated=False, name="e", version=1),
        entries=tuple(
            ContextEntry(
                source=source,
                kind="memory",
                record_id=one.record_id,
                digest=one.digest,
                tokens=1,
                selected=one.record_id in placed,
                reason="ranked",
            )
            for source, one in every
        ),
        sources=(),
        placement=PlacementSummary(append=bool(texts), tail=True),
        cache_prefix_changed=False,
    )
    package = Package(
        version=1, run_id=run, step=number, blocks=(*blocks, Block("ephemeral-tail", tail)), manifest=manifest
    )
    return blobs.encode_output(
        codec.encode_json(package), results(offers), f"what the user said {padding}", restored=results(restored)
    )


def results(offers: Sequence[tuple[str, Candidate]]) -> tuple[SourceResult, ...]:
    """The answers of sources."""
    named = dict.fromkeys(source for source, _ in offers)
    return tuple(SourceResult(s, "memory", candidates=tuple(c for name, c in offers if name == s)) for s in named)
