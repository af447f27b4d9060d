"""The state of a run is what its log comes to: plain JSON, and nothing beside it counts (D.H.1-D.H.4, D.H.13)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.logs import append, commit_to
from tests.core.test_owed import X, Y, fact, plan, runs, take

from contextbus.core.run_state import RunState
from contextbus_protocol.codec import decode_json, encode_json
from contextbus_protocol.events import AnyEvent, CallSucceeded, HistoryReplaced, RefreshRequested


@pytest.mark.rule("D.H.1", "D.H.2", "D.H.13", "D.W.1")
@settings(deadline=None)
@given(states=runs(), cut=st.integers(0, 3))
def test_a_state_that_went_through_json_goes_on_as_the_one_that_did_not(states: list[RunState], cut: int) -> None:
    for state in states:
        again = decode_json(encode_json(state), RunState)
        assert again == state
        events: tuple[AnyEvent, ...] = (append(state, "more"), CallSucceeded(step=0), RefreshRequested())
        if cut <= state.history.count:
            events = (HistoryReplaced(keep=cut),)
        assert commit_to(again, *events) == commit_to(state, *events)
        assert encode_json(plan(again)) == encode_json(plan(state))


@pytest.mark.rule("D.H.1", "D.H.4", "D.H.13")
def test_it_holds_what_is_due_and_what_stands_and_no_text() -> None:
    state = take(take(RunState("r"), 0, X, Y, text="a secret"), 1, fact("z", 3), text="another secret")
    state = commit_to(state, RefreshRequested())
    data = encode_json(state)
    assert b"secret" not in data
    assert b"text of" not in data
    assert (state.passes, state.last_refresh_step, state.refresh_requested) == (2, 1, True)
    assert [(b.step, b.pass_, b.fact.digest) for b in state.blocks] == [
        (0, 1, "sha256:block-0"),
        (1, 2, "sha256:block-1"),
    ]
    assert state.last is not None
    assert state.last.package == "sha256:package-1"
    assert msgspec.to_builtins(state.placed[-1]) == {
        "source": "docs",
        "recordId": "z",
        "digest": fact("z", 3).digest,
        "step": 1,
        "pass": 2,
        "tokens": 9,
        "revision": 3,
    }
