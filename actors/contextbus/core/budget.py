"""Budget arithmetic: how many tokens a step may add, and how they are shared (D.B).

All results are integers in tokens; products with a ratio or a share are IEEE doubles, floored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import (
    MAX_SAFE_INTEGER,
    SOURCE_KINDS,
    ContextBudget,
    Model,
    RefreshOptions,
    Shares,
    SourceKind,
)

DEFAULT_CONTEXT_BUDGET: Final = ContextBudget()
DEFAULT_CONTEXT_REFRESH: Final = RefreshOptions()

_BUDGET_FIELDS: Final = ("ratio", "max_tokens", "working_memory_tokens", "shares")


def merge_budget(
    overrides: ContextBudget | Mapping[str, object] | None = None, base: ContextBudget = DEFAULT_CONTEXT_BUDGET
) -> ContextBudget:
    """Merge a partial budget over a complete one (D.B.7, D.B.11).

    Args:
        overrides: Any of ``ratio``, ``max_tokens``, ``working_memory_tokens`` and ``shares``; ``shares`` may be
            partial too.
        base: What holds where ``overrides`` says nothing.

    Raises:
        InvalidTypeError: An unknown name, or a value outside its range (D.B.19, D.W.6).
    """
    if isinstance(overrides, ContextBudget):
        budget = overrides
    elif overrides is None:
        budget = base
    else:
        _refuse_unknown("budget", overrides, _BUDGET_FIELDS)
        given: dict[str, Any] = dict(overrides)
        if isinstance(given.get("shares"), Mapping):
            _refuse_unknown("budget.shares", given["shares"], SOURCE_KINDS)
            given["shares"] = msgspec.structs.replace(base.shares, **given["shares"])
        budget = msgspec.structs.replace(base, **given)
    validate_budget(budget)
    return budget


def _refuse_unknown(name: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise InvalidTypeError(f"{name} has no field {key!r}; it has {', '.join(known)}")


def merge_refresh(overrides: RefreshOptions | Mapping[str, object] | None = None) -> RefreshOptions:
    """Merge partial refresh options over the default ones (D.G.2, D.U.2).

    Args:
        overrides: Any of ``min_steps``, ``max_passes`` and ``candidates_per_source``.

    Raises:
        InvalidTypeError: An unknown name, or a value that is no count (D.W.6).
    """
    if overrides is None:
        return DEFAULT_CONTEXT_REFRESH
    if isinstance(overrides, RefreshOptions):
        options = overrides
    else:
        if not hasattr(overrides, "keys"):
            raise InvalidTypeError(f"refresh must be RefreshOptions or a mapping, not {type(overrides).__name__}")
        _refuse_unknown("refresh", overrides, RefreshOptions.__struct_fields__)
        given: dict[str, Any] = dict(overrides)
        options = msgspec.structs.replace(DEFAULT_CONTEXT_REFRESH, **given)
    for name in RefreshOptions.__struct_fields__:
        require_count(f"refresh.{name}", getattr(options, name))
    return options


def validate_budget(budget: ContextBudget) -> None:
    """Refuse a budget that is not one (D.B.11, D.B.19).

    Raises:
        InvalidTypeError: The ratio is not in (0, 1], a token count is not a non-negative safe integer, or the shares
            are not finite, negative, or 0 in all.
    """
    if not _is_finite(budget.ratio) or not 0 < budget.ratio <= 1:
        raise InvalidTypeError("budget.ratio must be a number above 0 and at most 1")
    for name, tokens in (("max_tokens", budget.max_tokens), ("working_memory_tokens", budget.working_memory_tokens)):
        require_count(f"budget.{name}", tokens)
    shares: object = budget.shares
    if type(shares) is not Shares:
        raise InvalidTypeError(f"budget.shares must hold the weights of {', '.join(SOURCE_KINDS)}")
    for kind, weight in _weights(shares):
        if not _is_finite(weight) or weight < 0:
            raise InvalidTypeError(f"budget.shares.{kind} must be a finite number of at least 0")
    total = sum(weight for _, weight in _weights(shares))
    if not 0 < total < math.inf:
        raise InvalidTypeError("budget.shares must add up to a finite number above 0: give one kind a weight")


def require_count(name: str, value: object) -> None:
    """Refuse anything but a non-negative safe integer (D.W.6).

    Raises:
        InvalidTypeError: ``value`` is no int, a bool, negative, or above 2^53 - 1.
    """
    if type(value) is not int or not 0 <= value <= MAX_SAFE_INTEGER:
        raise InvalidTypeError(f"{name} must be an integer from 0 to 2^53 - 1")


def _is_finite(value: object) -> bool:
    return type(value) in {int, float} and math.isfinite(cast("float", value))


def _weights(shares: Shares) -> tuple[tuple[SourceKind, float], ...]:
    return (
        ("memory", shares.memory),
        ("rag", shares.rag),
        ("transcript", shares.transcript),
        ("skills", shares.skills),
    )


def usable_input_tokens(model: Model) -> int:
    """The context window less the output reservation, in tokens, at least 0 (D.B.2, D.B.21).

    Raises:
        InvalidTypeError: One of the two is missing or no count.
    """
    require_count("model.context_window", model.context_window)
    require_count("model.max_output_tokens", model.max_output_tokens)
    return max(0, model.context_window - model.max_output_tokens)


def available_tokens(input_tokens: int, used_tokens: int) -> int:
    """What the request leaves, in tokens: the bound of mandatory content (D.B.13, D.B.16)."""
    return max(0, input_tokens - used_tokens)


def context_tokens(budget: ContextBudget, available: int) -> int:
    """What a step may add, in tokens: a ratio of what is available, at most ``max_tokens`` (D.B.4, D.B.6)."""
    return min(math.floor(budget.ratio * available), budget.max_tokens)


def split_by_kind(shares: Shares, tokens: int) -> dict[SourceKind, int]:
    """The allowance of each kind, in tokens; together never more than ``tokens`` but for rounding (D.B.9, D.B.11)."""
    weights = _weights(shares)
    total = sum(weight for _, weight in weights)
    return {kind: math.floor(weight / total * tokens) for kind, weight in weights}
