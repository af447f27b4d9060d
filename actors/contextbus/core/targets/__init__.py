"""From a request to one provider's payload.  Pure."""

from __future__ import annotations

from typing import Final

from contextbus.core.targets.anthropic import AnthropicTarget
from contextbus.core.targets.openai import OpenAITarget
from contextbus.core.wire import Target
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Model

TARGETS: Final[dict[str, Target]] = {"anthropic": AnthropicTarget(), "openai": OpenAITarget()}


def find_target(name: str | None, model: Model | None = None) -> Target:
    """The target of a name; without a name the model's provider decides (P.A.7).

    Raises:
        InvalidTypeError: there is no such target; the message lists those there are.
    """
    wanted = name if name is not None else model.provider if model is not None else None
    if wanted is None or wanted not in TARGETS:
        raise InvalidTypeError(f"no target for {wanted!r}; the targets are {', '.join(sorted(TARGETS))}")
    return TARGETS[wanted]
