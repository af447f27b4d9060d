"""Models that bind their thinking to the prefix: which they are, and that their tails stay (D.F.8-D.F.12, D.F.20)."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.logs import OPTIONS, append, commit_to, compiled

from contextbus.core.bound_models import BOUND_MODELS, binds_thinking
from contextbus.core.estimate import make_estimator
from contextbus.core.run_state import RunState
from contextbus.core.step import plan_step
from contextbus_protocol.events import BlockFact, CallFailed, CallSucceeded, HistoryReplaced, StepCompiled
from contextbus_protocol.package import PlacementSummary
from contextbus_protocol.values import EstimatorSpec, Model, ModelPrefix, StepOptions

OPUS = Model("anthropic", "claude-opus-5-5-20270101", 200_000, 8_000)
ESTIMATOR = make_estimator(EstimatorSpec(name="characters"))
BOUND = msgspec.structs.replace(OPTIONS, model=OPUS)


def tailed(state: RunState, step: int, *records: str, kept: bool = True, options: StepOptions = BOUND) -> StepCompiled:
    """A step that ended with a tail."""
    event = compiled(state, step, *records, options=options)
    tail = BlockFact("ephemeral-tail", f"sha256:tail-{step}", 90)
    placement = PlacementSummary(append=bool(records), tail=True, tail_kept=kept)
    return msgspec.structs.replace(event, blocks=(*event.blocks, tail), placement=placement)


@pytest.mark.rule("D.F.8", "D.F.12")
@pytest.mark.parametrize(
    ("provider", "model", "bound"),
    [
        ("anthropic", "claude-fable-5-1", True),
        ("anthropic", "claude-opus-5-5", True),
        ("anthropic", "claude-opus-5-5-20270101", True),
        ("anthropic", "claude-sonnet-5-5", True),
        ("anthropic", "claude-haiku-5-5-latest", True),
        ("anthropic", "claude-fable-5", False),
        ("anthropic", "claude-opus-5-4", False),
        ("anthropic", "my-claude-opus-5-5", False),
        ("openai", "claude-opus-5-5", False),
        ("Anthropic", "claude-opus-5-5", False),
    ],
)
def test_four_models_of_one_provider_bind_their_thinking(provider: str, model: str, *, bound: bool) -> None:
    assert binds_thinking(Model(provider, model, 9, 1)) is bound
    assert len(BOUND_MODELS) == 4


@pytest.mark.rule("D.F.12")
def test_a_user_adds_rows_to_the_table() -> None:
    further = (ModelPrefix("bedrock", "claude-opus"),)
    assert binds_thinking(Model("bedrock", "claude-opus-5-5", 9, 1), further)
    assert binds_thinking(OPUS, further)
    assert not binds_thinking(Model("bedrock", "claude-haiku", 9, 1), further)


@pytest.mark.rule("D.F.9", "D.F.13", "D.F.20")
def test_a_kept_tail_joins_behind_its_append_block_once_the_call_succeeded() -> None:
    state = commit_to(RunState("r"), append(RunState("r"), "a"))
    state = commit_to(state, tailed(state, 0, "x"))
    assert len(state.blocks) == 0
    placed = commit_to(state, CallSucceeded(step=0))
    kinds = [(b.fact.placement, b.position, b.step) for b in placed.blocks]
    assert kinds == [("append", 1, 0), ("ephemeral-tail", 1, 0)]
    assert placed.blocks.eighteenths == 180 + 90
    only = commit_to(RunState("r"), append(RunState("r"), "a"))
    only = commit_to(commit_to(only, tailed(only, 0)), CallSucceeded(step=0))
    assert [b.fact.placement for b in only.blocks] == ["ephemeral-tail"]
    assert only.placed == ()


@pytest.mark.rule("D.F.13", "D.F.9")
@pytest.mark.parametrize("status", ["failed", "cancelled", "overflow", None])
def test_the_tail_of_a_step_without_success_is_not_kept(status: str | None) -> None:
    state = commit_to(RunState("r"), append(RunState("r"), "a"))
    state = commit_to(state, tailed(state, 0, "x"))
    if status is not None:
        state = commit_to(state, msgspec.convert({"type": f"call-{'failed'}", "step": 0, "status": status}, CallFailed))
    state = commit_to(state, tailed(state, 1))
    state = commit_to(state, CallSucceeded(step=1))
    assert [(b.step, b.fact.placement) for b in state.blocks] == [(1, "ephemeral-tail")]


@pytest.mark.rule("D.F.5", "D.R.5")
def test_elsewhere_no_tail_stays() -> None:
    state = commit_to(RunState("r"), append(RunState("r"), "a"))
    state = commit_to(state, tailed(state, 0, "x", kept=False, options=OPTIONS))
    state = commit_to(state, CallSucceeded(step=0))
    assert [b.fact.placement for b in state.blocks] == ["append"]


@pytest.mark.rule("D.F.14", "D.F.20")
def test_a_kept_tail_leaves_with_the_messages_before_it() -> None:
    state = commit_to(RunState("r"), append(RunState("r"), "a", "b"))
    state = commit_to(commit_to(state, tailed(state, 0, "x")), CallSucceeded(step=0))
    assert len(commit_to(state, HistoryReplaced(keep=1)).blocks) == 0
    assert [o.entry.record_id for o in commit_to(state, HistoryReplaced(keep=1)).owed] == ["x"]


def plan_used(state: RunState, options: StepOptions = BOUND) -> tuple[int, bool]:
    made = plan_step(
        state, step=9, options=options, host_request=False, user_text="q", snapshot=None, estimator=ESTIMATOR
    )
    return made.used_tokens, made.tail_kept


@pytest.mark.rule("D.B.3", "D.F.9", "D.F.10")
def test_kept_tails_count_as_used_and_the_flag_rests_on_the_model_alone() -> None:
    state = commit_to(RunState("r"), append(RunState("r"), "a"))
    before, kept = plan_used(state)
    assert kept
    assert plan_used(state, OPTIONS) == (before, False)
    assert plan_used(state, msgspec.structs.replace(OPTIONS, bound_models=(ModelPrefix("openai", "gpt"),)))[1]
    state = commit_to(commit_to(state, tailed(state, 0)), CallSucceeded(step=0))
    assert plan_used(state)[0] == before + 5  # 90 eighteenths
    old = plan_step(
        state, step=1, options=BOUND, host_request=False, user_text="", snapshot=None, estimator=ESTIMATOR, policy=1
    )
    assert not old.tail_kept  # policy 1 kept none
