"""What is asked of workers: a question of one kind, an answer of the same, and what is believed of an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Generic, TypeVar

import msgspec

from contextbus.core.candidates import CheckedCandidates
from contextbus.core.compaction.finish import normalise_finish
from contextbus_protocol import codec, subjects
from contextbus_protocol.compaction import Summarise, Summarised, SummaryFailed, SummaryPart
from contextbus_protocol.errors import ContextBusError, word_of
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import LONGEST_MODEL, MAX_SAFE_INTEGER, SOURCE_KINDS, SourceUsage, Usage

LONGEST_SUMMARY: Final = 1024 * 1024
"""The most bytes that the texts of a summary may have together; an allowance of 2,048 tokens needs far less."""
MOST_PARTS: Final = 1024

Question = Query | Summarise
Offer = Offered | Failed
SummaryAnswer = Summarised | SummaryFailed

Q = TypeVar("Q", bound=Question)
A = TypeVar("A", bound=Offer | SummaryAnswer)


class WorkerKind(ABC, Generic[Q, A]):
    """One kind of worker: what it is asked, and what may come of that.

    Attributes:
        word: What lines of the log call one.
        question: What it takes.
    """

    word: str
    question: type[Q]

    @abstractmethod
    def subject(self, tenant: str, name: str) -> str:
        """Where the workers of a name take questions.

        Raises:
            InvalidTypeError: the name fits no subject.
        """

    @abstractmethod
    def name(self, question: Q) -> str:
        """Who is asked."""

    @abstractmethod
    def fail(self, question: Q, code: str, origin_code: str | None = None, origin_type: str | None = None) -> A:
        """Make the answer that nothing came of a question."""

    @abstractmethod
    def check(self, result: object) -> A | None:
        """Give back what can be believed of what a function returned, if it is an answer at all."""

    @abstractmethod
    def accept(self, question: Q, message: AnyMessage) -> A | None:
        """Give back what can be believed of what came over the bus, if it answers the question."""

    @abstractmethod
    def fits(self, question: Q, answer: A) -> bool:
        """Whether an answer belongs to a question."""


class SourceWorkers(WorkerKind[Query, Offer]):
    """Sources, which are asked for candidates."""

    word = "source"
    question = Query

    def subject(self, tenant: str, name: str) -> str:
        """Where the workers of a source take queries."""
        return subjects.query(tenant, name)

    def name(self, question: Query) -> str:
        """The source."""
        return question.source

    def fail(
        self, question: Query, code: str, origin_code: str | None = None, origin_type: str | None = None
    ) -> Failed:
        """Make the failure of a query."""
        return Failed(
            run=question.run,
            token=question.token,
            source=question.source,
            code=code,
            origin_code=origin_code,
            origin_type=origin_type,
        )

    def check(self, result: object) -> Offer | None:
        """Read an answer as if it had crossed the bus: a Struct made in Python may hold anything."""
        if not isinstance(result, Offered | Failed):
            return None
        if type(result) is Offered and type(result.candidates) is CheckedCandidates and result.kind in SOURCE_KINDS:
            return result  # a handler of ours has looked at every field
        checked = _cross(result)
        if not isinstance(checked, Offered | Failed) or not all(map(_is_model, checked.usage)):
            return None
        return checked if isinstance(checked, Offered) else _only_words(checked)

    def accept(self, question: Query, message: AnyMessage) -> Offer | None:
        """Give back an answer to the query; the actor checks what is in it."""
        return message if isinstance(message, Offered | Failed) and self.fits(question, message) else None

    def fits(self, question: Query, answer: Offer) -> bool:
        """Whether run, token and source are the query's."""
        return answer.run == question.run and answer.token == question.token and answer.source == question.source


class SummariserWorkers(WorkerKind[Summarise, SummaryAnswer]):
    """Summarisers, which are asked for a summary (C.F.10)."""

    word = "summariser"
    question = Summarise

    def subject(self, tenant: str, name: str) -> str:
        """Where the workers of a summariser take requests."""
        return subjects.summarise(tenant, name)

    def name(self, question: Summarise) -> str:
        """The summariser."""
        return question.summariser

    def fail(
        self, question: Summarise, code: str, origin_code: str | None = None, origin_type: str | None = None
    ) -> SummaryFailed:
        """Make the failure of a request."""
        return SummaryFailed(
            run=question.run,
            token=question.token,
            summariser=question.summariser,
            code=code,
            origin_code=origin_code,
            origin_type=origin_type,
        )

    def check(self, result: object) -> SummaryAnswer | None:
        """Read an answer as if it had crossed the bus; whatever is no word or no count is not believed."""
        if not isinstance(result, Summarised | SummaryFailed):
            return None
        checked = _cross(result)
        if not isinstance(checked, Summarised | SummaryFailed) or not _is_usage(checked.usage):
            return None
        if isinstance(checked, SummaryFailed):
            return _only_words(checked)
        if not are_parts(checked.parts):
            return None
        return msgspec.structs.replace(checked, finish_reason=normalise_finish(checked.finish_reason))

    def accept(self, question: Summarise, message: AnyMessage) -> SummaryAnswer | None:
        """Give back an answer to the request, checked as one of this process is."""
        checked = self.check(message)
        return checked if checked is not None and self.fits(question, checked) else None

    def fits(self, question: Summarise, answer: SummaryAnswer) -> bool:
        """Whether run, token and summariser are the request's."""
        return (
            answer.run == question.run and answer.token == question.token and answer.summariser == question.summariser
        )


SOURCES: Final = SourceWorkers()
SUMMARISERS: Final = SummariserWorkers()


def kind_of(question: Question) -> WorkerKind[Any, Any]:
    """Who is asked a question."""
    return SOURCES if isinstance(question, Query) else SUMMARISERS


def are_parts(parts: tuple[SummaryPart, ...]) -> bool:
    """Whether parts are few and short enough, and each type is a word (C.G.5)."""
    if len(parts) > MOST_PARTS or not all(word_of(part.type) for part in parts):
        return False
    return sum(len(part.text.encode()) for part in parts) <= LONGEST_SUMMARY


F = TypeVar("F", Failed, SummaryFailed)


def _only_words(failed: F) -> F:
    """What a worker calls its failure is a word, or is not told: content must not leak through it."""
    return msgspec.structs.replace(
        failed,
        code=word_of(failed.code) or "error",
        origin_code=word_of(failed.origin_code),
        origin_type=word_of(failed.origin_type),
    )


def _cross(result: Offer | SummaryAnswer) -> AnyMessage | None:
    try:
        return codec.decode_message(codec.encode_message(result))
    except ContextBusError:
        return None


def _is_model(usage: SourceUsage) -> bool:
    return 0 < len(usage.model) <= LONGEST_MODEL and usage.model.isprintable()


def _is_usage(usage: Usage | None) -> bool:
    return usage is None or all(0 <= count <= MAX_SAFE_INTEGER for count in msgspec.structs.astuple(usage))
