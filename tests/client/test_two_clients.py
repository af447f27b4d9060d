"""Two clients of one run: nobody's messages are lost, and both end with one history (D.F.19, D.W.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, sent, state_of

import contextbus.client as contextbus
from contextbus.client.run_history import MOST_MESSAGES
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import InvalidRequestError, StaleStepError
from contextbus_protocol.events import StepCompiled

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)


@pytest.mark.rule("D.F.19")
async def test_a_report_beside_anothers_message_replaces_nothing() -> None:
    async with bus_with(Scripted([CI])) as bus:
        one = await bus.run("r", scope=SCOPE, sources=["rag"])
        await one.before_model_call([user("How?")], model=MODEL)
        other = await bus.run("r", scope=SCOPE)
        other.append(user("And me?"))
        await other.flush()
        await one.after_model_call(contextbus.Report(status="succeeded"))
        one.append(user("So?"))
        await one.before_model_call(model=MODEL)
        assert one.messages == (user("How?"), user("And me?"), user("So?"))
        state = await state_of(bus, one)
        assert (state.history.count, [b.position for b in state.blocks]) == (3, [1])
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.F.19", "D.F.13")
async def test_a_report_with_messages_goes_behind_anothers() -> None:
    async with bus_with(Scripted([CI])) as bus:
        one = await bus.run("r", scope=SCOPE, sources=["rag"])
        await one.before_model_call([user("How?")], model=MODEL)
        other = await bus.run("r", scope=SCOPE)
        other.append(user("And me?"))
        await other.flush()
        await one.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("So.")]))
        assert one.messages == (user("How?"), user("And me?"), assistant("So."))
        await other.load()
        assert other.messages == one.messages
        payloads = [(await run.before_model_call(model=MODEL)).payload().chunks() for run in (one, other)]
        assert b"".join(payloads[0]) == b"".join(payloads[1])


async def test_a_report_that_is_refused_can_be_given_again() -> None:
    async with bus_with() as bus:
        one, other = await bus.run("r", scope=SCOPE), await bus.run("r", scope=SCOPE)
        await one.before_model_call([user("How?")], model=MODEL)
        await other.before_model_call([user("How?"), user("!")], model=MODEL)
        with pytest.raises(StaleStepError):
            await one.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("So.")]))
        assert one.messages == (user("How?"),)
        third = await bus.run("s", scope=SCOPE)
        with pytest.raises(InvalidRequestError, match="no step is open"):
            await third.after_model_call(contextbus.Report(status="succeeded"))


ACTIONS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from(["append", "flush", "step", "report", "refresh", "load"])),
    max_size=14,
)


@pytest.mark.rule("D.F.19")
@settings(max_examples=40, deadline=None)
@given(actions=ACTIONS)
async def test_whatever_two_clients_do_their_histories_converge_and_nothing_is_lost(
    actions: list[tuple[int, str]],
) -> None:
    async with bus_with(Scripted([CI])) as bus:
        runs = [await bus.run("r", scope=SCOPE, sources=["rag"]) for _ in range(2)]
        said: list[str] = []
        is_open = [False, False]
        for number, (who, action) in enumerate(actions):
            run = runs[who]
            match action:
                case "append":
                    said.append(f"message {number} of {who}")
                    run.append(user(said[-1]))
                case "flush":
                    await run.flush()
                case "step":
                    await run.before_model_call(model=MODEL, refresh=number % 2 == 0)
                    is_open = [who == 0, who == 1]
                case "report" if is_open[who]:
                    said.append(f"answer {number}")
                    report = contextbus.Report(status="succeeded", messages=[assistant(said[-1])])
                    await run.after_model_call(report)
                    is_open = [False, False]
                case "refresh" if (await state_of(bus, run)).last is not None:
                    await run.request_refresh()
                case _:
                    await run.load()
        for run in (*runs, *runs):
            await run.flush()
            await run.load()
        assert runs[0].messages == runs[1].messages
        state = await state_of(bus, runs[0])
        assert state.history.count == len(runs[0].messages)
        assert sorted(str(m) for m in runs[0].messages) == sorted(
            str(assistant(text) if text.startswith("answer") else user(text)) for text in said
        )
        steps = [await run.before_model_call(model=MODEL) for run in runs] if said else []
        assert len({b"".join(step.payload().chunks()) for step in steps}) <= 1
        assert (await bus.verify("r")).is_clean


@pytest.mark.broker
async def test_a_long_history_is_handed_over_in_parts_that_a_server_takes(tmp_path: Path) -> None:
    messages = [user(f"message {number}") for number in range(MOST_MESSAGES + 500)]
    async with contextbus.open(data=tmp_path, memory=False) as bus:
        run = await bus.run("long", scope=SCOPE)
        step = await run.before_model_call(messages, model=MODEL)
        assert len(sent(step)) == len(messages)
        commits = (await bus.log("long")).commits
        assert [sum(isinstance(e, StepCompiled) for e in c.commit.events) for c in commits] == [0, 1]
        assert (await bus.verify("long")).is_clean
        other = await bus.run("long", scope=SCOPE)
        other.append(*messages)
        await other.flush()
        assert other.messages == (*messages, *messages)
