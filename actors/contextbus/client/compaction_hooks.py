"""The host's functions of a compaction: triggers, its own count, and what it makes of a too large history (D.W.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from contextbus.client.callbacks import Answerer, settle_value
from contextbus.client.compaction_options import CompactionSetup
from contextbus.client.given import GivenMessage, read_given
from contextbus.client.request_view import RequestView
from contextbus.client.triggers import CompactionSnapshot, DataTrigger
from contextbus.core.compaction.policy import check_count
from contextbus.core.history import digest_message, normalise
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError


class CompactionHooks(msgspec.Struct, frozen=True):
    """The functions of one run's compaction."""

    setup: CompactionSetup

    def answerers(self) -> dict[CallbackName, Answerer]:
        """What answers for each of the functions that there are."""
        found: dict[CallbackName, Answerer] = {}
        if any(not isinstance(trigger, DataTrigger) for trigger in self.setup.triggers):
            found["compaction-trigger"] = self._match
        if self.setup.count_tokens is not None:
            found["count-tokens"] = self._count
        if self.setup.on_budget_exceeded is not None:
            found["budget-exceeded"] = self._shorten
        return found

    async def _match(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        """What a trigger says of the history as the model gets it, by its truth (C.H.8, C.H.10)."""
        asked, triggers = question.trigger, self.setup.triggers
        if asked is None or not 0 <= asked.index < len(triggers):
            raise InvalidRequestError("the run has no such trigger; were its options changed meanwhile?")
        snapshot = CompactionSnapshot(
            messages=view.messages(),
            tokens=asked.tokens,
            cache_age_ms=asked.cache_age_ms,
            cache_retention_ms=asked.cache_retention_ms,
        )
        matches = bool(await settle_value(triggers[asked.index](snapshot)))
        return CallbackAnswered(run=question.run, token=question.token, name=question.name, matches=matches)

    async def _count(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        """What the host counts of a complete candidate (C.C.4, C.C.5)."""
        if question.composition is None or self.setup.count_tokens is None:
            raise InvalidRequestError("there is nothing to count")
        candidate = view.compose(question.composition)
        count = check_count("count_tokens", await settle_value(self.setup.count_tokens(candidate)))
        return CallbackAnswered(run=question.run, token=question.token, name=question.name, count=count)

    async def _shorten(self, question: AskCallback, view: RequestView) -> CallbackAnswered:
        """What the host makes of a history that is too large; the same one again is no change (P.J.4, P.J.8)."""
        answer = CallbackAnswered(run=question.run, token=question.token, name=question.name)
        if question.budget is None or self.setup.on_budget_exceeded is None:
            return answer
        history = view.without_blocks()
        given = await settle_value(self.setup.on_budget_exceeded(history, question.budget))
        if given is None:
            return answer
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise InvalidTypeError(f"on_budget_exceeded gives messages or None, not {type(given).__name__}")
        messages = tuple(map(normalise, read_given(cast("Sequence[GivenMessage]", given))))
        if not messages:
            raise InvalidTypeError("on_budget_exceeded gives at least one message, or None")
        if [digest_message(m) for m in messages] == [digest_message(m) for m in history]:
            return answer
        return msgspec.structs.replace(answer, messages=messages)
