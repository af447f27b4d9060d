"""What a caller of ``compact`` may say, checked before anything else is done (C.A.2)."""

from __future__ import annotations

from typing import Final, Literal, cast

import msgspec

from contextbus.client.compaction.validation import (
    MEDIA_MODES,
    check_function,
    check_instructions,
    check_number,
    check_texts,
    check_word,
)
from contextbus.core.compaction.evaluation import ratio_room
from contextbus.core.compaction.instructions import write_instructions
from contextbus.core.compaction.policy import check_policy, check_positive
from contextbus.core.compaction.reduction import ReductionOptions
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError, RangeError
from contextbus_protocol.values import RetentionPolicy

StopOrDrop = Literal["stop", "drop"]
"""What a failure does to a call; one that goes on as if there had been none is no call's (C.X.5)."""

_STOP_OR_DROP: Final[tuple[StopOrDrop, ...]] = ("stop", "drop")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options: those of the reduction, and what the summariser is told beside the messages."""

    reduction: ReductionOptions
    instructions: str
    own_blocks: frozenset[str]
    on_failure: StopOrDrop


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
    preserved = check_instructions(instructions)
    check_function("count_tokens", count_tokens)
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
        long_running=check_texts("long_running", long_running),
        summary_input_tokens=cast("int | None", summary_input_tokens),
        media=check_word("media", media, MEDIA_MODES),
        min_shrink=check_number("min_shrink", min_shrink, most=1),
    )
    return Options(
        reduction=reduction,
        instructions=write_instructions(None if preserved is None else clean_text(preserved)),
        own_blocks=frozenset(check_texts("own_blocks", own_blocks)),
        on_failure=check_word("on_failure", on_failure, _STOP_OR_DROP),
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
