"""How an estimator learns from reported usage (D.M.3, D.M.5)."""

from __future__ import annotations

import math
from fractions import Fraction

from contextbus.core.estimate import LARGEST_FACTOR, SMALLEST_FACTOR
from contextbus_protocol.errors import RangeError


def calibrate_factor(factor: int, actual: float, estimated: float) -> int:
    """The factor after a call: seven tenths of it stay, three follow what was reported (D.M.5).

    Exact arithmetic: ``factor * (0.7 + 0.3 * actual / estimated)``, rounded half to even, then kept within
    5000..20000.

    Args:
        factor: The factor that the estimate was made with, in ten-thousandths.
        actual: What the provider reported for the request, in tokens.
        estimated: What was estimated for it at the call, in tokens.

    Returns:
        The new factor in ten-thousandths; the old one unless both numbers are finite and above zero.

    Raises:
        RangeError: ``factor`` is not within 5000..20000.
    """
    if type(factor) is not int or not SMALLEST_FACTOR <= factor <= LARGEST_FACTOR:
        raise RangeError(f"factor is an integer within {SMALLEST_FACTOR}..{LARGEST_FACTOR} ten-thousandths")
    if not is_usage(actual) or not is_usage(estimated):
        return factor
    learned = factor * (Fraction(7, 10) + Fraction(3, 10) * Fraction(actual) / Fraction(estimated))
    return min(LARGEST_FACTOR, max(SMALLEST_FACTOR, round(learned)))


def is_usage(tokens: object) -> bool:
    """Whether a number of tokens says something: finite and above zero (D.M.5)."""
    if type(tokens) is int:
        return tokens > 0
    return type(tokens) is float and math.isfinite(tokens) and tokens > 0
