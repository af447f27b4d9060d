"""What stands in a request beside the history, in every combination that a host can ask for."""

from __future__ import annotations

import functools
from itertools import product
from typing import Final, Literal, NamedTuple, get_args

from contextbus.client.prompt import Prompt, StatePlacement
from contextbus.core.guardrails import prefill_degrades, prefill_message
from contextbus.core.payload import Payload, Request, assemble
from contextbus.core.rendering import Rendering
from contextbus.core.targets.tools import tools_text
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model
from tests.payloads.blocks import Blocks
from tests.payloads.conversations import GEMINI, OPUS

Target = Literal["anthropic", "openai", "openai-responses", "gemini"]
ModelKind = Literal["unknown", "prefilled", "issuer", "bound"]
Guardrails = Literal["none", "tag", "prefill", "thinking"]

TARGETS: Final[tuple[Target, ...]] = get_args(Target)
_MODELS: Final[dict[ModelKind, tuple[str, str, str]]] = {
    "prefilled": ("claude-haiku-4-5", "gpt-4.1", "gemini-2.5-flash"),
    "issuer": (OPUS, "gpt-5", GEMINI),
    "bound": ("claude-opus-5-5", "gpt-5", GEMINI),
}
_PROVIDERS: Final = {"anthropic": 0, "openai": 1, "openai-responses": 1, "gemini": 2}
_NAMES: Final = ("anthropic", "openai", "gemini")
_STATE: Final = {"file": "seat <12A> & bag", "todo": [{"item": "ask", "done": False}, {"item": "book"}], "none": None}


class Shape(NamedTuple):
    """What a request has beside its history; ``model`` says what kind of model it is for.

    ``prefilled`` models continue an answer where the provider has such models at all, ``issuer`` is the model whose
    signatures are in the histories, ``bound`` one of D.F.8, ``unknown`` none that is named.
    """

    name: str
    model: ModelKind = "unknown"
    state: StatePlacement | None = None
    guardrails: Guardrails = "none"
    retrieval: bool = False
    memory: bool = False
    tools: bool = True


SHAPES: Final = (
    Shape("history alone", tools=False),
    Shape("dynamic state", "issuer", "last_user"),
    Shape("output tag", "bound", guardrails="tag"),
    Shape("prefill taken", "prefilled", guardrails="prefill"),
    Shape("prefill not taken", "issuer", guardrails="prefill"),
    Shape("working memory", "issuer", memory=True),
    Shape("retrieval", "issuer", retrieval=True),
    Shape("all, prefill taken", "prefilled", "system", "prefill", retrieval=True, memory=True),
    Shape("all, prefill not taken", "bound", "last_user", "thinking", retrieval=True, memory=True),
)
"""The shapes in which every cut is sent."""
PRODUCT: Final = tuple(
    Shape("one of all combinations", *combined)
    for combined in product(
        get_args(ModelKind), (None, "last_user", "system"), get_args(Guardrails), (False, True), (False, True), (True,)
    )
)
"""All combinations; each cut is sent in one of them, the next cut in the next."""


def model_of(shape: Shape, target: Target) -> Model | None:
    """The model that a shape is for on a target."""
    if shape.model == "unknown":
        return None
    place = _PROVIDERS[target]
    return Model(_NAMES[place], _MODELS[shape.model][place], 200_000, 8_000)


@functools.cache
def prompt_of(shape: Shape) -> Prompt:
    """The prompt of a shape."""
    prompt = Prompt().system("You are an airline's agent.", cache=True)
    if shape.state is not None:
        prompt = prompt.state(_STATE, _STATE_SCHEMA, placement=shape.state)
    if shape.guardrails == "none":
        return prompt
    prefill = None if shape.guardrails == "tag" else "<answer>\n1. "
    return prompt.guardrails(output_tag="answer", prefill=prefill, thinking=shape.guardrails == "thinking")


_STATE_SCHEMA: Final = {"type": "object", "required": ["file"]}


@functools.cache
def _parts(shape: Shape) -> PromptParts:
    return prompt_of(shape).parts()


def shape_request(
    history: Rendering, shape: Shape, target: Target, blocks: Blocks, tools: tuple[dict[str, object], ...]
) -> Payload:
    """The payload of a rendered history in a shape; ``blocks`` are the step's own, where the shape has any."""
    parts = _parts(shape)
    tail = (*(blocks.tail if shape.memory else ()), *parts.state, *parts.guardrails)
    prefill = parts.prefill
    if prefill is not None and prefill_degrades(model_of(shape, target), parts.thinking):
        tail, prefill = (*tail, prefill_message(prefill)), None
    return assemble(
        Request(
            history=history,
            system=parts.system,
            blocks=blocks.append if shape.retrieval else (),
            tail=tail,
            prefill=prefill,
            tools=tools_text(tools) if shape.tools else None,
        )
    )
