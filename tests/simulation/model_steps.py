"""What the model says of a compiled step: its manifest, its package, and what stands afterwards."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from contextbus_protocol import blobs
from contextbus_protocol.chat import Text
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import CompileStep, OverflowStep
from contextbus_protocol.digests import digest_text
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.package import ContextEntry, Package
from contextbus_protocol.values import SourceStatus
from tests.simulation.model import Model, is_bound
from tests.simulation.model_values import Block, Key, Last, Memory, Owed, Record

RECORD = re.compile(r'<record source="([^"]*)" kind="[^"]*" id="([^"]*)"[^>]*>\n(.*?)\n</record>', re.DOTALL)
TAKEN = frozenset({"mandatory", "ranked", "reallocated", "restored"})


class StepCheck:
    """One compiled step against the model."""

    def __init__(
        self,
        model: Model,
        event: StepCompiled,
        command: CompileStep | OverflowStep,
        store: Mapping[str, bytes],
        lost: set[str],
        *,
        retried: bool,
    ) -> None:
        self.model = model
        self.event = event
        self.command = command
        self.store = store
        self.lost = lost
        self.retried_lost = retried
        self.output = blobs.decode_output(store[event.package])
        self.package = decode_json(bytes(self.output.package), Package)
        self.manifest = self.package.manifest
        self.is_overflow = isinstance(command, OverflowStep)
        self.bound = is_bound(event.options.model.model_id, event.options.model.provider)
        self.memory = self._memory()
        self.flat = model.flat()
        self.restored = self._restorable()

    def run(self) -> None:
        """Compare, then take the step over."""
        self._check_number()
        self._check_refresh()
        self._check_budget()
        self._check_prefix()
        self._check_entries()
        self._check_blocks()
        self._apply()

    def _memory(self) -> Memory | None:
        used = self.event.working_memory
        seen = max(self.model.memory_used, self.command.seen_memory)
        if used is None:
            assert seen == 0, "the step is of no working memory, which was seen"
            return None
        assert used.sequence >= seen, f"working memory {used.sequence} is older than {seen}"
        self.model.memory_used = used.sequence
        memory = self.model.memories[used.sequence]
        assert used.revision == memory.revision
        assert self.event.active_task_id == memory.task
        return memory

    def _check_number(self) -> None:
        last, step = self.model.last, self.event.step
        assert step == self.manifest.step
        if isinstance(self.command, OverflowStep):
            assert last is not None
            assert step == last.step == self.command.step
            assert last.status in {"open", "overflow"}
            assert not last.redacted
            return
        assert self.command.step in {None, step}
        if last is None:
            assert step == (self.command.step or 0)
        else:
            assert step >= last.step
            again = last.redacted or last.history_forgotten or last.package in self.lost or self.retried_lost
            if self.command.step is None:
                assert step == last.step + 1 or (step == last.step and again), f"step {step} behind {last.step}"

    # -- refresh (D.G)

    def _query(self) -> str:
        title = None
        if self.memory is not None and self.memory.task is not None:
            title = self.memory.titles[self.memory.task]
        user = self.model.user_text()
        return (f"{title}\n{user}" if title and user else title or user)[:2000]

    def _check_refresh(self) -> None:
        model, event, manifest = self.model, self.event, self.manifest
        if isinstance(self.command, OverflowStep):
            self.retrieved = self.limited = False
            self.due = "overflow-retry"
            assert (manifest.refresh, manifest.pass_) == ("overflow-retry", model.passes)
            assert not event.demanded
            return
        options = event.options
        task = None if self.memory is None else self.memory.task
        due = model.due(event.step, task, asked=event.host_request, min_steps=options.refresh.min_steps)
        blank = not self._query().strip()
        limited = due not in {None, "redacted"} and bool(options.sources) and model.passes >= options.refresh.max_passes
        expected = "reused" if due is None or limited else due
        if due not in {None, "redacted"} and not options.sources:
            expected = "initial" if model.last is None else "reused"
        skipped = expected not in {"reused"} and bool(options.sources) and blank
        self.retrieved = expected != "reused" and bool(options.sources) and not blank
        self.limited, self.due = limited, expected
        assert event.host_request == self.command.refresh
        assert manifest.refresh == event.refresh == expected, f"refresh {event.refresh}, not {expected}"
        assert manifest.pass_ == event.pass_ == model.passes + self.retrieved, "passes"
        assert manifest.redacted == model.redaction_due
        failed = any(s.status is SourceStatus.FAILED for s in event.sources)
        assert manifest.fallback == ("source-failed" if failed else "pass-limit" if limited else None)
        assert (event.query_digest or "") == (digest_text(self._query()) if self.retrieved else "")
        asked = [s.source for s in event.sources]
        if self.retrieved:
            assert asked == [s.id for s in options.sources], f"asked {asked}"
        else:
            assert set(asked) <= {source for source, _ in event.demanded}, f"asked {asked}, and nothing was due"
        if skipped:
            left = [s.source for s in manifest.sources if s.source not in asked]
            assert all(s.status is SourceStatus.SKIPPED for s in manifest.sources if s.source in left)
            assert [s.source for s in manifest.sources] == [s.id for s in options.sources]
        else:
            assert [s.source for s in manifest.sources] == asked
        assert set(event.demanded) == self._demanded(), f"demanded {event.demanded}, not {self._demanded()}"

    def _demanded(self) -> set[Key]:
        """What the run is owed whatever the query says (D.H.8, D.K.26)."""
        model, ids = self.model, [s.id for s in self.event.options.sources]
        owed = {k for k, o in model.owed.items() if o.record.mandatory and not o.waits and k[0] in ids}
        found = {key for key in owed if key not in self.restored}
        if "skills" in ids:
            held = {r.key for r in model.standing()} | set(model.owed)
            for skill, _ in model.loaded():
                key = ("skills", f"{skill}/body")
                if skill not in model.absent and key not in held:
                    found.add(key)
        return found

    def _restorable(self) -> dict[Key, Owed]:
        """The owed records whose text is still stored (D.H.5, D.H.7)."""
        found: dict[Key, Owed] = {}
        for key, owed in self.model.owed.items():
            data = self.store.get(owed.record.package)
            if data is None or owed.waits or self.is_overflow:
                continue
            if data.startswith(b'{"version":1,"redacts"'):
                results = blobs.decode_redacted(data).results
            else:
                output = blobs.decode_output(data)
                results = (*output.results, *output.restored)
            wanted = (owed.record.record_id, owed.record.digest, owed.record.revision)
            if any(
                (c.record_id, c.digest, c.revision) == wanted
                for r in results
                if r.source == owed.record.source
                for c in r.candidates
            ):
                found[key] = owed
        returned = {(r.source, c.record_id) for r in self.output.restored for c in r.candidates}
        # what was forgotten since the sources answered is dropped, also before its package is redacted (D.J.4)
        dropped = {key for key in found if key not in returned and self._is_known_forgotten(key)}
        return {key: owed for key, owed in found.items() if key not in dropped}

    def _is_known_forgotten(self, key: Key) -> bool:
        """Whether the step was checked against the tombstone of a record."""
        erased, seen = self.model.tombstones.get(key), self.event.erasures
        return erased is not None and seen is not None and erased <= seen

    # -- budget and prefix

    def _check_budget(self) -> None:
        model, options, budget = self.model, self.event.options, self.manifest.budget
        limit = options.model.context_window - options.model.max_output_tokens
        if isinstance(self.command, OverflowStep):
            assert model.last is not None
            given = self.command.input_tokens
            limit = max(0, model.last.estimated - 1) if given is None else given
            assert self.event.overflow == limit
        assert budget.input_tokens == max(0, limit)
        used = model.tokens(model.weight()) + options.overhead_tokens
        assert budget.used_tokens == used, f"{budget.used_tokens} tokens used, not {used}"
        room = max(0, budget.input_tokens - used)
        assert budget.context_tokens == min(room // 4, 8192)
        assert budget.selected_tokens <= room
        optional = [e for e in self.manifest.entries if e.selected and e.reason != "mandatory"]
        mandatory = any(e.selected and e.reason == "mandatory" for e in self.manifest.entries)
        assert not optional or mandatory or budget.selected_tokens <= budget.context_tokens

    def _check_prefix(self) -> None:
        model, last, cause = self.model, self.model.last, self.manifest.cache_prefix_cause
        assert self.manifest.cache_prefix_changed == (cause is not None)
        if last is None:
            assert cause is None
            return
        options = self.event.options
        if last.model != (options.model.provider, options.model.model_id):
            expected: set[str | None] = {"model"}
        elif last.tools != options.tools_digest:
            expected = {"tools"}
        elif last.system != model.system()[: len(last.system)]:
            expected = {"system"}
        elif self._request()[: len(last.prefix)] != last.prefix and model.compacted:
            expected = (
                {"redacted"} if model.redaction_hit else {"compaction", "redacted"} if last.redacted else {"compaction"}
            )
        elif self._request()[: len(last.prefix)] != last.prefix:
            expected = (
                {"redacted"} if model.redaction_hit else {"history", "redacted"} if last.redacted else {"history"}
            )
        else:  # the same bytes; the host or a forget may have changed them and changed them back
            expected = {None, "system", "history", "redacted", "compaction"} if model.touched else {None}
            if isinstance(self.command, OverflowStep) and self.bound:
                expected |= {"history"}  # a tail that stays counts as another, even if it says the same
        if model.system_touched:  # changed and changed back: the first cause that applied stays
            expected = {*expected, "system"}
        assert cause in expected, f"cause {cause}, not {expected}"

    def _request(self) -> list[str]:
        """What the request begins with: of a step compiled again its own blocks are compared too (D.F.15)."""
        if not isinstance(self.command, OverflowStep):
            return self.flat
        digests = {block.placement: block.digest for block in self.event.blocks}
        own = ("append", "ephemeral-tail") if self.bound else ("append",)
        return self.flat + [digests[placement] for placement in own if placement in digests]

    # -- entries (D.C, D.D.1)

    def _check_entries(self) -> None:
        model = self.model
        offered = [(r.source, c) for r in self.output.results if r.status is SourceStatus.OK for c in r.candidates]
        entries = [e for e in self.manifest.entries if e.kind != "working-memory"]
        restored = {(r.source, c.record_id) for r in self.output.restored for c in r.candidates}
        if not self.is_overflow:
            assert restored == set(self.restored), f"restored {restored}, not {set(self.restored)}"
            if not self.retrieved:
                extra = {(s, c.record_id) for s, c in offered} - set(self.event.demanded)
                assert not extra, f"nothing was due, and {extra} has entries"
        fresh = {(s, c.record_id, c.revision, c.digest) for s, c in offered}
        again = {(r.source, c.record_id, c.revision, c.digest) for r in self.output.restored for c in r.candidates}
        listed = [(e.source, e.record_id, e.revision, e.digest) for e in entries]
        assert set(listed) == fresh | again
        standing = {(r.source, r.record_id, r.revision, r.digest) for r in model.standing()}
        newest: dict[Key, int] = {}
        known = [(r.key, r.revision) for r in (*model.standing(), *(o.record for o in model.owed.values()))]
        for key, revision in [*known, *((k[:2], k[2]) for k in (*fresh, *again))]:
            newest[key] = max(newest.get(key, -1), -1 if revision is None else revision)
        for entry, quad in zip(entries, listed, strict=True):
            self._check_entry(entry, quad in standing, quad in again - fresh, newest[quad[:2]])

    def _check_entry(self, entry: ContextEntry, standing: bool, returning: bool, newest: int) -> None:
        where = f"{entry.source}/{entry.record_id}: {entry.reason}"
        assert entry.selected == (entry.reason in TAKEN), where
        old = entry.revision is not None and entry.revision < newest
        assert old == (entry.reason == "superseded"), where
        assert (standing and not old) == (entry.reason == "already-placed"), where
        if entry.reason == "restored":
            assert returning, where
        if entry.reason in {"ranked", "reallocated"}:
            assert not returning, where
        assert not entry.selected or (entry.source, entry.record_id) not in self.model.forgotten, where

    # -- the package (D.E, D.F)

    def _check_blocks(self) -> None:
        blocks = {b.placement: b.messages[0] for b in self.package.blocks}
        assert list(blocks) == [p for p in ("append", "ephemeral-tail") if p in blocks]
        assert len(blocks) == len(self.package.blocks)
        self.texts = {p: m.content[0].text for p, m in blocks.items() if isinstance(m.content[0], Text)}
        self.weights = {p: self.model.weigh(m) for p, m in blocks.items()}
        taken = [e for e in self.manifest.entries if e.selected and e.kind != "working-memory"]
        found = [
            (html.unescape(source), html.unescape(record), digest_text(html.unescape(text)))
            for source, record, text in RECORD.findall(self.texts.get("append", ""))
        ]
        assert found == [(e.source, e.record_id, e.digest) for e in taken], "the block holds other records"
        placement = self.manifest.placement
        assert (placement.append, placement.tail, placement.tail_kept) == (
            "append" in blocks,
            "ephemeral-tail" in blocks,
            self.bound,
        )
        assert [b.placement for b in self.event.blocks] == list(blocks)
        tail = self.texts.get("ephemeral-tail", "")
        assert bool(tail) == (self.memory is not None)
        if self.memory is not None:
            self._check_tail(tail, self.memory)

    def _check_tail(self, tail: str, memory: Memory) -> None:
        assert tail.startswith(f'<working_memory revision="{memory.revision}">\n')
        assert f"<goal>{memory.goal}</goal>" in tail
        assert ("<active_task " in tail) == (memory.task is not None)
        if memory.task is not None:
            assert memory.titles[memory.task] in tail
        assert "No deploys on Friday." in tail
        lines = [e for e in self.manifest.entries if e.record_id.split("/")[0] in {"observation", "hypothesis"}]
        shown = sum(note in tail for note in memory.notes)
        assert (len(lines), sum(e.selected for e in lines)) == (len(memory.notes), shown)

    # -- what stands afterwards

    def _apply(self) -> None:
        model, event = self.model, self.event
        records = [
            Record(e.source, e.record_id, e.revision, e.digest, e.mandatory, event.step, event.package)
            for e in event.entries
            if e.selected and e.kind != "working-memory"
        ]
        placed: list[Block] = []
        for fact in event.blocks:
            assert fact.eighteenths == self.weights[fact.placement]
            if fact.placement == "append" or self.bound:
                held = records if fact.placement == "append" else []
                at, cost = len(model.messages), fact.eighteenths
                placed.append(Block(event.step, at, fact.placement, fact.digest, cost, event.package, held))
        digests = {b.placement: b.digest for b in event.blocks}
        own = [digests[p] for p in ("append", "ephemeral-tail") if p in digests]
        options = event.options
        task = None if self.memory is None else self.memory.task
        model.last = Last(
            step=event.step,
            package=event.package,
            model=(options.model.provider, options.model.model_id),
            tools=options.tools_digest,
            messages=model.digests,
            system=model.system(),
            prefix=self.flat + [b.digest for b in placed],  # a tail that stays is part of it (D.F.17)
            request=self.flat + own,
            blocks=placed,
            records=records,
            # what came to be owed since could not return with an overflow (D.I.4)
            owed=model.last.owed if self.is_overflow and model.last is not None else list(model.owed.values()),
            estimated=self.manifest.budget.used_tokens + self.manifest.budget.selected_tokens,
            options=options,
        )
        answered = {s.source for s in event.sources if s.status is SourceStatus.OK}
        offered = {e.record_id for e in event.entries}
        for source, record in event.demanded:
            if source == "skills" and source in answered and record not in offered:
                model.absent |= {skill for skill, _ in model.loaded() if f"{skill}/body" == record}
        served = self.retrieved or (self.manifest.redacted and not options.sources)
        model.redaction_due = model.redaction_due and not served
        if self.retrieved:
            model.passes += 1
            model.last_refresh, model.task_at_refresh, model.limit_reported = event.step, task, []
        if self.manifest.fallback == "pass-limit":  # one that was not reported is still due (D.D.24, D.G.11)
            model.limit_reported = [task]
        if self.retrieved or self.manifest.fallback == "pass-limit":
            model.requested = False
        else:
            model.requested = model.requested or event.host_request
        model.touched = model.redaction_hit = model.compacted = model.rewound = model.system_touched = False
