"""What a caller of ``compact`` may say, checked before anything else is done (C.A.2)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final, Literal, TypeVar, cast

import msgspec

from contextbus.core.compaction.evaluation import ratio_room
from contextbus.core.compaction.instructions import write_instructions
from contextbus.core.compaction.policy import check_policy, check_positive
from contextbus.core.compaction.reduction import ReductionOptions
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError, RangeError
from contextbus_protocol.values import RetentionPolicy

Media = Literal["protect", "placeholder"]
OnFailure = Literal["stop", "drop"]

_MEDIA: Final[tuple[Media, ...]] = ("protect", "placeholder")
_ON_FAILURE: Final[tuple[OnFailure, ...]] = ("stop", "drop")

W = TypeVar("W", bound=str)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options: those of the reduction, and what the summariser is told beside the messages."""

    reduction: ReductionOptions
    instructions: str
    own_blocks: frozenset[str]
    on_failure: OnFailure


def check_options(
    *,
    target_tokens: object,
    keep_last_messages: object,
    instructions: object,
    count_tokens: object,
    own_blocks: object,
    long_running: object,
    keep: object,
    context_window: object,
    media: object,
    min_shrink: object,
    summary_input_tokens: object = None,
    on_failure: object = "stop",
) -> Options:
    """Check the options of a call, in the order in which faults are told (C.A.2-C.A.4).

    Raises:
        RangeError: a number is outside its range; the text names the parameter.
        InvalidTypeError: anything else is of the wrong type.
    """
    target = check_positive("target_tokens", target_tokens)
    if keep_last_messages is not None:
        check_positive("keep_last_messages", keep_last_messages)
    if instructions is not None and not isinstance(instructions, str):
        raise InvalidTypeError(f"instructions must be a text, not {type(instructions).__name__}")
    if count_tokens is not None and not callable(count_tokens):
        raise InvalidTypeError(f"count_tokens must be a function (messages) -> int, not {type(count_tokens).__name__}")
    policy = _check_policy(cast("int | None", keep_last_messages), keep)
    window = 0 if context_window is None else check_positive("context_window", context_window)
    if policy.keep_ratio is not None and not window:
        raise RangeError("keep_ratio is a share of the model's window: give context_window, in tokens")
    if summary_input_tokens is not None:
        check_positive("summary_input_tokens", summary_input_tokens)
    reduction = ReductionOptions(
        target_tokens=target,
        keep=policy,
        window_tokens=ratio_room(policy, window, 0),
        long_running=_texts("long_running", long_running),
        summary_input_tokens=cast("int | None", summary_input_tokens),
        media=_word("media", media, _MEDIA),
        min_shrink=_share("min_shrink", min_shrink),
    )
    return Options(
        reduction=reduction,
        instructions=write_instructions(None if instructions is None else clean_text(instructions)),
        own_blocks=frozenset(_texts("own_blocks", own_blocks)),
        on_failure=_word("on_failure", on_failure, _ON_FAILURE),
    )


def _check_policy(keep_last_messages: int | None, keep: object) -> RetentionPolicy:
    if keep is None:
        return RetentionPolicy(keep_last_messages=keep_last_messages)
    if not isinstance(keep, RetentionPolicy):
        raise InvalidTypeError(f"keep must be a RetentionPolicy, not {type(keep).__name__}")
    # The policy checks its numbers.
    check_policy(keep)
    if keep_last_messages is None:
        return keep
    if keep.keep_last_messages is not None:
        raise InvalidTypeError("keep_last_messages is given twice: leave it out, or leave it out of keep")
    return msgspec.structs.replace(keep, keep_last_messages=keep_last_messages)


def _texts(name: str, value: object) -> tuple[str, ...]:
    """Names or digests; one text alone would be taken for its letters."""
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise InvalidTypeError(f"{name} must be a collection of texts, not {type(value).__name__}")
    found = tuple(cast("Collection[object]", value))
    if not all(isinstance(text, str) for text in found):
        raise InvalidTypeError(f"{name} must hold texts only")
    return cast("tuple[str, ...]", found)


def _word(name: str, value: object, words: tuple[W, ...]) -> W:
    for word in words:
        if isinstance(value, str) and value == word:
            return word
    raise InvalidTypeError(f"{name} must be one of {', '.join(map(repr, words))}")


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise RangeError(f"{name} must be from 0 to 1")
    return value
