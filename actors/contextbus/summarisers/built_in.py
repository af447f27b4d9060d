"""The summariser that needs no model and no network (C.X.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from contextbus.core.estimate import make_estimator
from contextbus.summarisers.interface import SummaryRequest
from contextbus.summarisers.prompt import write_prompt
from contextbus.user_functions import UserFunction
from contextbus_protocol import subjects
from contextbus_protocol.chat import ChatMessage

EXTRACTIVE_ID: Final = "extractive"

LONGEST_SHARE: Final = 0.5
"""The share of what it is given that a summary takes at the most: a copy is none, and would be refused (C.X.4)."""

Count = Callable[[str], int]
"""Counts a text, in tokens."""


class ExtractiveSummariser:
    """Picks what matters out of the messages, the same for the same messages; it runs in threads of its own.

    Args:
        id: The name of the summariser.
        count: Counts a text, in tokens; the default estimator without it.

    Raises:
        InvalidTypeError: the id is not usable.
    """

    def __init__(
        self,
        *,
        id: str = EXTRACTIVE_ID,  # noqa: A002  (the word that users write)
        count: Count | None = None,
    ) -> None:
        subjects.encode_name(id)
        self.id = id
        self._count = make_estimator().count if count is None else count
        self._extract = UserFunction(_extract, name=id, arguments=3)

    async def summarise(self, request: SummaryRequest) -> str:
        """Extract within the allowance, and within a share of the messages."""
        return cast("str", await self._extract(request.messages, request.max_output_tokens, self._count))


def _extract(messages: Sequence[ChatMessage], max_tokens: int, count: Count) -> str:
    # Its tables take a tenth of a second to load, which most processes never need.
    from contextbus.summarisers.extractive import extract_summary  # noqa: PLC0415  # as said above

    given = count(write_prompt(messages))
    return extract_summary(messages, min(max_tokens, max(1, int(given * LONGEST_SHARE))), count)


def extractive_summariser(
    *,
    id: str = EXTRACTIVE_ID,  # noqa: A002  (the word that users write)
    count: Count | None = None,
) -> ExtractiveSummariser:
    """Make the summariser that needs no model (C.X.9); arguments as of ``ExtractiveSummariser``."""
    return ExtractiveSummariser(id=id, count=count)
