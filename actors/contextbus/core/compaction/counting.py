"""What a candidate of a reduction costs in a run: sums over its messages (C.C.11)."""

from __future__ import annotations

from contextbus.core.compaction.composition import summary_message
from contextbus.core.compaction.reduction import CountComposed, CountRange, CountTail, CountWhole, Request
from contextbus.core.compaction.request_items import RequestItems
from contextbus.core.compaction.saving import Archive, archive_of
from contextbus.core.estimate import Estimator
from contextbus_protocol.errors import InvalidTypeError


def count_candidate(
    request: RequestItems, asked: Request | None, estimator: Estimator, archive: Archive | None = None
) -> int:
    """The tokens of a candidate: sums of what each message costs (C.C.11).

    Args:
        request: the request history.
        asked: the candidate.
        estimator: the run's counter.
        archive: that of the candidate's range, where it was made already.
    """
    costs = [item.cost for item in request.items]
    match asked:
        case CountWhole():
            return estimator.tokens(sum(costs))
        case CountTail(start=start):
            return estimator.tokens(sum(costs[start:]))
        case CountRange(start=start, end=end):
            return estimator.tokens(sum(costs[start:end]))
        case CountComposed(start=start, end=end, replayed=replayed, summary=summary):
            total = sum(costs[:start]) + sum(costs[end:])
            if replayed is not None:
                total += costs[replayed]
            if summary is not None:
                archive = archive or archive_of(request, start, end)
                total += estimator.message(summary_message(summary, archive.reference))
            return estimator.tokens(total)
        case _:
            raise InvalidTypeError("nothing is to be counted")
