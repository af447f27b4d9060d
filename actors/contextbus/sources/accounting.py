"""What answering a query costs: recorded beside the call, and told with the answer (D.L.6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar, cast

from contextbus.runtime.logs import get_logger
from contextbus.sources.chunking import CHARACTERS_PER_TOKEN
from contextbus.user_functions import is_async
from contextbus_protocol.errors import InvalidTypeError, LimitError, RangeError
from contextbus_protocol.values import LONGEST_MODEL, MAX_SAFE_INTEGER, SourceUsage

R = TypeVar("R")

MAX_MODELS: Final = 16

Vectors = Sequence[Sequence[float]]

_log = get_logger(__name__)


class Hold:
    """An amount that is held for one call until its real usage is known; ``Charge.hold`` makes one."""

    __slots__ = ("_model", "_reported", "_tokens")

    def __init__(self, model: str, tokens: int) -> None:
        self._model = model
        self._tokens = tokens
        self._reported = False

    def settle(self, tokens: int) -> None:
        """Put what the provider reported, in tokens, in the place of what is held (D.L.3).

        Raises:
            InvalidTypeError: it is no integer.
            RangeError: it is negative, or above 2^53 - 1.
        """
        self._tokens = _check_tokens(tokens)
        self._reported = True

    @property
    def usage(self) -> SourceUsage:
        """The amount as it stands."""
        return SourceUsage(self._model, self._tokens, self._reported)


class Charge:
    """Records what one query spends; handed on to whatever spends it, and never across a bus (D.L.2).

    One that nobody uses costs nothing (D.L.4).  It may be used from any thread.  What is recorded once the query is
    answered is logged, and told to nobody.
    """

    __slots__ = ("_holds", "_is_closed")

    def __init__(self) -> None:
        self._holds: list[Hold] = []
        self._is_closed = False

    def __call__(self, *, model: str, tokens: int, reported: bool = False) -> None:
        """Record an amount once it is spent.

        Args:
            model: What it was spent on.
            tokens: How much, in tokens.
            reported: Whether the provider said so; an estimate stays held as unaccounted (D.L.3).

        Raises:
            InvalidTypeError: the model is no printable text of 1 to 128 characters, or ``tokens`` is no integer.
            RangeError: ``tokens`` is negative, or above 2^53 - 1.
            LimitError: one query uses more than 16 models.
        """
        held = self.hold(model=model, tokens=tokens)
        if reported:
            held.settle(tokens)

    def hold(self, *, model: str, tokens: int) -> Hold:
        """Hold an estimate, in tokens, before it is spent; what is never settled stays unaccounted (D.L.3).

        Raises:
            InvalidTypeError: the model is no printable text of 1 to 128 characters, or ``tokens`` is no integer.
            RangeError: ``tokens`` is negative, or above 2^53 - 1.
            LimitError: one query uses more than 16 models.
        """
        held = Hold(check_model(model), _check_tokens(tokens))
        known = {other.usage.model for other in self._holds}
        if model not in known and len(known) >= MAX_MODELS:
            raise LimitError(f"one query may charge {MAX_MODELS} different models; give them a common name")
        if self._is_closed:
            # Whoever spends is not stopped by it: a thread may go on after its query ran out of time.
            _log.warning("charged_too_late", model=model, tokens=tokens)
        else:
            self._holds.append(held)
        return held

    def close(self) -> None:
        """Take no more amounts: the query is answered."""
        self._is_closed = True

    @property
    def entries(self) -> int:
        """How many amounts were recorded."""
        return len(self._holds)

    def usage(self) -> tuple[SourceUsage, ...]:
        """What was recorded until now: one amount for each model, reported and held apart, ordered by model."""
        sums: dict[tuple[str, bool], int] = {}
        for held in tuple(self._holds):
            amount = held.usage
            key = (amount.model, amount.reported)
            sums[key] = min(sums.get(key, 0) + amount.tokens, MAX_SAFE_INTEGER)
        return tuple(SourceUsage(model, sums[model, reported], reported) for model, reported in sorted(sums))


class AccountedEmbedder(Generic[R]):
    """An embedder that settles what it charges with the usage that its provider reports (D.L.3).

    ``model`` names its vectors and its usage.
    """

    def __init__(
        self,
        embed: Callable[[Sequence[str]], Awaitable[R]],
        *,
        model: str,
        usage_of: Callable[[R], int],
        vectors_of: Callable[[R], Vectors] | None = None,
    ) -> None:
        if not is_async(embed):
            raise InvalidTypeError("embed must be an async function (texts) -> vectors")
        functions: tuple[object, ...] = (usage_of,) if vectors_of is None else (usage_of, vectors_of)
        if not all(map(callable, functions)):
            raise InvalidTypeError("usage_of and vectors_of must be functions of what embed returns")
        self.model = check_model(model)
        self._embed = embed
        self._usage_of = usage_of
        self._vectors_of = vectors_of

    async def __call__(self, texts: Sequence[str], *, charge: Charge | None = None) -> Vectors:
        """Embed texts, one vector each; with a charge the estimate is held first and settled afterwards."""
        held = None if charge is None else charge.hold(model=self.model, tokens=estimate_tokens(texts))
        response = await self._embed(texts)
        if held is not None:
            try:
                held.settle(self._usage_of(response))
            except Exception as exc:  # the vectors are paid for, whatever became of the bill
                _log.warning("embedder_usage_unknown", model=self.model, error=type(exc).__name__)
        return cast("Vectors", response) if self._vectors_of is None else self._vectors_of(response)


def accounted_embedder(
    embed: Callable[[Sequence[str]], Awaitable[R]],
    *,
    model: str,
    usage_of: Callable[[R], int],
    vectors_of: Callable[[R], Vectors] | None = None,
) -> AccountedEmbedder[R]:
    """Make an embedder whose usage is settled (D.L.3).

    Args:
        embed: ``async (texts) -> response``.
        model: What names its vectors and its usage.
        usage_of: Reads the tokens that were used from the response; if it fails, the estimate stays held.
        vectors_of: Reads the vectors from the response; without it the response is the vectors.

    Raises:
        InvalidTypeError: ``embed`` is no async function, another argument no function, or the model no usable name.
    """
    return AccountedEmbedder(embed, model=model, usage_of=usage_of, vectors_of=vectors_of)


def estimate_tokens(texts: Iterable[str]) -> int:
    """What texts may cost, in tokens of four characters, each text rounded up by itself."""
    return sum(-(-len(text) // CHARACTERS_PER_TOKEN) for text in texts)


def unaccounted_tokens(usage: Iterable[SourceUsage]) -> int | None:
    """How much is held as unaccounted, in tokens; None if all of it was reported (D.L.3).

    0 means that something was spent and nobody knows how much.
    """
    held = [amount.tokens for amount in usage if not amount.reported]
    return sum(held) if held else None


def check_model(model: object) -> str:
    """Give back a usable name of a model.

    Raises:
        InvalidTypeError: it is no printable text of 1 to 128 characters.
    """
    if not isinstance(model, str) or not 0 < len(model) <= LONGEST_MODEL or not model.isprintable():
        raise InvalidTypeError(f"a model's name must be a printable text of 1 to {LONGEST_MODEL} characters")
    return model


def _check_tokens(tokens: object) -> int:
    if type(tokens) is not int:
        raise InvalidTypeError("tokens must be an integer")
    if not 0 <= tokens <= MAX_SAFE_INTEGER:
        raise RangeError("tokens must be from 0 to 2^53 - 1")
    return tokens
