"""The one-call form: read, plan, count, ask, check (C.A, C.F, C.G)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import assert_never

import msgspec
from anyio.lowlevel import checkpoint

from contextbus.client.compaction.attempt import Attempt, answer_of, begin_attempt
from contextbus.client.compaction.counting import CountGiven, counter_of
from contextbus.client.compaction.messages import read_source
from contextbus.client.compaction.options import StopOrDrop, check_options
from contextbus.client.compaction.results import CannotFit, Compacted
from contextbus.client.given import GivenMessage
from contextbus.core.compaction import reduction as reducing
from contextbus.core.compaction.media import MediaMode
from contextbus.core.compaction.reduction import Answer, Ask, CountComposed, CountRange, CountTail, CountWhole, Reduced
from contextbus.summarisers.interface import AsyncFunction, Summariser, SummaryRequest, SyncFunction, summariser_of
from contextbus_protocol.values import RetentionPolicy


async def compact(
    messages: Iterable[GivenMessage],
    *,
    model: Summariser | AsyncFunction | SyncFunction,
    target_tokens: int,
    keep_last_messages: int | None = None,
    instructions: str | None = None,
    count_tokens: CountGiven | None = None,
    own_blocks: Collection[str] = (),
    long_running: Collection[str] = (),
    keep: RetentionPolicy | None = None,
    context_window: int | None = None,
    summary_input_tokens: int | None = None,
    media: MediaMode = "protect",
    min_shrink: float = 0.0,
    on_failure: StopOrDrop = "stop",
) -> Compacted | CannotFit:
    """Replace the older part of a conversation by a summary; nothing is kept between calls (C.A.1, C.A.10).

    A call always tries, also where the messages fit the target already (C.A.9).  What may be replaced is one range
    behind the leading system messages: never an unanswered tool call or approval, a later system message, media, or
    half of a call and its result (C.D).  The result is matched by its status:

    ```python
    match await compact(messages, model=summariser, target_tokens=20_000):
        case Compacted(messages=shorter, summary=text, replaced_range=replaced):
            ...  # store first, then go on with the shorter list
        case CannotFit(reason=reason):
            ...  # the list stays as it is
    ```

    What to keep of it: the indices of ``replaced_range`` are those of this call's list only.  Map them to ids of your
    own that last, store that mapping and the summary together, and only then go on with ``messages``; keep the
    original transcript (C.G.13).  Leave the summary's message as it is until the next compaction, which may replace it
    like any other (C.G.14); give that call ``own_blocks`` of this result.

    Args:
        messages: ChatMessages, a provider's dicts (AI SDK model messages where nothing tells another provider), or SDK
            objects.  None is changed, and those that stay come back as the same objects (C.A.7, C.E.7).
        model: What writes the summary: a summariser, or a function ``(SummaryRequest) -> str or Summary``, async or
            not.  There is no default (C.A.8).
        target_tokens: The most that the messages may count afterwards.  Instructions, tools and the answer are not
            part of it (C.C.10).
        keep_last_messages: How many last messages stay at least; 4 where ``keep`` says nothing else.
        instructions: What the summary must preserve in addition (C.F.4).
        count_tokens: Counts a list of messages, in tokens, async or not; it is given complete lists and must not
            change them.  Without it the characters of the messages' JSON divided by four, which media has none of
            (C.C.1-C.C.5).
        own_blocks: Digests of blocks that are no user's messages, such as those of ``Compacted.own_blocks``.
        long_running: Names of tools whose calls wait for their results however the conversation goes on (C.D.16).
        keep: What stays by turns, tokens or a share of the window (C.X.1).
        context_window: The window of the conversation's model in tokens; needed for ``keep_ratio``.
        summary_input_tokens: The most that the summariser takes at once, by the default count; a larger range goes in
            pieces, and is summarised in several requests (C.X.2).  Without it there is one request at most (C.F.1).
        media: Whether media protects itself and all behind it, or is named to the summariser instead (C.X.3).
        min_shrink: The share of the replaced range by which the messages must shrink, from 0 to 1 (C.X.4).
        on_failure: ``drop`` lets the range go without a summary where the summariser fails or is refused, if the rest
            fits the target (C.X.5).

    Raises:
        RangeError: a number is outside its range, or a count is no integer from 0; the text names which.
        InvalidTypeError: a parameter or message has the wrong type, or media is counted without ``count_tokens``.
        Exception: whatever the summariser or ``count_tokens`` raises, as it is (C.F.8).
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
        summary_input_tokens=summary_input_tokens,
        media=media,
        min_shrink=min_shrink,
        on_failure=on_failure,
    )
    summariser = summariser_of(model)
    await checkpoint()
    source = read_source(messages, options.own_blocks)
    attempt = begin_attempt(source, options, counter_of(source, count_tokens))
    drops = options.on_failure == "drop"
    failed: Exception | reducing.CannotFit | None = None
    while True:
        match attempt.request:
            case Reduced() as outcome:
                if outcome.summary is None and outcome.after > target_tokens and failed is not None:
                    return _give_up(attempt, failed)
                return attempt.result(outcome)
            case reducing.CannotFit() as outcome:
                if not drops or outcome.end <= outcome.start:
                    return attempt.result(outcome)
                failed, attempt = outcome, attempt.drop()
            case Ask() as ask:
                try:
                    answer = await _ask(summariser, ask, options.instructions)
                except Exception as exc:
                    if not drops:
                        raise
                    failed, attempt = exc, attempt.drop()
                else:
                    attempt = attempt.take(answer)
            case CountWhole() | CountTail() | CountRange() | CountComposed() as count:
                attempt = attempt.take(await attempt.counter.wait(count))
            case _:
                assert_never(attempt.request)


def _give_up(attempt: Attempt, failed: Exception | reducing.CannotFit) -> CannotFit:
    """Say why there was no summary: without one it does not fit either."""
    if isinstance(failed, Exception):
        raise failed
    return msgspec.structs.replace(attempt.refused(failed), required_tokens=attempt.composed)


async def _ask(summariser: Summariser, ask: Ask, instructions: str) -> Answer:
    """One request, without retry and without tools (C.F.1, C.F.6)."""
    request = SummaryRequest(messages=ask.messages, instructions=instructions, max_output_tokens=ask.max_output_tokens)
    answer = await summariser.summarise(request)
    await checkpoint()
    return answer_of(answer)
