"""x."""

from __future__ import annotations

from collections.abc import Iterable

from contextbus.core.blocks import user_block
from contextbus.core.bound_models import binds_thinking
from contextbus.core.targets.anthropic import takes_prefill
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.values import Model, ModelPrefix


def prefill_message(text: str) -> ChatMessage:
    """x."""
    return user_block(text.rstrip())


def prefill_degrades(model: Model | None, thinking: bool, bound_models: Iterable[ModelPrefix] = ()) -> bool:
    """x."""
    return (
        model is None
        or thinking
        or model.provider != "anthropic"
        or not takes_prefill(model.model_id)
        or binds_thinking(model, bound_models)
    )
