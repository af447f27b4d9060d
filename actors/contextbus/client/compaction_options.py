"""How a run compacts its history, as its host says it (C.I.1, C.X)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast, get_args

import msgspec

from contextbus.client.compaction.validation import (
    MEDIA_MODES,
    check_function,
    check_instructions,
    check_number,
    check_texts,
    check_word,
)
from contextbus.client.triggers import TriggerFunction, protocol_triggers
from contextbus.core.compaction.media import MediaMode
from contextbus.core.compaction.policy import check_positive, check_ratio
from contextbus.summarisers.built_in import EXTRACTIVE_ID
from contextbus_protocol import subjects
from contextbus_protocol.callbacks import BudgetInfo
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.digests import clean_text, digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import (
    CompactionCompleted,
    CompactionFailed,
    CompactionRestored,
    CompactionStarted,
)
from contextbus_protocol.values import CompactionOptions, OnFailure, RetentionPolicy

MODEL_SECONDS: Final = 60.0
"""How long a summary may take that a model writes, in seconds."""

CompactionEvent = CompactionStarted | CompactionCompleted | CompactionFailed | CompactionRestored
CountTokens = Callable[[tuple[ChatMessage, ...]], Awaitable[int] | int]
"""Counts a whole candidate array, in tokens, async or not (C.C.4)."""

OnCompress = Callable[[str, int, CompactionCompleted], Awaitable[object] | object]
"""Is told a summary, the number of messages that it replaced, and the event, once it is stored (P.J.4)."""

OnEvent = Callable[[CompactionEvent], Awaitable[object] | object]
"""Is told the events of an evaluation once they are in the log (C.O.13)."""

OnBudgetExceeded = Callable[[tuple[ChatMessage, ...], BudgetInfo], object]
"""Is asked for a smaller history, async or not; None goes on (P.J.4)."""


class CompactionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs of a ``Compaction`` or ``Window``: data for the actors, and the host's functions.

    ``seconds`` is how long a summary may take beside the command's own time.
    """

    options: CompactionOptions
    instructions: str | None = None
    seconds: float = 0.0
    triggers: tuple[TriggerFunction, ...] = ()
    count_tokens: CountTokens | None = None
    on_budget_exceeded: OnBudgetExceeded | None = None
    on_compress: OnCompress | None = None
    on_event: OnEvent | None = None


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """When and how a run compacts its history.

    Args:
        triggers: when it does: the first that matches decides (C.I.3).  ``tokens_exceed``, ``messages_exceed``,
            ``cache_likely_cold``, or functions ``(snapshot) -> bool`` of the host's own, async or not.
        target_tokens: what the whole request is to keep to, in tokens.
        summariser: the id of what writes the summary.
        keep_last_messages: how many last messages stay; 4 where no policy is given (C.X.1).
        keep_last_turns: how many last messages of the user stay, with what follows them.
        keep_recent_tokens: how many tokens of the latest messages stay.
        keep_ratio: the share of the model's window that the latest messages may take.
        instructions: what else the summary must preserve (C.F.4).
        count_tokens: counts messages in place of the run's estimator (C.M.11).
        long_running: tools whose calls may stay open (C.D.16).
        summary_input_tokens: the most that the summariser takes at once, in tokens (C.X.2).
        media: whether media protects, or is named in its place (C.X.3).
        min_shrink: the share of the replaced range that a summary must save (C.X.4).
        on_failure: what a refused or failed summary does to the step (C.X.5).
        on_compress: is told of a summary once it is stored; its failure is logged (D.W.4).
        on_event: is told the events of each evaluation once they are stored; its failure is logged.
        seconds: how long a summary may take; it adds to the time of the step.  60 where a model writes it.

    Raises:
        InvalidTypeError: there is no trigger, or an option is of a wrong type; the message names it (C.I.2).
        RangeError: a number is outside its range (C.I.2).
    """

    triggers: Sequence[TriggerFunction]
    target_tokens: int
    summariser: str = EXTRACTIVE_ID
    keep_last_messages: int | None = None
    keep_last_turns: int | None = None
    keep_recent_tokens: int | None = None
    keep_ratio: float | None = None
    instructions: str | None = None
    count_tokens: CountTokens | None = None
    long_running: Sequence[str] = ()
    summary_input_tokens: int | None = None
    media: MediaMode = "protect"
    min_shrink: float = 0.1
    on_failure: OnFailure = "stop"
    on_compress: OnCompress | None = None
    on_event: OnEvent | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Check everything here, where it is written, and keep it out of the reach of others."""
        msgspec.structs.force_setattr(self, "triggers", _check_triggers(self.triggers))
        msgspec.structs.force_setattr(self, "long_running", check_texts("long_running", self.long_running))
        check_positive("target_tokens", self.target_tokens)
        for name in ("keep_last_messages", "keep_last_turns", "keep_recent_tokens"):
            value: object = getattr(self, name)
            if value is not None:
                check_positive(name, value)
        if self.keep_ratio is not None:
            check_ratio("keep_ratio", self.keep_ratio)
        check_word("on_failure", self.on_failure, get_args(OnFailure))
        check_reduction(self)

    def setup(self) -> CompactionSetup:
        """What the run needs of it; instructions are told from each other by their digest alone (C.F.4)."""
        triggers = tuple(self.triggers)
        options = CompactionOptions(
            triggers=protocol_triggers(triggers),
            target_tokens=self.target_tokens,
            keep=RetentionPolicy(
                keep_last_messages=self.keep_last_messages,
                keep_last_turns=self.keep_last_turns,
                keep_recent_tokens=self.keep_recent_tokens,
                keep_ratio=self.keep_ratio,
            ),
            summariser=self.summariser,
            long_running=tuple(self.long_running),
            summary_input_tokens=self.summary_input_tokens,
            media=self.media,
            min_shrink=self.min_shrink,
            on_failure=self.on_failure,
            counts=self.count_tokens is not None,
            instructions_digest=digest_instructions(self.instructions),
        )
        return CompactionSetup(
            options=options,
            instructions=None if self.instructions is None else clean_text(self.instructions),
            seconds=summary_seconds(self.summariser, self.seconds),
            triggers=triggers,
            count_tokens=self.count_tokens,
            on_compress=self.on_compress,
            on_event=self.on_event,
        )


def check_reduction(given: object) -> None:
    """Refuse options that every configuration of a compaction has, where one is none.

    Raises:
        InvalidTypeError: an option is of a wrong type; the message names it.
        RangeError: a number is outside its range.
    """
    fields: dict[str, object] = {name: getattr(given, name) for name in cast("msgspec.Struct", given).__struct_fields__}
    summariser = fields["summariser"]
    if not isinstance(summariser, str):
        raise InvalidTypeError(f"summariser must be the id of one, not {type(summariser).__name__}")
    subjects.encode_name(summariser)
    instructions: object = fields["instructions"]
    budget: object = fields["summary_input_tokens"]
    seconds: object = fields["seconds"]
    check_instructions(instructions)
    if budget is not None:
        check_positive("summary_input_tokens", budget)
    check_word("media", fields["media"], MEDIA_MODES)
    check_number("min_shrink", fields["min_shrink"], most=1)
    if seconds is not None:
        check_number("seconds", seconds)
    for name in ("count_tokens", "on_budget_exceeded", "on_compress", "on_event"):
        check_function(name, fields.get(name))


def digest_instructions(instructions: str | None) -> str | None:
    """What the log has of the host's instructions."""
    return None if instructions is None else digest_text(clean_text(instructions))


def summary_seconds(summariser: str, given: float | None) -> float:
    """How long a summary may take beside the command's own time, in seconds."""
    if given is not None:
        return float(given)
    return 0.0 if summariser == EXTRACTIVE_ID else MODEL_SECONDS


def _check_triggers(value: object) -> tuple[TriggerFunction, ...]:
    triggers = tuple(cast("Sequence[object]", value)) if isinstance(value, Sequence) else ()
    if not triggers or isinstance(value, str):
        raise InvalidTypeError("triggers must be a sequence of at least one function")
    for index, trigger in enumerate(triggers):
        if not callable(trigger):
            raise InvalidTypeError(f"triggers[{index}] must be a function, not {type(trigger).__name__}")
    return cast("tuple[TriggerFunction, ...]", triggers)
