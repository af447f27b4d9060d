"""A source's answer to one query: bounded in time, number and size, and checked before anybody sees it.

The same code answers in process and behind a bus.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import anyio
import msgspec

from contextbus.core.candidates import check_candidates
from contextbus.runtime.telling import OnWarning, tell_warnings
from contextbus.sources.accounting import Charge, unaccounted_tokens
from contextbus.sources.interface import Answer, FoundRecords, MalformedAnswerError, Source, check_source
from contextbus.user_functions import takes_charge
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import RangeError, ScopeConflictError, origin_of
from contextbus_protocol.package import ContextWarning
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import MAX_SAFE_INTEGER, Candidate, Provenance

DEFAULT_CONCURRENCY: Final = 8
MAX_CANDIDATES: Final = 10_000
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
LONGEST_ID: Final = 512
MAX_WARNED_RUNS: Final = 4096

OnError = Callable[[Query, BaseException], None]


class _Charged(Protocol):
    """The query function of a source that charges what it spends."""

    async def __call__(self, query: Query, *, charge: Charge | None = None) -> Answer | FoundRecords: ...


class Handler:
    """Answers the queries of one source, ``concurrency`` at once and ``busy`` beyond.

    Args:
        source: The source.
        concurrency: How many queries run at once.
        on_error: Told the exception that a source raised, or what its answer lacks, in process only; the text goes
            no further (D.W.2).
        on_warning: Told ``unaccounted-usage`` once for each run that pays, for a host that asks by itself (D.L.5);
            async or not.

    Raises:
        InvalidTypeError: it is no usable source (D.K.20).
        RangeError: ``concurrency`` is below 1.
    """

    def __init__(
        self,
        source: Source,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        on_error: OnError | None = None,
        on_warning: OnWarning | None = None,
    ) -> None:
        if concurrency < 1:
            raise RangeError("concurrency must be at least 1")
        self.source = check_source(source)
        self.running = 0
        self._concurrency = concurrency
        self._on_error = on_error
        self._on_warning = on_warning
        self._takes_charge = takes_charge(source.query, 1)
        self._warned: OrderedDict[str, None] = OrderedDict()

    async def __call__(self, query: Query) -> Offered | Failed:
        """Ask the source; every outcome but cancellation is a message."""
        if self.running >= self._concurrency:
            return self._failed(query, "busy")
        self.running += 1
        charge = Charge() if query.accounting is not None and self._takes_charge else None
        try:
            answer = await self._ask(query, charge)
        finally:
            self.running -= 1
            if charge is not None:
                charge.close()
                # What was spent is spent, also if nothing came of it; told outside the query's own time.
                if query.accounting is not None:
                    await self._warn(query.accounting.run, charge)
        if charge is not None and isinstance(answer, Failed):
            return msgspec.structs.replace(answer, usage=charge.usage())  # spent all the same
        return answer

    async def _ask(self, query: Query, charge: Charge | None) -> Offered | Failed:
        seconds = query.seconds_left if query.seconds_left > 0 else 0.0  # NaN is not above 0 either
        try:
            with anyio.move_on_after(seconds):
                return await self._find(query, charge)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            # Nobody cancels us: the source let out a cancellation of its own, and that is a failure.
            if task is None or task.cancelling():
                raise
            return self._raised(query, exc)
        except MalformedAnswerError as exc:
            return self._raised(query, exc, "malformed")
        except ScopeConflictError as exc:
            return self._raised(query, exc, "scope")
        except (Exception, SystemExit) as exc:  # a source may raise anything, and exits only its own query
            return self._raised(query, exc)
        return self._failed(query, "timeout")

    async def _find(self, query: Query, charge: Charge | None) -> Offered | Failed:
        if charge is None:
            return self._offer(query, await self.source.query(query))
        return self._offer(query, await cast("_Charged", self.source.query)(query, charge=charge), charge)

    def _offer(self, query: Query, found: object, charge: Charge | None = None) -> Offered | Failed:
        answer: object = found.candidates if isinstance(found, FoundRecords) else found
        erasures = found.erasures if isinstance(found, FoundRecords) else None
        if not _is_count(erasures):
            raise MalformedAnswerError("erasures must be the sequence of a commit, an integer from 0")
        # Before anything is read: the digests of a very long answer would hold everybody up.
        if _count(answer) > MAX_CANDIDATES:
            return self._failed(query, "error", "payload_too_large")
        candidates = check_answer(answer)
        if sum(map(_measure, candidates)) > MAX_ANSWER_BYTES:
            return self._failed(query, "error", "payload_too_large")
        return Offered(
            run=query.run,
            token=query.token,
            source=self.source.id,
            kind=self.source.kind,
            candidates=candidates,
            usage=() if charge is None else charge.usage(),
            erasures=erasures,
        )

    async def _warn(self, run: str, charge: Charge) -> None:
        if self._on_warning is None or run in self._warned or unaccounted_tokens(charge.usage()) is None:
            return
        self._warned[run] = None
        if len(self._warned) > MAX_WARNED_RUNS:
            self._warned.popitem(last=False)
        warning = ContextWarning("unaccounted-usage", source=self.source.id)
        await tell_warnings(self._on_warning, [warning], source=self.source.id)

    def _raised(self, query: Query, exc: BaseException, code: str = "error") -> Failed:
        if self._on_error is not None:
            self._on_error(query, exc)
        if code == "malformed":
            return self._failed(query, code)
        origin_code, origin_type = origin_of(exc)
        return self._failed(query, code, origin_code or "error", origin_type)

    def _failed(
        self, query: Query, code: str, origin_code: str | None = None, origin_type: str | None = None
    ) -> Failed:
        return Failed(
            run=query.run,
            token=query.token,
            source=self.source.id,
            code=code,
            origin_code=origin_code,
            origin_type=origin_type,
        )


def handler(
    source: Source,
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    on_error: OnError | None = None,
    on_warning: OnWarning | None = None,
) -> Handler:
    """Make the in-process form of a worker: ``async (Query) -> Offered | Failed``."""
    return Handler(source, concurrency=concurrency, on_error=on_error, on_warning=on_warning)


def check_answer(answer: object) -> tuple[Candidate, ...]:
    """Give back what a source returned as candidates, if all of them are well formed (D.K.27).

    Raises:
        MalformedAnswerError: it is no list or tuple, or one of them is no candidate, has no id or text, a score that
            is not finite (D.C.4), a digest that is not the text's (D.K.21), or a revision that is none (D.C.18).
    """
    if not isinstance(answer, list | tuple):
        raise MalformedAnswerError("a source must return a list of candidates")
    items = cast("Sequence[object]", answer)
    checked = check_candidates(items)
    if checked is not None and all(len(c.record_id) <= LONGEST_ID for c in checked):
        return checked
    # Something is unusual: say what, or take what is only unusual.
    return tuple(_check_place(place, item) for place, item in enumerate(items))


def _check_place(place: int, item: object) -> Candidate:
    try:
        return _check_candidate(item)
    except MalformedAnswerError as exc:
        raise MalformedAnswerError(f"candidate {place}: {exc}") from None


def _check_candidate(item: object) -> Candidate:
    if not isinstance(item, Candidate):
        raise MalformedAnswerError("a source must return candidates; contextbus.sources.interface.candidate makes them")
    # The annotations are promises of a user's code: nothing is taken for granted.
    values: dict[str, object] = {name: getattr(item, name) for name in item.__struct_fields__}
    record_id, text, score = values["record_id"], values["text"], values["score"]
    if not _is_text(record_id) or len(item.record_id) > LONGEST_ID:
        raise MalformedAnswerError(f"a record id must be a text of 1 to {LONGEST_ID} characters")
    if not _is_text(text):
        raise MalformedAnswerError("a candidate's text must not be empty")
    if isinstance(score, bool) or not isinstance(score, float | int) or not math.isfinite(score):
        raise MalformedAnswerError("a candidate's score must be a finite number")
    if item.digest != digest_text(item.text):
        raise MalformedAnswerError("a candidate's digest must be the SHA-256 of its text")
    if not (_is_count(values["revision"]) and isinstance(values["mandatory"], bool)):
        raise MalformedAnswerError("a revision must be a non-negative integer, mandatory a bool")
    # Whether a count of tokens is believed is decided later (D.K.22); here it only has to be a number.
    if not (values["tokens"] is None or type(values["tokens"]) is int):
        raise MalformedAnswerError("tokens must be an integer")
    if not all(values[name] is None or _is_text(values[name], empty=True) for name in ("query", "match")):
        raise MalformedAnswerError("query and match must be texts")
    _check_provenance(values["provenance"])
    return item


def _check_provenance(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, Provenance):
        raise MalformedAnswerError("provenance must be a Provenance")
    origin = cast("object", value.origin)
    kinds = cast("object", value.source_kinds)
    if not (origin is None or _is_text(origin)):
        raise MalformedAnswerError("the origin must be a text")
    if not isinstance(kinds, tuple) or not all(_is_text(kind) for kind in cast("Sequence[object]", kinds)):
        raise MalformedAnswerError("source_kinds must be a tuple of texts")


def _count(answer: object) -> int:
    return len(cast("Sequence[object]", answer)) if isinstance(answer, list | tuple) else 0


def _measure(candidate: Candidate) -> int:
    """The bytes of a candidate's texts: every one of them is stored and sent."""
    size = _count_bytes(candidate.record_id) + _count_bytes(candidate.text)
    size += _count_bytes(candidate.query or "") + _count_bytes(candidate.match or "")
    origin = candidate.provenance
    if origin is None:
        return size
    return size + _count_bytes(origin.origin or "") + sum(map(_count_bytes, origin.source_kinds))


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _is_text(value: object, *, empty: bool = False) -> bool:
    if not isinstance(value, str) or not (value or empty):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value <= MAX_SAFE_INTEGER)
