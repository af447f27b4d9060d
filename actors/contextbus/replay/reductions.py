"""A reduction computed again from the blobs of its run: the range, and what came of the recorded summary (C.D, C.G)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from contextbus.actors.compacting import reduction_options
from contextbus.core.compaction import reduction as reducing
from contextbus.core.compaction.counting import count_candidate
from contextbus.core.compaction.ranges import replayed_message
from contextbus.core.compaction.reduction import (
    Ask,
    CannotFit,
    CountComposed,
    Reduced,
    Reduction,
    Request,
)
from contextbus.core.compaction.request_items import RequestItems
from contextbus.core.estimate import Estimator
from contextbus.core.run_state import RunState
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import InvalidRequestError
from contextbus_protocol.events import CompactionStarted

replace = msgspec.structs.replace


class Planned(msgspec.Struct, frozen=True):
    """A reduction up to where a summariser is asked: ``pieces`` is the number of texts that it would get."""

    reduction: Reduction
    pieces: int


class Counts:
    """What candidates cost: by the run's estimator, or what the host counted, in its order (C.C.7).

    A summary that is not there yet costs nothing where the estimator is a tokenizer: only texts of the log are counted.
    """

    def __init__(self, request: RequestItems, estimator: Estimator, host_counts: Sequence[int] | None) -> None:
        self._request = request
        self._estimator = estimator
        self._given: Iterator[int] | None = None if host_counts is None else iter(host_counts)
        self._knows_texts = estimator.spec.kind == "heuristic"

    def count(self, asked: Request) -> int:
        """Count a candidate.

        Raises:
            InvalidRequestError: the host counted less than was asked of it.
        """
        if self._given is not None:
            counted = next(self._given, None)
            if counted is None:
                raise InvalidRequestError("the host counted fewer candidates than there are")
            return counted
        if isinstance(asked, CountComposed) and asked.summary == "" and not self._knows_texts:
            asked = replace(asked, summary=None)
        return count_candidate(self._request, asked, self._estimator)

    def count_last(self, asked: Request) -> int:
        """Count the last candidate; the host may have counted a summary before it that was refused."""
        rest = [] if self._given is None else [*self._given]
        return rest[-1] if rest else self.count(asked)

    def count_input(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of what a summariser is given; a tokenizer's are not known, and what is not known fits."""
        return self._estimator.estimate(messages) if self._knows_texts else 0

    @property
    def is_over(self) -> bool:
        """Whether all that the host counted was asked for."""
        return self._given is None or next(self._given, None) is None


def plan_again(
    state: RunState, request: RequestItems, started: CompactionStarted, counts: Counts, end: int | None = None
) -> Planned | CannotFit:
    """The reduction of a run's request history up to its first question to a summariser, or why there is none.

    Raises:
        InvalidRequestError: the host counted less than was asked of it.
    """
    reduction, asked = reducing.begin(request.items, reduction_options(state, started, request, end))
    while not isinstance(asked, Ask):
        if isinstance(asked, Reduced | CannotFit):
            assert isinstance(asked, CannotFit)
            return asked
        reduction, asked = reducing.advance(reduction, counts.count(asked), counts.count_input)
    return Planned(reduction, len(reduction.pieces))


def finish_again(
    reduction: Reduction, counts: Counts, summary: str | None, *, pieces: int, usages: tuple[object, ...]
) -> Reduced | CannotFit:
    """What came of a planned range with the recorded summary, or without one.

    Raises:
        InvalidRequestError: the host counted less than was asked of it.
    """
    reduction = replace(reduction, asked=pieces, usages=usages)
    if summary is None:
        reduction, asked = reducing.drop(reduction)
        tokens = counts.count_last(asked)
    else:
        asked = CountComposed(reduction.start, reduction.end, reduction.replayed, summary)
        reduction = replace(reduction, phase="final", summary=summary)
        tokens = counts.count(asked)
    _, outcome = reducing.advance(reduction, tokens, counts.count_input)
    assert isinstance(outcome, Reduced | CannotFit)
    return outcome


def dropped_range(outcome: CannotFit, state: RunState, request: RequestItems, started: CompactionStarted) -> Reduction:
    """The range of a reduction that had no room for a summary, as one that goes without (C.X.5)."""
    reduction, _ = reducing.begin(request.items, reduction_options(state, started, request))
    replayed = replayed_message(request.items, outcome.start, outcome.end)
    return replace(reduction, before=outcome.before, start=outcome.start, end=outcome.end, replayed=replayed)
