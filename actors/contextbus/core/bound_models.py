"""Models that bind their thinking to the exact prefix of the request (D.F.8, D.F.12)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from contextbus_protocol.values import Model, ModelPrefix

BOUND_MODELS: Final = (
    ModelPrefix("anthropic", "claude-fable-5-1"),
    ModelPrefix("anthropic", "claude-opus-5-5"),
    ModelPrefix("anthropic", "claude-sonnet-5-5"),
    ModelPrefix("anthropic", "claude-haiku-5-5"),
)
"""A model is one of these when its provider is equal and its id begins so; options add further rows (D.F.12)."""


def binds_thinking(model: Model, further: Iterable[ModelPrefix] = ()) -> bool:
    """Whether a model's thinking holds only behind the very bytes it was written behind.

    Args:
        model: the model of the call.
        further: rows that the user adds to ``BOUND_MODELS``.
    """
    return any(
        model.provider == row.provider and model.model_id.startswith(row.model_id) for row in (*BOUND_MODELS, *further)
    )
