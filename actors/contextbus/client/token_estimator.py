"""An estimator that its holders share: it learns from reported usage, or wraps a tokenizer (D.M.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import msgspec

from contextbus.client.given import GivenMessage, read_given
from contextbus.core.calibration import calibrate_factor, is_usage
from contextbus.core.estimate import Estimator, Tokenizer, make_estimator
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import EstimatorSpec

DEFAULT_HEURISTIC: Final = "classes"
DEFAULT_TOKENIZER: Final = "tokenizer"


class TokenEstimator:
    """Counts for every compiler that it is given to; made by ``create_token_estimator``.

    Attributes:
        spec: the counter with its present factor, as manifests name it (D.D.11).
    """

    def __init__(self, spec: EstimatorSpec, tokenizer: Tokenizer | None = None) -> None:
        self.spec = spec
        self._tokenizers = {} if tokenizer is None else {spec.name: tokenizer}
        self.for_step()

    def for_step(self) -> Estimator:
        """The counter of one step, with the factor of now."""
        return make_estimator(self.spec, self._tokenizers)

    def calibrate(self, actual: float, estimated: float) -> None:
        """Learn from a call: later counts follow what its provider reported (D.M.5).

        Args:
            actual: the input tokens that the provider reported, those from its cache included.
            estimated: what was estimated at the call, in tokens.

        Numbers that are not finite and above zero are ignored.
        """
        if is_usage(actual) and is_usage(estimated):
            factor = calibrate_factor(self.spec.factor, actual, estimated)
            self.spec = msgspec.structs.replace(self.spec, factor=factor, calibrated=True)

    def estimate(self, messages: Iterable[GivenMessage]) -> int:
        """Tokens of messages, rounded up once for all (D.M.4).

        Raises:
            InvalidTypeError: a message cannot be read.
        """
        return self.for_step().estimate(read_given(messages))

    def count(self, text: str) -> int:
        """Tokens of one text, rounded up by itself (D.M.13)."""
        return self.for_step().count(text)


def create_token_estimator(tokenizer: Tokenizer | None = None, name: str | None = None) -> TokenEstimator:
    """Make an estimator to share among compilers (D.M.3, D.M.6).

    Args:
        tokenizer: counts the tokens of a text; where it raises or returns no count, the heuristic ``classes`` does.
        name: what manifests call the tokenizer; without one the heuristic to use, ``classes`` or ``characters``.

    Raises:
        InvalidRequestError: no heuristic has that name.
        InvalidTypeError: the tokenizer cannot be called, or the name is no text.
    """
    if tokenizer is not None and not callable(tokenizer):
        raise InvalidTypeError("a tokenizer is a function (text) -> number of tokens")
    given = cast("object", name)
    if given is not None and (not isinstance(given, str) or not given):
        raise InvalidTypeError("the name of an estimator is a text that is not empty")
    if tokenizer is None:
        return TokenEstimator(EstimatorSpec("heuristic", name or DEFAULT_HEURISTIC))
    return TokenEstimator(EstimatorSpec("tokenizer", name or DEFAULT_TOKENIZER), tokenizer)
