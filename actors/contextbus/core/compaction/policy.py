"""What a compaction keeps, and what a number has to be (C.X.1, C.A.3)."""

from __future__ import annotations

import math

from contextbus_protocol.errors import RangeError
from contextbus_protocol.values import MAX_SAFE_INTEGER, RetentionPolicy

DEFAULT_KEEP_LAST_MESSAGES = 4
LARGEST_SUMMARY_TOKENS = 2048
"""The most that a summary may have, in tokens (C.F.3)."""


def check_policy(policy: RetentionPolicy) -> RetentionPolicy:
    """The policy, its numbers checked.

    Raises:
        RangeError: a number is no positive safe integer, or the ratio is not finite and within (0, 1] (C.A.3).
    """
    for name in ("keep_last_messages", "keep_last_turns", "keep_recent_tokens"):
        value: object = getattr(policy, name)
        if value is not None:
            check_positive(name, value)
    if policy.keep_ratio is not None:
        check_ratio("keep_ratio", policy.keep_ratio)
    return policy


def last_messages(policy: RetentionPolicy) -> int | None:
    """How many last messages stay; the default where the policy says nothing else (C.X.1)."""
    if policy.keep_last_turns is None and policy.keep_recent_tokens is None and policy.keep_ratio is None:
        return policy.keep_last_messages or DEFAULT_KEEP_LAST_MESSAGES
    return policy.keep_last_messages


def check_positive(name: str, value: object) -> int:
    """The value, a positive safe integer.

    Raises:
        RangeError: it is none; the message names the parameter (C.A.3).
    """
    if type(value) is not int or not 0 < value <= MAX_SAFE_INTEGER:
        raise RangeError(f"{name} must be an integer from 1 to 2^53 - 1")
    return value


def check_count(name: str, value: object) -> int:
    """The value, a safe integer from 0.

    Raises:
        RangeError: it is none; the message names the counter (C.C.5).
    """
    if type(value) is not int or not 0 <= value <= MAX_SAFE_INTEGER:
        raise RangeError(f"{name} must give an integer from 0 to 2^53 - 1")
    return value


def check_ratio(name: str, value: object) -> float:
    """The value, a finite number above 0 and at most 1.

    Raises:
        RangeError: it is none; the message names the parameter.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value <= 1:
        raise RangeError(f"{name} must be above 0 and at most 1")
    return value


def recent_tokens(policy: RetentionPolicy, room_tokens: int | None) -> int | None:
    """How many tokens of the latest messages stay; None where the policy does not say so (C.X.1).

    Of two such limits the larger one gives the smaller index, so it decides.

    Args:
        policy: what is kept.
        room_tokens: the policy's share of the window less envelope and output reserve; needed for ``keep_ratio``.

    Raises:
        RangeError: there is a ratio and no room.
    """
    limits = [] if policy.keep_recent_tokens is None else [policy.keep_recent_tokens]
    if policy.keep_ratio is not None:
        if room_tokens is None:
            raise RangeError("room_tokens is needed for keep_ratio")
        limits.append(room_tokens - min(LARGEST_SUMMARY_TOKENS, room_tokens // 2))
    return max(limits, default=None)
