"""What the sources of a run spend: recorded once for each query, and warned of once a run (D.L)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import MODEL, SCOPE, state_of

import contextbus.client as contextbus
from contextbus.core.manifest import context_warnings
from contextbus.sources.accounting import Charge, accounted_embedder
from contextbus.sources.interface import Source, candidate, check_source
from contextbus.sources.rag import rag_source
from contextbus_protocol import codec
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import SourceFailedError
from contextbus_protocol.events import StepCompiled, StepFailed, UsageFact
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Candidate, SourceKind, SourceSpec

CI = candidate("0", "Deploys need a green CI run.", 0.9)
DONE = contextbus.Report(status="succeeded", messages=[assistant("So.")])


class Paying:
    """A source that charges what a test says, and may fail afterwards."""

    def __init__(self, *charges: dict[str, Any], id: str = "paid", required: bool = False) -> None:  # noqa: A002  # users' word
        self.id = id
        self.kind: SourceKind = "rag"
        self.required = required
        self.charges = charges
        self.error: Exception | None = None
        self.asked: list[Query] = []

    async def query(self, query: Query, *, charge: Charge | None = None) -> Sequence[Candidate]:
        """Charge and answer."""
        self.asked.append(query)
        for amount in self.charges:
            assert charge is not None
            charge(**amount)
        if self.error is not None:
            raise self.error
        return [CI]


REPORTED = {"model": "small", "tokens": 7, "reported": True}
HELD = {"model": "small", "tokens": 5}


def bus_of(*sources: Source) -> Any:
    return contextbus.open("memory:", sources=[check_source(s) for s in sources], memory=False)


async def usage_of(bus: contextbus.ContextBus, run: contextbus.Run) -> list[UsageFact]:
    events = [e for c in (await bus.log(run.id)).commits for e in c.commit.events]
    return [u for e in events if isinstance(e, StepCompiled | StepFailed) for u in e.usage]


@pytest.mark.rule("D.L.1", "D.L.3", "D.L.6")
async def test_usage_is_a_fact_of_the_step_once_for_each_query() -> None:
    one, two = Paying(REPORTED), Paying(REPORTED, {"model": "large", "tokens": 2, "reported": True}, id="other")
    async with bus_of(one, two) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["paid", "other"])
        run.append(user("How?"))
        for _ in range(2):
            step = await run.before_model_call(model=MODEL, refresh=True)
            assert step.warnings == ()
            await run.after_model_call(DONE)
        await run.before_model_call(model=MODEL)  # reused: nobody is asked
        usage = await usage_of(bus, run)
        assert [(u.source, u.model, u.tokens, u.reported) for u in usage] == [
            ("paid", "small", 7, True),
            ("other", "large", 2, True),
            ("other", "small", 7, True),
        ] * 2
        queries = {q.accounting.request_id for s in (one, two) for q in s.asked if q.accounting is not None}
        assert {u.request_id for u in usage} == queries
        assert len(queries) == 4
        assert all(q.accounting is not None and q.accounting.run == "r" for q in one.asked)
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.L.4")
async def test_a_source_that_charges_nothing_costs_nothing() -> None:
    async with bus_of(Paying()) as bus:
        run = await bus.run(scope=SCOPE, sources=["paid"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert (step.warnings, await usage_of(bus, run)) == ((), [])


@pytest.mark.rule("D.L.3", "D.Y.4", "D.D.20")
async def test_a_run_warns_of_unaccounted_usage_once_and_never_again() -> None:
    paid = Paying(HELD)
    async with bus_of(paid) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["paid"])
        run.append(user("How?"))
        told: list[list[str]] = []
        for number in range(4):
            if number == 2:  # another client, which knows nothing of the warning
                run = await bus.run("r", scope=SCOPE, sources=["paid"])
            step = await run.before_model_call(model=MODEL, refresh=True)
            told.append([w.code for w in step.warnings])
            await run.after_model_call(DONE)
        assert told == [["unaccounted-usage"], [], [], []]
        assert [u.reported for u in await usage_of(bus, run)] == [False] * 4
        other = await bus.run(scope=SCOPE, sources=["paid"])
        step = await other.before_model_call([user("How?")], model=MODEL)
        assert [w.code for w in step.warnings] == ["unaccounted-usage"]  # once a run
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.L.3", "D.R.7")
async def test_a_repeated_command_gets_its_warning_again_and_a_reopened_step_does_not() -> None:
    async with bus_of(Paying(HELD)) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["paid"])
        first = await run.before_model_call([user("How?")], model=MODEL, command="c")
        same = await (await bus.run("r", scope=SCOPE, sources=["paid"])).before_model_call(model=MODEL, command="c")
        reopened = await (await bus.run("r", scope=SCOPE, sources=["paid"])).before_model_call(model=MODEL)
        assert (first.stored, same.stored, reopened.stored) == (False, True, True)
        assert [len(step.warnings) for step in (first, same, reopened)] == [1, 1, 0]


@pytest.mark.rule("D.L.6", "D.L.3")
async def test_a_step_that_failed_records_what_was_spent_and_the_next_one_warns_of_it() -> None:
    paid, needed = Paying(HELD), Paying(REPORTED, id="needed", required=True)
    needed.error = RuntimeError("down")
    async with bus_of(paid, needed) as bus:
        run = await bus.run("r", scope=SCOPE, sources=["paid", "needed"])
        with pytest.raises(SourceFailedError):
            await run.before_model_call([user("How?")], model=MODEL)
        usage = await usage_of(bus, run)
        assert [(u.source, u.tokens, u.reported) for u in usage] == [("paid", 5, False), ("needed", 7, True)]
        needed.error, paid.charges = None, ()
        step = await run.before_model_call(model=MODEL)
        assert [w.code for w in step.warnings] == ["unaccounted-usage"]
        assert (await state_of(bus, run)).warned == ("unaccounted-usage",)
        assert len(await usage_of(bus, run)) == 3
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.L.6")
async def test_a_source_that_failed_is_paid_for_all_the_same() -> None:
    paid = Paying(REPORTED)
    paid.error = RuntimeError("down")
    async with bus_of(paid) as bus:
        run = await bus.run(scope=SCOPE, sources=["paid"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert step.manifest.fallback == "source-failed"
        assert [(u.tokens, u.reported) for u in await usage_of(bus, run)] == [(7, True)]


@pytest.mark.rule("D.D.20", "D.Y.4", "D.L.3")
async def test_warnings_of_the_run_stand_behind_those_that_the_manifest_tells() -> None:
    paid, broken = Paying(HELD), Paying(id="broken")
    broken.error = RuntimeError("down")
    async with bus_of(paid, broken) as bus:
        run = await bus.run(scope=SCOPE, sources=["paid", "broken"])
        step = await run.before_model_call([user("How?")], model=MODEL)
        assert [(w.code, w.source) for w in step.warnings] == [
            ("context-source-failed", "broken"),
            ("unaccounted-usage", None),
        ]
        assert context_warnings(step.manifest) == step.warnings[:1]  # from the manifest alone


@pytest.mark.rule("D.L.2", "D.D.25")
async def test_what_is_recorded_holds_no_text_of_the_query() -> None:
    async with bus_of(Paying(REPORTED)) as bus:
        run = await bus.run(scope=SCOPE, sources=["paid"])
        await run.before_model_call([user("zq-secret-qz")], model=MODEL)
        stored = b"".join(codec.encode_commit(c.commit) for c in (await bus.log(run.id)).commits)
        assert b"secret" not in stored
        assert b'"tokens":7' in stored


async def respond(texts: Sequence[str]) -> dict[str, Any]:
    return {"vectors": [[1.0, 0.0] for _ in texts], "tokens": 11}


EMBEDDER = accounted_embedder(
    respond, model="small", usage_of=lambda found: int(found["tokens"]), vectors_of=lambda found: found["vectors"]
)


async def retrieve(query: str, top_k: int, *, charge: Charge | None = None) -> list[dict[str, Any]]:
    await EMBEDDER([query], charge=charge)
    return [{"index": 0, "score": 0.9, "text": "Deploys need a green CI run."}][:top_k]


@pytest.mark.broker
@pytest.mark.rule("D.L.1", "D.L.2", "D.L.3", "D.L.6", "D.K.10")
async def test_the_bill_of_an_embedder_reaches_the_log_of_a_server_and_survives_a_restart(tmp_path: Path) -> None:
    held = Paying(HELD)
    told: list[str] = []
    usage: list[UsageFact] = []
    for _ in range(2):
        sources = [rag_source(retrieve=retrieve), check_source(held)]
        async with contextbus.open(data=tmp_path, sources=sources, memory=False, durability="interval") as bus:
            run = await bus.run("r", scope=SCOPE, sources=["rag", SourceSpec("paid", "rag")])
            run.append(user("How do we deploy?"))
            step = await run.before_model_call(model=MODEL, refresh=True)
            await run.after_model_call(DONE)
            told += [w.code for w in step.warnings]
            usage = await usage_of(bus, run)
            assert (await bus.verify("r")).is_clean
    assert told == ["unaccounted-usage"]
    assert [(u.source, u.tokens, u.reported) for u in usage] == [("rag", 11, True), ("paid", 5, False)] * 2
    assert len({u.request_id for u in usage}) == 4
