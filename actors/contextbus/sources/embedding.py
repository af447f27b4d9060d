"""Embedders of a user's own: asked for vectors, charged for, and checked before anybody uses what they give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

from contextbus.sources.accounting import Charge, Vectors, check_model, estimate_tokens
from contextbus.sources.vectors import unit_vector
from contextbus.user_functions import is_async, takes_charge
from contextbus_protocol.errors import InvalidTypeError, RangeError

BATCH: Final = 64

Embed = Callable[[Sequence[str]], Awaitable[Vectors]]


class MalformedVectorsError(InvalidTypeError):
    """An embedder gave what is not one vector of finite numbers for each text."""


class Embedder:
    """An async function from texts to vectors.

    Args:
        embed: ``async (texts) -> vectors``; one that has a keyword ``charge`` gets it, where there is one (D.K.10).
        name: Names its vectors and its usage; left out, the ``model`` of an accounted embedder.
        batch: How many texts it takes at once.

    Raises:
        InvalidTypeError: ``embed`` is no async function, or there is no usable name.
        RangeError: ``batch`` is below 1.
    """

    def __init__(self, embed: Embed, *, name: str | None = None, batch: int = BATCH) -> None:
        if not is_async(embed):
            raise InvalidTypeError("embed must be an async function (texts) -> vectors")
        named: object = getattr(embed, "model", None) if name is None else name
        if named is None:
            raise InvalidTypeError('name the embedder: embedder="the-model"; its vectors are kept under that name')
        if batch < 1:
            raise RangeError("batch must be at least 1")
        self.name = check_model(named)
        self.batch = batch
        self._embed = cast("Callable[..., Awaitable[Vectors]]", embed)
        self._takes_charge = takes_charge(embed, 1)

    async def embed(self, texts: Sequence[str], charge: Charge | None = None) -> tuple[tuple[float, ...], ...]:
        """Vectors of length 1, one for each text.

        What an embedder does not say of its usage is held as an estimate (D.L.3, D.L.6).

        Raises:
            MalformedVectorsError: it gave something else.
        """
        if charge is None:
            return _check_vectors(await self._embed(texts), len(texts))
        if self._takes_charge:
            found = await self._charged(texts, charge)
        else:
            # Held first: a call that fails may have been paid for.
            charge.hold(model=self.name, tokens=estimate_tokens(texts))
            found = await self._embed(texts)
        return _check_vectors(found, len(texts))

    async def _charged(self, texts: Sequence[str], charge: Charge) -> Vectors:
        before = charge.entries
        try:
            return await self._embed(texts, charge=charge)
        finally:
            if charge.entries == before:
                charge.hold(model=self.name, tokens=estimate_tokens(texts))


def _check_vectors(found: object, count: int) -> tuple[tuple[float, ...], ...]:
    try:
        vectors = tuple(unit_vector(vector) for vector in cast("Vectors", found))
    except TypeError:
        vectors = ()
    checked = tuple(vector for vector in vectors if vector is not None)
    if len(vectors) != count or len(checked) != count:
        raise MalformedVectorsError("an embedder must give one vector of finite numbers for each text")
    return checked
