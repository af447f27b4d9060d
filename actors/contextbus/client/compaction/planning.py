"""The same in two halves for callers that ask a model themselves, in code that does not wait (C.A.1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from contextbus.client.compaction.attempt import Attempt, answer_of, begin_attempt
from contextbus.client.compaction.counting import counter_of
from contextbus.client.compaction.messages import read_source
from contextbus.client.compaction.options import check_options
from contextbus.client.compaction.results import CannotFit, Compacted
from contextbus.client.given import GivenMessage
from contextbus.core.compaction import reduction as reducing
from contextbus.core.compaction.media import MediaMode
from contextbus.core.compaction.reduction import Ask, Reduced
from contextbus.summarisers.interface import Summary, SummaryRequest
from contextbus_protocol.events import ReplacedRange
from contextbus_protocol.values import RetentionPolicy

CountNow = Callable[[tuple[GivenMessage, ...]], int]
"""Counts a complete list of messages, in tokens, without waiting."""


class CompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction would replace, and what is to be asked for it.

    ``replaced_range`` are half-open indices into the messages; ``replayed`` is the index of the user's last message if
    it is in the range: it is placed behind the summary again (C.E.4).  ``tokens_before`` is the count of all messages,
    ``room`` what the target leaves for the summary (C.F.2), both in tokens.  ``request`` is what a model is to be
    asked: ``request.instructions`` as the system text, ``request.prompt`` as the one user text, no tools, and at most
    ``request.max_output_tokens``.
    """

    replaced_range: ReplacedRange
    replayed: int | None
    tokens_before: int
    room: int
    request: SummaryRequest
    attempt: Attempt


def plan_compaction(
    messages: Iterable[GivenMessage],
    *,
    target_tokens: int,
    keep_last_messages: int | None = None,
    instructions: str | None = None,
    count_tokens: CountNow | None = None,
    own_blocks: Collection[str] = (),
    long_running: Collection[str] = (),
    keep: RetentionPolicy | None = None,
    context_window: int | None = None,
    media: MediaMode = "protect",
    min_shrink: float = 0.0,
) -> CompactionPlan | CannotFit:
    """Find what may be replaced and what room there is, as ``compact`` does; nobody is asked.

    ```python
    match plan_compaction(messages, target_tokens=20_000):
        case CompactionPlan(request=request) as plan:
            text = ask_my_model(request.instructions, request.prompt, request.max_output_tokens)
            result = apply_summary(plan, text)
        case CannotFit(reason=reason):
            ...
    ```

    Args:
        messages: as for ``compact``.
        target_tokens: as for ``compact``.
        keep_last_messages: as for ``compact``.
        instructions: as for ``compact``.
        count_tokens: as for ``compact``, but not async.
        own_blocks: as for ``compact``.
        long_running: as for ``compact``.
        keep: as for ``compact``.
        context_window: as for ``compact``.
        media: as for ``compact``.
        min_shrink: as for ``compact``.

    Returns:
        The plan; ``CannotFit`` where there is nothing to replace, or no room for a summary.

    Raises:
        RangeError: as for ``compact``.
        InvalidTypeError: as for ``compact``, or ``count_tokens`` is async.
    """
    options = check_options(
        target_tokens=target_tokens,
        keep_last_messages=keep_last_messages,
        instructions=instructions,
        count_tokens=count_tokens,
        own_blocks=own_blocks,
        long_running=long_running,
        keep=keep,
        context_window=context_window,
        media=media,
        min_shrink=min_shrink,
    )
    source = read_source(messages, options.own_blocks)
    attempt = _count(begin_attempt(source, options, counter_of(source, count_tokens)))
    match attempt.request:
        case Ask() as ask:
            reduction = attempt.reduction
            request = SummaryRequest(
                messages=ask.messages, instructions=options.instructions, max_output_tokens=ask.max_output_tokens
            )
            return CompactionPlan(
                replaced_range=ReplacedRange(reduction.start, reduction.end),
                replayed=reduction.replayed,
                tokens_before=reduction.before,
                room=reduction.room,
                request=request,
                attempt=attempt,
            )
        case reducing.CannotFit() as outcome:
            return attempt.refused(outcome)
        case _:  # there is no summary yet
            raise AssertionError


def apply_summary(plan: CompactionPlan, summary: str | Summary) -> Compacted | CannotFit:
    """Put a summary in the place of the planned range, with the checks of ``compact`` (C.G.5-C.G.8).

    The plan can be used again, for example with a shorter text after ``summary-too-large``.

    Args:
        plan: what ``plan_compaction`` gave.
        summary: the model's text; or a ``Summary``, which also says how the output ended and what it used.

    Raises:
        MalformedSummaryError: the summary is neither.
        RangeError: ``count_tokens`` gave no integer from 0.
    """
    attempt = _count(plan.attempt.take(answer_of(summary)))
    match attempt.request:
        case Reduced() | reducing.CannotFit() as outcome:
            return attempt.result(outcome)
        case _:  # one range, one request
            raise AssertionError


def _count(attempt: Attempt) -> Attempt:
    """Count until something else is wanted."""
    while True:
        match attempt.request:
            case Ask() | Reduced() | reducing.CannotFit():
                return attempt
            case count:
                attempt = attempt.take(attempt.counter.count(count))
