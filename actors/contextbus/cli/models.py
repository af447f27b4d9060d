"""What a payload is for, the model that will be called, and what counts its tokens."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from contextbus.cli.failures import UsageFault
from contextbus.cli.output import warn
from contextbus.runtime.tokenizers import TOKENIZER_NAMES, load_tokenizers
from contextbus_protocol.values import EstimatorSpec, Model

HEURISTICS: Final = ("classes", "characters")


class Target(enum.StrEnum):
    """Whose API the payload is for."""

    anthropic = "anthropic"
    openai = "openai"


_MODELS: Final = {
    Target.anthropic: Model("anthropic", "claude-opus-4-6", 200_000, 8_000),
    Target.openai: Model("openai", "gpt-5", 400_000, 16_000),
}


def choose_model(
    target: Target | None, name: str | None, window: int | None, output: int | None, provider: Target
) -> Model:
    """The model that is meant: the named one, else the usual one of the target or of the file's provider.

    Raises:
        UsageFault: the name is none, or the answer leaves no room for a request.
    """
    model = _MODELS[target or provider]
    if name is not None:
        first, found, model_id = name.partition("/")
        if not found or not first or not model_id:
            raise UsageFault(f"--model {name!r}: write PROVIDER/ID, for example anthropic/claude-opus-4-6")
        known = next((m for m in _MODELS.values() if m.provider == first), _MODELS[Target.anthropic])
        model = msgspec.structs.replace(known, provider=first, model_id=model_id)
    if window is not None:
        model = msgspec.structs.replace(model, context_window=window)
    if output is not None:
        model = msgspec.structs.replace(model, max_output_tokens=output)
    if model.max_output_tokens >= model.context_window:
        raise UsageFault(
            f"{model.max_output_tokens} output tokens leave no room in a context window of {model.context_window}; "
            "give --context-window and --max-output-tokens that fit"
        )
    return model


def target_of(model: Model, provider: Target) -> str:
    """The target of a model, or that of the file's provider where the model's has none of its own."""
    return model.provider if model.provider in (t.value for t in Target) else provider.value


def choose_estimator(name: str) -> EstimatorSpec:
    """What counts tokens; without the vocabulary of a tokenizer the heuristic does, with a warning.

    Raises:
        UsageFault: nothing of this name counts.
    """
    if name in HEURISTICS:
        return EstimatorSpec(name=name)
    if name not in TOKENIZER_NAMES:
        raise UsageFault(f"--estimator {name!r}: choose one of {', '.join((*HEURISTICS, *TOKENIZER_NAMES))}")
    absent = load_tokenizers((name,)).absent
    if absent:
        warn(f"tokenizer {name} is not at hand ({absent[name]}); counting with character classes instead")
        return EstimatorSpec()
    return EstimatorSpec(kind="tokenizer", name=name)
