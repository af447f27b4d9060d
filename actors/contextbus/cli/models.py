"""What a payload is for, the model that will be called, and what counts its tokens."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from contextbus.cli.failures import UsageFault
from contextbus.cli.output import warn
from contextbus.core.importers import Form
from contextbus.runtime.tokenizers import TOKENIZER_NAMES, load_tokenizers
from contextbus_protocol.values import EstimatorSpec, Model

HEURISTICS: Final = ("classes", "characters")


class Target(enum.StrEnum):
    """Whose API the payload is for."""

    anthropic = "anthropic"
    openai = "openai"
    openai_responses = "openai-responses"
    gemini = "gemini"


class Written(msgspec.Struct, frozen=True):
    """What a conversation's file says of the call: the model and the most tokens of its answer."""

    model: str | None = None
    max_tokens: int | None = None


class Choice(msgspec.Struct, frozen=True):
    """The model that will be called, whose API the payload is for, and what the user should know about them."""

    model: Model
    target: str
    notes: tuple[str, ...] = ()


_LIMITS: Final = (
    # Beginnings of model ids: context window and longest answer, in tokens.  The longest that fits counts.
    ("claude-", 200_000, 64_000),
    ("claude-opus-4-1", 200_000, 32_000),
    ("claude-opus-4-2025", 200_000, 32_000),
    ("claude-3", 200_000, 4_096),
    ("claude-3-5", 200_000, 8_192),
    ("claude-3-7", 200_000, 64_000),
    ("gpt-5", 400_000, 128_000),
    ("gpt-4.1", 1_047_576, 32_768),
    ("gpt-4o", 128_000, 16_384),
    ("chatgpt-4o", 128_000, 16_384),
    ("gpt-4-turbo", 128_000, 4_096),
    ("gpt-3.5-turbo", 16_385, 4_096),
    ("gemini-", 1_048_576, 65_536),
    ("gemini-1.5", 1_048_576, 8_192),
    ("gemini-2.0", 1_048_576, 8_192),
    ("o1", 200_000, 100_000),
    ("o3", 200_000, 100_000),
    ("o4-mini", 200_000, 100_000),
)
_ASSUMED: Final = (128_000, 8_000)
_OPENAI: Final = ("gpt-", "chatgpt-", "o1", "o3", "o4")
_MODELS: Final = {
    Target.anthropic: Model("anthropic", "claude-opus-4-6", 200_000, 8_000),
    Target.openai: Model("openai", "gpt-5", 400_000, 128_000),
    Target.openai_responses: Model("openai", "gpt-5", 400_000, 128_000),
    Target.gemini: Model("google", "gemini-2.5-pro", 1_048_576, 16_000),
}
_GOOGLE: Final = ("google", "gemini")


def target_of_form(form: Form) -> Target:
    """The API that a file's form belongs to; the AI SDK is no provider, so Chat Completions stands for it."""
    others = {"ai-sdk": Target.openai, "claude-code": Target.anthropic, "codex": Target.openai_responses}
    return others[form] if form in others else Target(form)


def choose_model(
    target: Target | None,
    name: str | None,
    window: int | None,
    output: int | None,
    provider: Target,
    written: Written | None = None,
) -> Choice:
    """The model that is meant: the named one, else the file's, else the usual one of the target or of the provider.

    Args:
        target: whose API the payload is for, if that is said.
        name: ``PROVIDER/ID``, if a model is named.
        window: its context window in tokens, if that is said.
        output: the most tokens of its answer, if that is said.
        provider: whose form the file has.
        written: what the file says of the call; a named model takes the place of it.

    Raises:
        UsageFault: the name is none, or the answer leaves no room for a request.
    """
    model, known = _MODELS[target or provider], True
    if name is not None:
        first, found, model_id = name.partition("/")
        if not found or not first or not model_id:
            raise UsageFault(f"--model {name!r}: write PROVIDER/ID, for example anthropic/claude-opus-4-6")
        model, known = _find_model(first, model_id)
    elif written is not None and written.model is not None:
        model, known = _find_model(*_split_name(written.model, provider))
    notes: tuple[str, ...] = ()
    if not known and (window is None or output is None):
        assumed = model.context_window if window is None else window
        unknown = f"{model.provider}/{model.model_id} is not known: context window assumed ({assumed:,})"
        notes = (f"{unknown}; give --context-window and --max-output-tokens",)
    if output is None and name is None and written is not None:
        output = written.max_tokens
    if window is not None:
        model = msgspec.structs.replace(model, context_window=window)
    if output is not None:
        model = msgspec.structs.replace(model, max_output_tokens=output)
    if model.max_output_tokens >= model.context_window:
        raise UsageFault(
            f"{model.max_output_tokens} output tokens leave no room in a context window of {model.context_window}; "
            "give --context-window and --max-output-tokens that fit"
        )
    return Choice(model, target.value if target is not None else _target_of(model, provider), notes)


def _find_model(provider: str, model_id: str) -> tuple[Model, bool]:
    """The model with its limits, and whether they are known."""
    fitting = [limits for limits in _LIMITS if model_id.startswith(limits[0])]
    if not fitting:
        return Model(provider, model_id, *_ASSUMED), False
    _, window, output = max(fitting, key=lambda limits: len(limits[0]))
    return Model(provider, model_id, window, output), True


def _split_name(name: str, provider: Target) -> tuple[str, str]:
    first, found, rest = name.partition("/")
    if found and first and rest:
        return first, rest
    for beginnings, found_provider in ((("claude-",), "anthropic"), (_OPENAI, "openai"), (("gemini-",), "google")):
        if name.startswith(beginnings):
            return found_provider, name
    return _MODELS[provider].provider, name


def _target_of(model: Model, provider: Target) -> str:
    """The target of the file's form where it is of the model's provider, else the usual one of that provider."""
    if model.provider == _MODELS[provider].provider or (model.provider in _GOOGLE and provider is Target.gemini):
        return provider.value
    usual = {"anthropic": Target.anthropic, "openai": Target.openai, **dict.fromkeys(_GOOGLE, Target.gemini)}
    return usual.get(model.provider, provider).value


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
