"""A source may do anything: one message comes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import msgspec
import pytest
from tests.sources.conftest import Ask

from contextbus.runtime.worker_answers import SOURCES
from contextbus.runtime.worker_calls import LocalWorker
from contextbus.sources.answers import MAX_ANSWER_BYTES, handler
from contextbus.sources.interface import FunctionSource, candidate
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import RangeError, ScopeConflictError
from contextbus_protocol.questions import Failed, Offered, Query
from contextbus_protocol.values import Candidate, Provenance, SourceUsage

GOOD = candidate("r", "a text", 1.0, 2, provenance=Provenance("asserted", ("host",)))
Find = Callable[[Query], Awaitable[list[Candidate]]]


def make(find: Find) -> FunctionSource:
    return FunctionSource(find, id="docs", kind="rag")


def returning(answer: object) -> FunctionSource:
    async def find(_query: Query) -> list[Candidate]:
        return cast("list[Candidate]", answer)

    return make(find)


@pytest.mark.rule("D.K.19")
async def test_what_is_found_is_offered_and_nothing_is_an_empty_tuple(ask: Ask) -> None:
    query = ask()
    offered = await handler(returning([GOOD]))(query)
    assert offered == Offered(run=query.run, token=query.token, source="docs", kind="rag", candidates=(GOOD,))
    assert await handler(returning([]))(query) == Offered(run=query.run, token=query.token, source="docs", kind="rag")


@pytest.mark.rule("D.C.16")
async def test_more_than_the_limit_is_offered_whole(ask: Ask) -> None:
    many = [candidate(str(n), f"text {n}", 1) for n in range(50)]
    offered = await handler(returning(many))(ask(limit=3))
    assert isinstance(offered, Offered)
    assert len(offered.candidates) == 50


@pytest.mark.rule("D.C.4", "D.C.17", "D.K.21", "D.K.27")
@pytest.mark.parametrize(
    "bad",
    [
        None,
        "text",
        {"record_id": "r"},
        [None],
        [GOOD, "text"],
        [GOOD, msgspec.structs.replace(GOOD, score=float("nan"))],
        [msgspec.structs.replace(GOOD, score=float("inf"))],
        [msgspec.structs.replace(GOOD, score=True)],
        [msgspec.structs.replace(GOOD, score="1")],
        [candidate("r", "", 1)],
        [msgspec.structs.replace(GOOD, text=b"a text")],
        [msgspec.structs.replace(GOOD, text="other")],
        [msgspec.structs.replace(GOOD, digest="")],
        [msgspec.structs.replace(GOOD, record_id="")],
        [msgspec.structs.replace(GOOD, record_id=7)],
        [msgspec.structs.replace(GOOD, record_id="\ud800")],
        [msgspec.structs.replace(GOOD, revision=-1)],
        [msgspec.structs.replace(GOOD, revision=1.5)],
        [msgspec.structs.replace(GOOD, tokens="7")],
        [msgspec.structs.replace(GOOD, mandatory="yes")],
        [msgspec.structs.replace(GOOD, provenance="host")],
        [msgspec.structs.replace(GOOD, provenance=Provenance(origin=cast("str", 7)))],
        [msgspec.structs.replace(GOOD, provenance=Provenance("a", cast("tuple[str, ...]", ["host"])))],
        [msgspec.structs.replace(GOOD, query=7)],
    ],
)
async def test_one_malformed_candidate_fails_the_whole_answer(ask: Ask, bad: object) -> None:
    answer = await handler(returning(bad))(ask())
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_code, answer.origin_type) == ("malformed", None, None)


@pytest.mark.rule("D.K.27", "D.W.2")
async def test_what_is_malformed_is_told_with_its_place(ask: Ask) -> None:
    seen: list[str] = []
    answer = await handler(
        returning([GOOD, msgspec.structs.replace(GOOD, score=float("nan"))]),
        on_error=lambda _query, exc: seen.append(str(exc)),
    )(ask())
    assert isinstance(answer, Failed)
    assert seen == ["candidate 1: a candidate's score must be a finite number"]


@pytest.mark.rule("D.W.2", "D.D.8")
async def test_an_exception_becomes_code_and_type_without_its_text(ask: Ask) -> None:
    seen: list[BaseException] = []

    class QuotaError(RuntimeError):
        code = "quota"

    error = QuotaError("the secret text")

    async def find(_query: Query) -> list[Candidate]:
        raise error

    answer = await handler(make(find), on_error=lambda _query, exc: seen.append(exc))(ask())
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_code, answer.origin_type) == ("error", "quota", "QuotaError")
    assert "secret" not in str(answer)
    assert seen == [error]


@pytest.mark.rule("D.W.2", "D.D.8")
@pytest.mark.parametrize("code", ["the user asked about tea", "x" * 65, "", 7, property(lambda _self: 1 / 0)])
async def test_a_code_or_type_that_is_no_word_is_not_passed_on(ask: Ask, code: object) -> None:
    chatty = type("the user asked about tea", (LookupError,), {"code": code})

    async def find(_query: Query) -> list[Candidate]:
        raise chatty

    answer = await handler(make(find))(ask())
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_code, answer.origin_type) == ("error", "error", "LookupError")
    # a function that a host calls without a handler of ours
    answers: asyncio.Queue[Offered | Failed] = asyncio.Queue()
    tasks: set[asyncio.Task[object]] = set()
    LocalWorker(SOURCES, "docs", find, 8, tasks.add).call(ask(), answers.put_nowait)
    answer = await answers.get()
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_code, answer.origin_type) == ("error", None, "LookupError")


@pytest.mark.rule("D.W.2", "D.D.8")
async def test_what_a_function_calls_its_failure_is_a_word_or_not_told(ask: Ask) -> None:
    query, told = ask(), "the user asked about tea"
    plain = Failed(run=query.run, token=query.token, source="docs", code="error")
    offered = Offered(run=query.run, token=query.token, source="docs", kind="rag", candidates=())

    async def call(result: Offered | Failed) -> Offered | Failed:
        async def find(_query: Query) -> Offered | Failed:
            return result

        answers: asyncio.Queue[Offered | Failed] = asyncio.Queue()
        tasks: set[asyncio.Task[object]] = set()
        LocalWorker(SOURCES, "docs", find, 8, tasks.add).call(query, answers.put_nowait)
        return await answers.get()

    assert await call(msgspec.structs.replace(plain, code=told, origin_code=told, origin_type=told)) == plain
    named = msgspec.structs.replace(plain, code="quota", origin_code="q-1", origin_type="QuotaError")
    named = msgspec.structs.replace(named, usage=(SourceUsage("m", 1),))
    assert await call(named) == named
    for model in ("", "x" * 129, "a\nb"):
        for result in (named, offered):
            malformed = await call(msgspec.structs.replace(result, usage=(SourceUsage(model, 1),)))
            assert malformed == msgspec.structs.replace(plain, code="malformed")


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), ExceptionGroup("g", [ValueError()])])
async def test_neither_exit_nor_a_cancellation_of_its_own_gets_out(ask: Ask, error: BaseException) -> None:
    async def find(_query: Query) -> list[Candidate]:
        raise error

    answer = await handler(make(find))(ask())
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_type) == ("error", type(error).__name__)


@pytest.mark.rule("D.W.5")
async def test_our_own_cancellation_passes(ask: Ask) -> None:
    async def find(_query: Query) -> list[Candidate]:
        await anyio.sleep_forever()
        return []

    task = asyncio.ensure_future(handler(make(find))(ask()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_scope_conflict_is_named(ask: Ask) -> None:
    async def find(_query: Query) -> list[Candidate]:
        raise ScopeConflictError("outside")

    answer = await handler(make(find))(ask())
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_code) == ("scope", "scope_conflict")


@pytest.mark.parametrize("seconds", [0.02, 0.0, -1.0, float("nan")])
async def test_a_source_that_is_late_has_failed(ask: Ask, seconds: float) -> None:
    async def find(_query: Query) -> list[Candidate]:
        await anyio.sleep(10)
        return []

    with anyio.fail_after(2):
        answer = await handler(make(find))(ask(seconds_left=seconds))
    assert isinstance(answer, Failed)
    assert answer.code == "timeout"


async def test_beyond_its_concurrency_it_is_busy_and_then_free_again(ask: Ask) -> None:
    go = anyio.Event()

    async def find(_query: Query) -> list[Candidate]:
        await go.wait()
        return []

    answers: list[Offered | Failed] = []
    limited = handler(make(find), concurrency=2)

    async def one() -> None:
        answers.append(await limited(ask()))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one)
        await anyio.wait_all_tasks_blocked()
        assert [answer.code for answer in answers if isinstance(answer, Failed)] == ["busy"]
        go.set()
    assert isinstance(await limited(ask()), Offered)
    with pytest.raises(RangeError):
        handler(make(find), concurrency=0)


async def test_plain_functions_that_hang_take_up_their_own_threads_only(ask: Ask) -> None:
    go = threading.Event()

    def find(query: Query) -> list[Candidate]:
        if query.text == "hang":
            go.wait(5)
        return []

    answer = handler(FunctionSource(find, id="docs", kind="rag", threads=2))
    before = threading.active_count()
    try:
        for _ in range(5):
            late = await answer(ask("hang", seconds_left=0.02))
            assert isinstance(late, Failed)
            assert late.code == "timeout"
        assert threading.active_count() - before <= 2
    finally:
        go.set()
    assert isinstance(await answer(ask("tea")), Offered)


async def test_an_answer_that_is_too_large_is_refused(ask: Ask) -> None:
    answer = await handler(returning([candidate("r", "x" * (MAX_ANSWER_BYTES + 1), 1)]))(ask())
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_code) == ("error", "payload_too_large")


@pytest.mark.rule("D.G.26")
@pytest.mark.parametrize(
    "large",
    [
        {"match": "x" * MAX_ANSWER_BYTES},
        {"query": "x" * MAX_ANSWER_BYTES},
        {"provenance": Provenance("x" * MAX_ANSWER_BYTES, ())},
        {"provenance": Provenance(None, ("x" * 1024,) * (MAX_ANSWER_BYTES // 1024))},
        {"text": "\u20ac" * (MAX_ANSWER_BYTES // 2)},
    ],
    ids=["match", "query", "origin", "kinds", "text in bytes"],
)
async def test_every_field_of_an_answer_counts_in_bytes(large: dict[str, Any], ask: Ask) -> None:
    fields: dict[str, Any] = {"record_id": "r", "text": "text", "score": 1.0, **large}
    offered = Candidate(**fields, digest=digest_text(fields["text"]))
    answer = await handler(returning([offered]))(ask())
    assert isinstance(answer, Failed)
    assert (answer.code, answer.origin_code) == ("error", "payload_too_large")
