"""One call on its way: the reduction that it drives, and what it comes to.  No waiting, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contextbus.client.compaction.counting import Counter, InputCounter, candidate
from contextbus.client.compaction.messages import Source
from contextbus.client.compaction.options import Options
from contextbus.client.compaction.results import CannotFit, Compacted
from contextbus.core.compaction import reduction as reducing
from contextbus.core.compaction.composition import summary_message
from contextbus.core.compaction.reduction import (
    Answer,
    CountComposed,
    Outcome,
    Reduced,
    Reduction,
    Request,
    add_usages,
    advance,
    begin,
)
from contextbus.core.history import digest_message
from contextbus.summarisers.interface import read_answer
from contextbus_protocol.events import ReplacedRange, TokenChange

_TEXTS = ("text", "reasoning")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A reduction of a caller's messages: ``request`` is what it asks for next, or what came of it.

    ``composed`` is the last count of a composition, in tokens.
    """

    source: Source
    options: Options
    counter: Counter
    count_input: InputCounter
    reduction: Reduction
    request: Request
    composed: int = 0

    def take(self, answer: int | Answer) -> Attempt:
        """Go on with tokens that were counted, or with what the summariser gave."""
        composed = self.composed
        if isinstance(self.request, CountComposed) and isinstance(answer, int):
            composed = answer
        reduction, request = advance(self.reduction, answer, self.count_input)
        return msgspec.structs.replace(self, reduction=reduction, request=request, composed=composed)

    def drop(self) -> Attempt:
        """Let the range go without a summary (C.X.5)."""
        reduction, request = reducing.drop(self.reduction)
        return msgspec.structs.replace(self, reduction=reduction, request=request)

    def result(self, outcome: Outcome) -> Compacted | CannotFit:
        """What the caller gets."""
        return self._compacted(outcome) if isinstance(outcome, Reduced) else self.refused(outcome)

    def refused(self, outcome: reducing.CannotFit) -> CannotFit:
        """What the caller gets where nothing is replaced."""
        required = {"protected-history": self.composed + 1, "summary-too-large": self.composed}.get(outcome.reason)
        return CannotFit(
            reason=outcome.reason,
            messages=self.source.given,
            tokens=TokenChange(outcome.before, outcome.before),
            usage=_usage(outcome.usages),
            requests=outcome.pieces,
            replaced_range=ReplacedRange(outcome.start, outcome.end) if outcome.end > outcome.start else None,
            required_tokens=None if outcome.unshrunk else required,
        )

    def _compacted(self, outcome: Reduced) -> Compacted:
        start, end, summary = outcome.start, outcome.end, outcome.summary
        own = [] if summary is None else [digest_message(summary_message(summary))]
        return Compacted(
            messages=candidate(self.source, CountComposed(start, end, outcome.replayed, summary)),
            summary=summary or "",
            replaced_range=ReplacedRange(start, end),
            tokens=TokenChange(outcome.before, outcome.after),
            usage=_usage(outcome.usages),
            own_blocks=tuple(sorted({*self.options.own_blocks, *own})),
            requests=outcome.pieces,
            dropped=summary is None,
        )


def begin_attempt(source: Source, options: Options, counter: Counter) -> Attempt:
    """Begin: the first thing asked for is the count of all messages (C.C.7)."""
    reduction, request = begin(source.items, options.reduction)
    return Attempt(
        source=source,
        options=options,
        counter=counter,
        count_input=InputCounter(),
        reduction=reduction,
        request=request,
    )


def answer_of(answer: object) -> Answer:
    """What a summariser gave, as the reduction checks it: text parts joined, reasoning left out (C.G.5, C.G.7).

    Raises:
        MalformedSummaryError: it is neither a text nor a ``Summary``.
    """
    summary = read_answer(answer)
    return Answer(
        text="".join(part.text for part in summary.parts if part.type == "text"),
        only_text=all(part.type in _TEXTS for part in summary.parts),
        finish_reason=summary.finish_reason,
        usage=summary.usage,
    )


def _usage(usages: Sequence[object]) -> object | None:
    """What was reported: of one request as it came, of several their sum (C.G.4, C.X.2)."""
    return usages[0] if len(usages) == 1 else add_usages(usages)
