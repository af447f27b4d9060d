"""A summariser's answer to one request that came over the bus, or as if it had (D.W.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from contextbus.runtime.worker_answers import SUMMARISERS
from contextbus.summarisers.interface import (
    MalformedSummaryError,
    Summariser,
    SummaryRequest,
    check_summariser,
    read_answer,
)
from contextbus_protocol.compaction import Summarise, Summarised, SummaryFailed
from contextbus_protocol.errors import origin_of

DEFAULT_CONCURRENCY: Final = 8

OnError = Callable[[Summarise, BaseException], None]


class Handler:
    """Answers the requests to one summariser; a host counts those under way, and answers when it hangs.

    Args:
        summariser: The summariser.
        on_error: Told the exception that it raised, or what its answer lacks, in process only; the text goes no
            further (D.W.2).

    Raises:
        InvalidTypeError: it is no usable summariser.
    """

    def __init__(self, summariser: Summariser, *, on_error: OnError | None = None) -> None:
        self.summariser = check_summariser(summariser)
        self._on_error = on_error

    async def __call__(self, question: Summarise) -> Summarised | SummaryFailed:
        """Ask the summariser within the time that is left; every outcome but cancellation is a message."""
        request = SummaryRequest(
            messages=question.messages,
            instructions=question.instructions,
            max_output_tokens=question.max_output_tokens,
        )
        try:
            # The scope also tells a model's client how long the call may take.
            with anyio.move_on_after(question.seconds_left):
                summary = read_answer(await self.summariser.summarise(request))
                return Summarised(
                    run=question.run,
                    token=question.token,
                    summariser=question.summariser,
                    parts=summary.parts,
                    finish_reason=summary.finish_reason,
                    usage=summary.usage,
                )
        except MalformedSummaryError as exc:
            return self._raised(question, exc, malformed=True)
        except (Exception, SystemExit) as exc:  # a summariser may raise anything, and exits only its own request
            return self._raised(question, exc)
        return SUMMARISERS.fail(question, "timeout")

    def _raised(self, question: Summarise, exc: BaseException, *, malformed: bool = False) -> SummaryFailed:
        if self._on_error is not None:
            self._on_error(question, exc)
        if malformed:
            return SUMMARISERS.fail(question, "malformed")
        origin_code, origin_type = origin_of(exc)
        return SUMMARISERS.fail(question, "error", origin_code or "error", origin_type)
