"""Whatever happens to a run with forgets, lost blobs, overflows and restarts: what must always hold, holds."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.actors.bench import candidate
from tests.actors.driven import Driven, overflow
from tests.actors.test_owed_records import rewritten

from contextbus.core.run_state import RunState
from contextbus_protocol.codec import decode_json, encode_json
from contextbus_protocol.commands import ErrorReply, StepCompiled

RECORDS = [candidate(n, words=12 * n, mandatory=n == 2) for n in range(1, 6)]
ACTIONS = [
    "step",
    "step",
    "ask",
    "again",
    "rewrite",
    "ok",
    "ok",
    "failed",
    "overflow",
    "less",
    "forget",
    "lose",
    "new",
    "race",
    "race",
]
FAILURES = {"stale_step", "invalid_type", "not_found", "context_budget_exceeded", "conflict"}


@dataclasses.dataclass
class World:
    """A run, what was forgotten, and the packages that were sent since."""

    run: Driven
    forgotten: set[str]
    lost: bool = False

    def act(self, number: int, action: str, which: int) -> None:
        run, name = self.run, f"{action}-{number}"
        match action:
            case "step" | "ask":
                self.check(run.send(run.next(name, refresh=action == "ask")))
            case "again" if run.fold.last is not None:
                self.check(run.send(run.next(name, add=False)))
            case "rewrite":
                self.check(run.send(rewritten(run, name)))
            case "ok" | "failed" | "overflow" if run.fold.last is not None and run.fold.last.status == "open":
                run.report({"ok": "succeeded"}.get(action, action))
            case "less" if run.fold.last is not None:
                last = run.fold.last
                limit = None if which == 0 else last.estimated + 40 * which
                self.check(run.send(overflow(last.step, limit, command=name)))
            case "forget":
                self.forget(f"r{which + 1}", name)
            case "lose" if run.fold.last is not None:
                self.lost |= run.log.blobs.pop(run.package, None) is not None
            case "new":
                self.run = run.beside()
            case "race":
                other = World(run.beside(), self.forgotten)
                run.on_store = lambda: other.interfere(name, which)
            case _:
                pass

    def interfere(self, name: str, which: int) -> None:
        """Commit between a decision and its commit, as another instance does."""
        last = self.run.fold.last
        record = f"r{which + 1}"
        if which < 2 and last is not None and last.status == "open":
            self.run.report("succeeded" if which else "failed")
        elif self.run.holding(record):
            self.forget(record, name)

    def forget(self, record: str, name: str) -> None:
        run = self.run
        if record in self.forgotten:
            return
        self.forgotten.add(record)
        run.found["docs"] = tuple(c for c in RECORDS if c.record_id not in self.forgotten)  # shared by all instances
        holding = run.holding(record)
        if holding:
            run.redact(record, *holding, command=name)

    def check(self, answer: object) -> None:
        if isinstance(answer, ErrorReply):
            assert answer.code in FAILURES, answer
            event(answer.code)
            return
        assert isinstance(answer, StepCompiled)
        for record in self.forgotten:
            assert f"record {record[1:]} word" not in answer.package


@pytest.mark.rule("D.J.4", "D.H.2", "D.H.9", "D.C.10", "D.A.6", "D.B.12", "D.W.1")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 4)), max_size=16))
def test_forgotten_texts_stay_out_records_stand_once_and_every_step_verifies(actions: list[tuple[str, int]]) -> None:
    world = World(Driven(), set())
    world.run.found["docs"] = tuple(RECORDS)
    for number, (action, which) in enumerate(actions):
        world.act(number, action, which)
        state = world.run.fold
        placed = [(p.source, p.record_id, p.revision, p.digest) for p in state.placed]
        assert len(placed) == len(set(placed))
        assert {p.step for p in state.placed} <= {b.step for b in state.blocks}
        owed = [o.entry.record_id for o in state.owed]
        assert not set(owed) & world.forgotten
        assert not {p.record_id for p in state.placed} & world.forgotten
        assert decode_json(encode_json(state), RunState) == state
    verdict = world.run.verify()
    assert verdict.is_clean, [c for c in verdict.checks if c.status == "different"]
    if not world.lost:
        assert {c.status for c in verdict.checks} <= {"same", "redacted"}
