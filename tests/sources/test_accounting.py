"""What a query costs: recorded where it is spent, told with the offer, and nothing else crosses a bus."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import anyio
import msgspec
import pytest
import structlog
from tests.sources.conftest import Ask
from tests.sources.embedders import HashEmbedder

from contextbus.runtime.bus import Bus, Frame
from contextbus.runtime.worker_answers import SOURCES
from contextbus.runtime.worker_calls import LocalWorker
from contextbus.sources.accounting import (
    MAX_MODELS,
    Charge,
    accounted_embedder,
    estimate_tokens,
    unaccounted_tokens,
)
from contextbus.sources.answers import handler
from contextbus.sources.embedding import Embedder
from contextbus.sources.interface import Answer, FunctionSource, candidate, source
from contextbus.sources.rag import rag_source
from contextbus.sources.worker import Worker
from contextbus_protocol import codec, subjects
from contextbus_protocol.errors import LimitError
from contextbus_protocol.package import ContextWarning
from contextbus_protocol.questions import Accounting, Failed, Offered, Query
from contextbus_protocol.values import MAX_SAFE_INTEGER, SourceUsage

PAID = Accounting("run-1", "request-1")
Rows = Sequence[object]


class Response(msgspec.Struct):
    """What a provider answers."""

    vectors: list[list[float]]
    tokens: object


async def respond(texts: Sequence[str]) -> Response:
    return Response([[1.0, 0.0] for _ in texts], 7)


def read_tokens(response: Response) -> int:
    return cast("int", response.tokens)


def read_vectors(response: Response) -> list[list[float]]:
    return response.vectors


ACCOUNTED = accounted_embedder(respond, model="small", usage_of=read_tokens, vectors_of=read_vectors)


async def usage_of(made: FunctionSource | Any, query: Query) -> tuple[SourceUsage, ...]:
    offered = await handler(made)(query)
    assert isinstance(offered, Offered)
    return offered.usage


def retrieving(embedder: Embedder) -> Any:
    """A source whose retrieve function hands its charge on."""

    async def retrieve(query: str, _top_k: int, *, charge: Charge | None = None) -> Rows:
        await embedder.embed([query], charge)
        return []

    return rag_source(retrieve=retrieve)


@pytest.mark.rule("D.L.1", "D.K.10")
async def test_with_accounting_a_retrieve_function_gets_a_charge_and_without_none(ask: Ask) -> None:
    given: list[dict[str, object]] = []

    async def retrieve(_query: str, _top_k: int, *, charge: object = "left out") -> Rows:
        given.append({"charge": charge})
        return []

    answer = handler(rag_source(retrieve=retrieve))
    await answer(ask(accounting=PAID))
    await answer(ask())
    assert isinstance(given[0]["charge"], Charge)
    assert given[1] == {"charge": "left out"}


@pytest.mark.rule("D.K.10")
async def test_a_function_that_does_not_ask_for_a_charge_gets_none(ask: Ask) -> None:
    given: list[dict[str, object]] = []

    async def anything(_query: str, _top_k: int, **options: object) -> Rows:
        given.append(options)
        return []

    async def plain(_query: str, _top_k: int) -> Rows:
        return []

    for retrieve in (anything, plain):
        assert await usage_of(rag_source(retrieve=retrieve), ask(accounting=PAID)) == ()
    assert given == [{}]


@pytest.mark.rule("D.K.10", "D.K.20")
def test_a_charge_without_a_default_is_refused_when_the_source_is_made() -> None:
    async def retrieve(_query: str, _top_k: int, *, charge: Charge) -> Rows:
        raise NotImplementedError

    def find(_query: Query, charge: Charge) -> Answer:
        raise NotImplementedError

    with pytest.raises(TypeError, match="charge=None"):
        rag_source(retrieve=cast("Any", retrieve))
    with pytest.raises(TypeError, match="charge=None"):
        FunctionSource(cast("Any", find), id="x", kind="rag")


@pytest.mark.rule("D.K.10", "D.L.6")
async def test_functions_async_or_not_and_objects_get_one_alike(ask: Ask) -> None:
    @source(id="later", kind="rag")
    async def later(_query: Query, *, charge: Charge | None = None) -> Answer:
        if charge is not None:
            charge(model="m", tokens=3, reported=True)
        return []

    @source(id="threaded", kind="rag")
    def threaded(_query: Query, charge: Charge | None = None) -> Answer:
        if charge is not None:
            charge(model="m", tokens=3, reported=True)
        return []

    class Own:
        id = "own"
        kind = "rag"
        required = False

        async def query(self, _query: Query, charge: Charge | None = None) -> Answer:
            if charge is not None:
                charge(model="m", tokens=3, reported=True)
            return []

    for made in (later, threaded, Own()):
        assert await usage_of(made, ask(accounting=PAID)) == (SourceUsage("m", 3, reported=True),)
        assert await usage_of(made, ask()) == ()


@pytest.mark.rule("D.L.3")
async def test_an_accounted_embedder_is_settled_with_what_was_reported(ask: Ask) -> None:
    usage = await usage_of(retrieving(Embedder(ACCOUNTED)), ask("tea", accounting=PAID))
    assert usage == (SourceUsage("small", 7, reported=True),)
    assert unaccounted_tokens(usage) is None


@pytest.mark.rule("D.L.3", "D.L.6")
async def test_an_embedder_that_reports_nothing_leaves_an_estimate_held(ask: Ask) -> None:
    async def silent(texts: Sequence[str], *, charge: Charge | None = None) -> list[list[float]]:
        del charge
        return [[1.0] for _ in texts]

    for embed in (HashEmbedder(), silent):
        usage = await usage_of(retrieving(Embedder(embed, name="e")), ask("green tea", accounting=PAID))
        assert usage == (SourceUsage("e", 3, reported=False),)
        assert unaccounted_tokens(usage) == 3


@pytest.mark.rule("D.L.3")
@pytest.mark.parametrize("tokens", [None, -1, "7", True, 1.5])
async def test_usage_that_is_none_leaves_the_estimate_held_and_the_vectors_good(
    tokens: object, capsys: pytest.CaptureFixture[str]
) -> None:
    async def odd(texts: Sequence[str]) -> Response:
        return Response([[1.0] for _ in texts], tokens)

    charge = Charge()
    embed = accounted_embedder(odd, model="small", usage_of=read_tokens, vectors_of=read_vectors)
    assert await embed(["secret tea"], charge=charge) == [[1.0]]
    assert charge.usage() == (SourceUsage("small", 3, reported=False),)
    told = capsys.readouterr().err
    assert "embedder_usage_unknown" in told
    assert "secret" not in told


@pytest.mark.rule("D.L.3")
async def test_a_call_that_fails_may_have_been_paid_for(ask: Ask) -> None:
    async def broken(_texts: Sequence[str]) -> Response:
        raise OSError

    async def retrieve(query: str, _top_k: int, *, charge: Charge | None = None) -> Rows:
        for embed in (accounted_embedder(broken, model="a", usage_of=read_tokens), broken):
            with pytest.raises(OSError):  # noqa: PT011  (the error of the embedder itself)
                await Embedder(cast("Any", embed), name="b").embed([query], charge)
        return []

    usage = await usage_of(rag_source(retrieve=retrieve), ask("tea", accounting=PAID))
    assert usage == (SourceUsage("a", 1, reported=False), SourceUsage("b", 1, reported=False))


@pytest.mark.rule("D.L.4")
async def test_a_charge_that_is_left_unused_costs_nothing(ask: Ask) -> None:
    async def retrieve(_query: str, _top_k: int, *, charge: Charge | None = None) -> Rows:
        assert charge is not None
        return []

    usage = await usage_of(rag_source(retrieve=retrieve), ask(accounting=PAID))
    assert usage == ()
    assert unaccounted_tokens(usage) is None


@pytest.mark.rule("D.L.2", "D.L.6")
async def test_the_usage_comes_with_the_offer_of_a_worker(bus: Bus, tenant: str, ask: Ask) -> None:
    frames: asyncio.Queue[Frame] = asyncio.Queue()
    subscription = await bus.subscribe(f"ctx.inbox.{tenant}.me.>", frames.put_nowait)
    query = ask("tea", source="rag", accounting=PAID)
    async with Worker(bus, tenant, retrieving(Embedder(ACCOUNTED))).serve():
        bus.publish(subjects.query(tenant, "rag"), codec.encode_message(query))
        with anyio.fail_after(5):
            frame = await frames.get()
    offered = codec.decode_message(frame.data, frame.content_type)
    assert isinstance(offered, Offered)
    assert offered.usage == (SourceUsage("small", 7, reported=True),)
    assert b"charge" not in frame.data
    assert b"charge" not in codec.encode_message(query)
    await subscription.unsubscribe()


@pytest.mark.rule("D.L.6")
async def test_the_usage_comes_with_the_offer_in_one_process(ask: Ask) -> None:
    @source(id="docs", kind="rag")
    async def docs(_query: Query, *, charge: Charge | None = None) -> Answer:
        if charge is not None:
            charge(model="m", tokens=3)
        return [candidate("r", "tea", 1.0)]

    answers: asyncio.Queue[Offered | Failed] = asyncio.Queue()
    tasks: set[asyncio.Task[object]] = set()
    LocalWorker(SOURCES, "docs", handler(docs), 8, tasks.add).call(ask(accounting=PAID), answers.put_nowait)
    with anyio.fail_after(5):
        offered = await answers.get()
    assert isinstance(offered, Offered)
    assert offered.usage == (SourceUsage("m", 3, reported=False),)


@pytest.mark.rule("D.L.5")
async def test_a_host_that_asks_by_itself_is_warned_once_for_each_run(ask: Ask) -> None:
    warnings: list[ContextWarning] = []
    answer = handler(retrieving(Embedder(HashEmbedder(), name="e")), on_warning=warnings.append)
    for run in ("a", "a", "b", "a"):
        await answer(ask(accounting=Accounting(run, "r")))
    assert warnings == [ContextWarning("unaccounted-usage", source="rag")] * 2
    await answer(ask())
    await handler(retrieving(Embedder(ACCOUNTED)), on_warning=warnings.append)(ask(accounting=PAID))
    assert len(warnings) == 2


@pytest.mark.rule("D.L.5")
async def test_a_query_that_fails_warns_too_and_a_failing_listener_changes_nothing(ask: Ask) -> None:
    warnings: list[ContextWarning] = []

    def tell(warning: ContextWarning) -> None:
        warnings.append(warning)
        raise RuntimeError

    @source(id="docs", kind="rag")
    async def docs(query: Query, *, charge: Charge | None = None) -> Answer:
        if charge is not None:
            charge(model="m", tokens=3)
        if query.text == "late":
            await anyio.sleep_forever()
        if query.text == "bad":
            raise OSError
        return []

    answer = handler(docs, on_warning=tell)
    late = await answer(ask("late", seconds_left=0.02, accounting=Accounting("a", "r")))
    assert isinstance(late, Failed)
    assert late.code == "timeout"
    bad = await answer(ask("bad", accounting=Accounting("b", "r")))
    assert isinstance(bad, Failed)
    assert bad.origin_type == "OSError"
    assert isinstance(await answer(ask("tea", accounting=Accounting("c", "r"))), Offered)
    assert len(warnings) == 3


@pytest.mark.rule("D.L.6")
def test_amounts_are_summed_by_model_reported_and_held_apart() -> None:
    charge = Charge()
    assert (charge.usage(), charge.entries) == ((), 0)
    charge(model="b", tokens=1, reported=True)
    charge(model="a", tokens=2)
    held = charge.hold(model="b", tokens=100)
    charge(model="b", tokens=4, reported=True)
    assert charge.usage() == (SourceUsage("a", 2), SourceUsage("b", 100), SourceUsage("b", 5, reported=True))
    held.settle(6)
    assert charge.usage() == (SourceUsage("a", 2), SourceUsage("b", 11, reported=True))
    charge(model="b", tokens=MAX_SAFE_INTEGER, reported=True)
    assert charge.usage()[1].tokens == MAX_SAFE_INTEGER


@pytest.mark.rule("D.L.2")
async def test_a_charge_may_be_used_from_many_threads() -> None:
    charge = Charge()

    def record(tokens: int) -> None:
        charge(model="m", tokens=tokens, reported=True)

    def spend() -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(record, [1] * 400))

    await asyncio.to_thread(spend)
    assert charge.usage() == (SourceUsage("m", 400, reported=True),)


BAD_CHARGES: list[tuple[str, object]] = [
    *(("", 1), ("x" * 129, 1), ("a\nb", 1), (cast("str", None), 1)),
    *(("m", True), ("m", "1"), ("m", None), ("m", 1.0), ("m", math.nan), ("m", math.inf)),
]


@pytest.mark.parametrize(("model", "tokens"), BAD_CHARGES)
def test_an_amount_of_another_type_is_a_type_error(model: str, tokens: object) -> None:
    charge = Charge()
    for record in (charge, charge.hold):
        with pytest.raises(TypeError):
            record(model=model, tokens=cast("int", tokens))
    assert charge.usage() == ()


def test_an_amount_out_of_range_is_a_value_error() -> None:
    charge = Charge()
    bad: list[Callable[[], object]] = [
        partial(charge, model="m", tokens=-1),
        partial(charge.hold, model="m", tokens=MAX_SAFE_INTEGER + 1),
        partial(charge.hold(model="m", tokens=1).settle, -1),
    ]
    for record in bad:
        with pytest.raises(ValueError, match="2\\^53"):
            record()
    assert charge.usage() == (SourceUsage("m", 1),)


@pytest.mark.rule("D.L.6")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_is_charged_after_the_answer_is_logged_and_told_to_nobody(ask: Ask, *, in_thread: bool) -> None:
    kept: list[Charge] = []

    async def retrieve(_query: str, _top_k: int, *, charge: Charge | None = None) -> Rows:
        assert charge is not None
        charge(model="small", tokens=3)
        kept.append(charge)
        return []

    offered = await handler(rag_source(retrieve=retrieve))(ask(accounting=PAID))
    assert isinstance(offered, Offered)
    late = partial(kept[0], model="small", tokens=4, reported=True)
    with structlog.testing.capture_logs() as logged:
        await asyncio.to_thread(late) if in_thread else late()
    assert [(entry["event"], entry["model"], entry["tokens"]) for entry in logged] == [("charged_too_late", "small", 4)]
    assert offered.usage == kept[0].usage() == (SourceUsage("small", 3),)


def test_one_query_charges_few_models() -> None:
    charge = Charge()
    for number in range(MAX_MODELS):
        charge(model=f"m{number}", tokens=1)
    charge(model="m0", tokens=1)
    with pytest.raises(LimitError, match="16"):
        charge(model="another", tokens=1)


def test_an_accounted_embedder_is_checked_when_it_is_made() -> None:
    def plain(_texts: Sequence[str]) -> Response:
        raise NotImplementedError

    with pytest.raises(TypeError, match="async"):
        accounted_embedder(cast("Any", plain), model="m", usage_of=read_tokens)
    with pytest.raises(TypeError, match="usage_of"):
        accounted_embedder(respond, model="m", usage_of=cast("Any", 7))
    with pytest.raises(TypeError, match="name"):
        accounted_embedder(respond, model="", usage_of=read_tokens)


def test_texts_are_estimated_at_four_characters_a_token_each_rounded_up() -> None:
    assert estimate_tokens(["", "a", "abcd", "abcde"]) == 0 + 1 + 1 + 2
