"""Budget arithmetic (D.B, D.U.1, D.U.2)."""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.budget import (
    DEFAULT_CONTEXT_BUDGET,
    DEFAULT_CONTEXT_REFRESH,
    available_tokens,
    context_tokens,
    merge_budget,
    split_by_kind,
    usable_input_tokens,
    validate_budget,
)
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import ContextBudget, Model, RefreshOptions, Shares

WEIGHT = st.floats(min_value=0, max_value=1e9, allow_nan=False)


@pytest.mark.rule("D.U.1", "D.B.5", "D.B.7")
def test_default_budget() -> None:
    assert (
        ContextBudget(
            ratio=0.25,
            max_tokens=8192,
            working_memory_tokens=2048,
            shares=Shares(memory=0.35, rag=0.40, transcript=0.15, skills=0.10),
        )
        == DEFAULT_CONTEXT_BUDGET
    )


@pytest.mark.rule("D.U.2")
def test_default_refresh() -> None:
    assert RefreshOptions(min_steps=4, max_passes=8, candidates_per_source=16) == DEFAULT_CONTEXT_REFRESH


@pytest.mark.rule("D.B.2", "D.B.21")
@pytest.mark.parametrize(("window", "output", "tokens"), [(200_000, 8_000, 192_000), (8, 8, 0), (8, 9, 0)])
def test_input_tokens_are_the_window_less_the_output_reservation(window: int, output: int, tokens: int) -> None:
    assert usable_input_tokens(Model("anthropic", "claude-opus-5-5", window, output)) == tokens


@pytest.mark.rule("D.B.21")
@pytest.mark.parametrize("missing", [None, "8000", -1, True])
def test_missing_output_reservation_is_a_type_error_that_names_it(missing: object) -> None:
    model = Model("openai", "gpt-5", 128_000, cast("int", missing))
    with pytest.raises(TypeError, match="max_output_tokens"):
        usable_input_tokens(model)


@pytest.mark.rule("D.B.4", "D.B.6", "D.B.16")
@pytest.mark.parametrize(
    ("input_tokens", "used", "available", "context"),
    [
        (192_000, 9, 191_991, 8192),
        (120_000, 9, 119_991, 8192),
        (32_768, 0, 32_768, 8192),
        (32_767, 0, 32_767, 8191),
        (103, 0, 103, 25),
        (3, 0, 3, 0),
        (100, 100, 0, 0),
        (100, 101, 0, 0),
        (0, 0, 0, 0),
    ],
)
def test_context_tokens_are_a_floored_ratio_of_the_room_up_to_the_maximum(
    input_tokens: int, used: int, available: int, context: int
) -> None:
    assert available_tokens(input_tokens, used) == available
    assert context_tokens(DEFAULT_CONTEXT_BUDGET, available) == context


@pytest.mark.rule("D.B.7", "D.B.11")
def test_partial_budget_is_merged_over_the_defaults() -> None:
    merged = merge_budget({"max_tokens": 100, "shares": {"rag": 3.0}})
    assert merged == ContextBudget(max_tokens=100, shares=Shares(rag=3.0))
    assert merge_budget() == DEFAULT_CONTEXT_BUDGET
    assert merge_budget({"ratio": 1}, base=merged) == ContextBudget(ratio=1, max_tokens=100, shares=Shares(rag=3.0))
    assert merge_budget(merged) is merged
    assert merge_budget({"shares": Shares(0, 0, 0, 1)}).shares == Shares(0, 0, 0, 1)


@pytest.mark.rule("D.B.19", "D.W.6", "D.T.4")
@pytest.mark.parametrize("options", [{"tokens": 1}, {"shares": {"web": 1.0}}, {"maxTokens": 1}])
def test_unknown_budget_field_is_a_type_error_that_names_the_known_ones(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTypeError, match=r"it has .*, "):
        merge_budget(options)


@pytest.mark.rule("D.B.19", "D.B.11", "D.T.4")
@pytest.mark.parametrize(
    "options",
    [
        {"ratio": 0},
        {"ratio": -0.1},
        {"ratio": 1.0000001},
        {"ratio": math.nan},
        {"ratio": math.inf},
        {"ratio": True},
        {"ratio": "0.5"},
        {"max_tokens": -1},
        {"max_tokens": 2**53},
        {"max_tokens": 1.0},
        {"max_tokens": False},
        {"working_memory_tokens": -1},
        {"working_memory_tokens": None},
        {"shares": None},
        {"shares": {"rag": -0.1}},
        {"shares": {"rag": math.nan}},
        {"shares": {"rag": math.inf}},
        {"shares": {"rag": True}},
        {"shares": {"rag": "1"}},
        {"shares": {"memory": 0, "rag": 0, "transcript": 0, "skills": 0}},
        {"shares": {"memory": 1.7e308, "rag": 1.7e308}},
    ],
)
def test_budget_outside_its_range_is_a_type_error(options: dict[str, Any]) -> None:
    (field,) = options
    with pytest.raises(TypeError, match=rf"^budget\.{field}\b"):
        merge_budget(options)


@pytest.mark.rule("D.B.19")
@pytest.mark.parametrize(
    "budget", [ContextBudget(ratio=1), ContextBudget(max_tokens=0), ContextBudget(max_tokens=2**53 - 1)]
)
def test_budget_at_the_edge_of_its_range_is_taken(budget: ContextBudget) -> None:
    validate_budget(budget)


@pytest.mark.rule("D.B.9", "D.B.11", "D.V1.8")
def test_shares_are_weights_normalised_by_their_sum() -> None:
    assert split_by_kind(Shares(), 8009) == {"memory": 2803, "rag": 3203, "transcript": 1201, "skills": 800}
    assert split_by_kind(Shares(2, 1, 1, 0), 100) == {"memory": 50, "rag": 25, "transcript": 25, "skills": 0}
    assert split_by_kind(Shares(0, 0, 0, 5e-324), 7)["skills"] == 7


@pytest.mark.rule("D.B.11")
@given(st.tuples(WEIGHT, WEIGHT, WEIGHT, WEIGHT).filter(lambda weights: sum(weights) > 0), st.integers(0, 2**31))
def test_allowances_together_stay_within_what_is_shared(weights: tuple[float, ...], tokens: int) -> None:
    allowances = split_by_kind(Shares(*weights), tokens)
    assert sum(allowances.values()) <= tokens
    assert all(allowance >= 0 for allowance in allowances.values())


@pytest.mark.rule("D.B.7")
def test_budget_on_the_wire_has_camel_case_names() -> None:
    encoded = msgspec.json.encode(ContextBudget(max_tokens=1))
    assert msgspec.json.decode(encoded, type=ContextBudget) == ContextBudget(max_tokens=1)
    assert b"maxTokens" in encoded
