"""From a request to one provider's payload.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from contextbus.core.targets.anthropic import AnthropicTarget
from contextbus.core.targets.gemini import GeminiTarget
from contextbus.core.targets.openai import OpenAITarget
from contextbus.core.targets.responses import ResponsesTarget
from contextbus.core.wire import Target
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Model

TARGETS: Final[dict[str, Callable[[str | None], Target]]] = {
    "anthropic": AnthropicTarget,
    "gemini": GeminiTarget,
    "openai": OpenAITarget,
    "openai-responses": ResponsesTarget,
}
_PROVIDERS: Final = {"google": "gemini"}
"""Providers whose target has another name than they."""


def find_target(name: str | None, model: Model | str | None = None) -> Target:
    """The target of a name, for a model; without a name the model's provider decides (P.A.7).

    Raises:
        InvalidTypeError: there is no such target; the message lists those there are.
    """
    wanted, model_id = name, model if isinstance(model, str) else None
    if isinstance(model, Model):
        model_id = model.model_id
        if wanted is None:
            wanted = _PROVIDERS.get(model.provider, model.provider)
    if wanted is None or wanted not in TARGETS:
        raise InvalidTypeError(f"no target for {wanted!r}; the targets are {', '.join(sorted(TARGETS))}")
    return TARGETS[wanted](model_id)
