"""Guardrails: the form of the answer as an instruction, and what a prefill becomes where a model takes none (P.C)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from contextbus.core.blocks import user_block
from contextbus.core.bound_models import binds_thinking
from contextbus.core.escape import escape_text
from contextbus.core.prefill_models import takes_prefill
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Model, ModelPrefix

GUARDRAILS_VERSION: Final = 1
"""Version of the fixed texts below (P.C.4)."""
OUTPUT_TAG: Final = (
    "<output_format>\n"
    "Give the whole answer inside one element, with nothing before it and nothing after it:\n"
    "<{tag}>the answer</{tag}>\n"
    "</output_format>"
)
ANSWER_START: Final = (
    "<answer_start>\n"
    "The answer begins with exactly the text of this element, XML escapes undone, and goes on from there:\n"
    "<text>{text}</text>\n"
    "</answer_start>"
)

_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def check_output_tag(tag: object) -> str:
    """The name of an element.

    Raises:
        InvalidTypeError: it is no name of ``[A-Za-z_][A-Za-z0-9_.-]*``.
    """
    if not isinstance(tag, str) or _TAG.fullmatch(tag) is None:
        raise InvalidTypeError("output_tag: expected the name of an XML element, [A-Za-z_][A-Za-z0-9_.-]*")
    return tag


def output_tag_message(tag: str) -> ChatMessage:
    """The user message that asks for the answer inside a tag (P.C.1).

    Raises:
        InvalidTypeError: the tag is no name of ``[A-Za-z_][A-Za-z0-9_.-]*``.
    """
    return user_block(OUTPUT_TAG.format(tag=check_output_tag(tag)))


def prefill_message(text: str) -> ChatMessage:
    """The user message that a prefill degrades to: the text stripped at its end, escaped (P.C.2, P.C.4)."""
    return user_block(ANSWER_START.format(text=escape_text(text.rstrip())))


def prefill_degrades(model: Model | None, thinking: bool, bound_models: Iterable[ModelPrefix] = ()) -> bool:
    """Whether a prefill has to become an instruction in the tail (P.C.2, P.C.4).

    Args:
        model: the model of the call; one that is not known takes no prefill.
        thinking: the model is asked to think.
        bound_models: rows that the user adds to those of D.F.8.
    """
    if model is None or thinking:
        return True
    return not takes_prefill(model.provider, model.model_id) or binds_thinking(model, bound_models)
