"""Keep a run's history inside the model's window: a configuration of compaction, no second mechanism (P.J)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.client.compaction.validation import check_texts
from contextbus.client.compaction_options import (
    CompactionSetup,
    CountTokens,
    OnBudgetExceeded,
    OnCompress,
    OnEvent,
    check_reduction,
    digest_instructions,
    summary_seconds,
)
from contextbus.core.compaction.media import MediaMode
from contextbus.core.compaction.policy import check_positive, check_ratio
from contextbus.summarisers.built_in import EXTRACTIVE_ID
from contextbus_protocol.digests import clean_text
from contextbus_protocol.values import CompactionOptions, RetentionPolicy, Trigger


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Compact as soon as a request would not fit the model's window, its output included (P.J.1, P.J.6).

    Without any option the run's estimator counts and the built-in summariser writes (P.J.7).

    Args:
        trigger_ratio: the share of the window above which it compacts.
        keep_ratio: the share of the window that the whole request is to keep to then, the output's reserve included.
        keep_last_messages: how many last messages stay where the provider's own count is above the window (P.J.2).
        summariser: the id of what writes the summary.
        instructions: what else the summary must preserve (C.F.4).
        count_tokens: counts messages in place of the run's estimator (C.M.11).
        long_running: tools whose calls may stay open (C.D.16).
        summary_input_tokens: the most that the summariser takes at once, in tokens (C.X.2).
        media: whether media protects, or is named in its place (C.X.3).
        min_shrink: the share of the replaced range that a summary must save (C.X.4).
        on_budget_exceeded: is asked for a smaller history before anything is compacted; None goes on (P.J.4).
        on_compress: is told of a summary once it is stored; its failure is logged (D.W.4).
        on_event: is told the events of each evaluation once they are stored; its failure is logged.
        seconds: how long a summary may take; it adds to the time of the step.  60 where a model writes it.

    Raises:
        InvalidTypeError: an option is of a wrong type; the message names it.
        RangeError: a number is outside its range.
    """

    trigger_ratio: float = 1.0
    keep_ratio: float = 0.8
    keep_last_messages: int = 1
    summariser: str = EXTRACTIVE_ID
    instructions: str | None = None
    count_tokens: CountTokens | None = None
    long_running: Sequence[str] = ()
    summary_input_tokens: int | None = None
    media: MediaMode = "protect"
    min_shrink: float = 0.1
    on_budget_exceeded: OnBudgetExceeded | None = None
    on_compress: OnCompress | None = None
    on_event: OnEvent | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Check everything here, where it is written."""
        msgspec.structs.force_setattr(self, "long_running", check_texts("long_running", self.long_running))
        check_ratio("trigger_ratio", self.trigger_ratio)
        check_ratio("keep_ratio", self.keep_ratio)
        check_positive("keep_last_messages", self.keep_last_messages)
        check_reduction(self)

    def setup(self) -> CompactionSetup:
        """What the run needs of it: two triggers, a policy for each, a target, and going on after a failure (P.J.6)."""
        by_ratio = RetentionPolicy(keep_ratio=self.keep_ratio)
        last = RetentionPolicy(keep_last_messages=self.keep_last_messages)
        options = CompactionOptions(
            triggers=(
                Trigger(kind="usage-exceeded", keep=last),
                Trigger(kind="window-exceeded", ratio=self.trigger_ratio, keep=by_ratio),
            ),
            target_ratio=self.keep_ratio,
            keep=by_ratio,
            summariser=self.summariser,
            long_running=tuple(self.long_running),
            summary_input_tokens=self.summary_input_tokens,
            media=self.media,
            min_shrink=self.min_shrink,
            on_failure="continue",
            counts=self.count_tokens is not None,
            reserves_output=True,
            instructions_digest=digest_instructions(self.instructions),
        )
        return CompactionSetup(
            options=options,
            instructions=None if self.instructions is None else clean_text(self.instructions),
            seconds=summary_seconds(self.summariser, self.seconds),
            count_tokens=self.count_tokens,
            on_budget_exceeded=self.on_budget_exceeded,
            on_compress=self.on_compress,
            on_event=self.on_event,
        )
