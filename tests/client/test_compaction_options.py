"""What a host says of a run's compaction, and triggers by themselves (C.H, C.I, C.X)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.client.scripted import SCOPE, bus_with

import contextbus.client as contextbus
from contextbus.client import Compaction, CompactionSnapshot, Window, cache_likely_cold, messages_exceed, tokens_exceed
from contextbus_protocol.chat import user
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import InvalidTypeError, RangeError
from contextbus_protocol.values import CompactionOptions, RetentionPolicy, Trigger

NO_COUNTS = [0, -1, 1.5, math.nan, math.inf, 2**53, True, "1"]


def compaction(**given: Any) -> Compaction:
    chosen: dict[str, Any] = {"triggers": [tokens_exceed(10)], "target_tokens": 5} | given
    return Compaction(**chosen)


def snapshot(**given: Any) -> CompactionSnapshot:
    return CompactionSnapshot(**given)


@pytest.mark.rule("C.H.1", "C.H.2", "C.H.9")
@pytest.mark.parametrize(("tokens", "matches"), [(9, False), (10, False), (11, True)])
def test_tokens_exceed_by_itself(tokens: int, matches: bool) -> None:
    assert tokens_exceed(10)(snapshot(tokens=tokens)) is matches


@pytest.mark.rule("C.H.3")
def test_messages_exceed_counts_the_models_messages() -> None:
    messages = tuple(user(str(n)) for n in range(3))
    assert [messages_exceed(n)(snapshot(messages=messages, tokens=99)) for n in (2, 3, 4)] == [True, False, False]


@pytest.mark.rule("C.H.5", "C.H.6", "C.H.7")
def test_cache_likely_cold_by_itself() -> None:
    def cold(age: int | None, known: int | None, own: int | None = None) -> bool:
        return cache_likely_cold(own)(snapshot(cache_age_ms=age, cache_retention_ms=known))

    assert [cold(9, 10), cold(10, 10), cold(10, None), cold(None, 10)] == [False, True, False, False]
    assert [cold(5, None, 5), cold(4, 1, 5), cold(None, None, 5)] == [True, False, False]


@pytest.mark.rule("C.H.4", "C.H.6")
@pytest.mark.parametrize("number", NO_COUNTS)
@pytest.mark.parametrize("helper", [tokens_exceed, messages_exceed, cache_likely_cold])
def test_no_count_is_refused_where_the_helper_is_built(helper: Any, number: object) -> None:
    with pytest.raises(RangeError) as raised:
        helper(number)
    assert isinstance(raised.value, ValueError)


@pytest.mark.rule("C.I.2")
@pytest.mark.parametrize("triggers", [[], (), None, "abc", tokens_exceed(1), [tokens_exceed(1), 5], [None]])
def test_triggers_are_functions_and_there_is_one(triggers: Any) -> None:
    with pytest.raises(InvalidTypeError, match="triggers") as raised:
        compaction(triggers=triggers)
    assert isinstance(raised.value, TypeError)


@pytest.mark.rule("C.I.2", "C.X.1", "C.X.2")
@pytest.mark.parametrize(
    "name", ["target_tokens", "keep_last_messages", "keep_last_turns", "keep_recent_tokens", "summary_input_tokens"]
)
@pytest.mark.parametrize("number", NO_COUNTS)
def test_no_count_is_refused_at_declaration(name: str, number: object) -> None:
    with pytest.raises(RangeError, match=name):
        compaction(**{name: number})


@pytest.mark.rule("C.I.2", "D.W.6")
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"instructions": 5}, InvalidTypeError),
        ({"on_failure": "retry"}, InvalidTypeError),
        ({"media": "drop"}, InvalidTypeError),
        ({"min_shrink": 1.5}, RangeError),
        ({"min_shrink": math.nan}, RangeError),
        ({"min_shrink": True}, InvalidTypeError),
        ({"keep_ratio": 0.0}, RangeError),
        ({"seconds": -1}, RangeError),
        ({"seconds": "5"}, InvalidTypeError),
        ({"count_tokens": 5}, InvalidTypeError),
        ({"on_compress": 5}, InvalidTypeError),
        ({"on_event": "print"}, InvalidTypeError),
        ({"long_running": "deploy"}, InvalidTypeError),
        ({"long_running": [5]}, InvalidTypeError),
        ({"summariser": ""}, InvalidTypeError),
        ({"summariser": 5}, InvalidTypeError),
        ({"target": 5}, TypeError),
    ],
)
def test_other_options_are_checked_at_declaration_too(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        compaction(**given)


@pytest.mark.rule("P.J.1", "P.J.2", "D.W.6")
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"trigger_ratio": 0}, RangeError),
        ({"trigger_ratio": 1.01}, RangeError),
        ({"keep_ratio": math.nan}, RangeError),
        ({"keep_last_messages": 0}, RangeError),
        ({"on_budget_exceeded": 5}, InvalidTypeError),
        ({"window": 5}, TypeError),
    ],
)
def test_a_window_is_checked_at_declaration(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Window(**given)


@pytest.mark.rule("C.I.1", "C.F.4", "P.A.1")
def test_what_is_handed_over_is_data_that_nobody_can_change() -> None:
    def own(_: CompactionSnapshot) -> bool:
        return False

    triggers = [messages_exceed(40), own, cache_likely_cold(), tokens_exceed(9)]
    tools = ["deploy"]
    given = compaction(triggers=triggers, long_running=tools, keep_last_turns=2, instructions="Keep \ud800 prices.")
    triggers.clear()
    tools.clear()
    setup = given.setup()
    assert setup.options == CompactionOptions(
        triggers=(
            Trigger(kind="messages-exceed", limit=40),
            Trigger(kind="custom"),
            Trigger(kind="cache-likely-cold"),
            Trigger(kind="tokens-exceed", limit=9),
        ),
        target_tokens=5,
        keep=RetentionPolicy(keep_last_turns=2),
        long_running=("deploy",),
        instructions_digest=digest_text("Keep \ufffd prices."),
    )
    assert setup.instructions == "Keep \ufffd prices."
    assert setup.triggers[1] is own
    with pytest.raises(AttributeError):
        given.target_tokens = 6  # type: ignore[misc]  # what must be refused


@pytest.mark.rule("P.J.6", "P.J.7")
def test_a_window_is_a_configuration_of_the_same_mechanism() -> None:
    options = Window().setup().options
    by_ratio = RetentionPolicy(keep_ratio=0.8)
    assert options == CompactionOptions(
        triggers=(
            Trigger(kind="usage-exceeded", keep=RetentionPolicy(keep_last_messages=1)),
            Trigger(kind="window-exceeded", ratio=1.0, keep=by_ratio),
        ),
        target_ratio=0.8,
        keep=by_ratio,
        on_failure="continue",
        reserves_output=True,
    )
    assert options.summariser == "extractive"


@pytest.mark.rule("C.X.10")
def test_a_summary_that_a_model_writes_has_time_of_its_own() -> None:
    seconds = [Window().setup().seconds, Window(summariser="m").setup().seconds]
    assert [*seconds, compaction(summariser="m", seconds=3).setup().seconds] == [0.0, 60.0, 3.0]


@pytest.mark.rule("C.I.1")
async def test_a_run_takes_nothing_else() -> None:
    async with bus_with() as bus:
        raw: Any = CompactionOptions(triggers=())
        with pytest.raises(InvalidTypeError, match="Compaction or a Window"):
            await bus.run(scope=SCOPE, compaction=raw)
        model = contextbus.Model("openai", "gpt-test", 1_000, 100)
        run = await bus.run(scope=SCOPE, compaction=compaction())
        bad: Any = 5
        for settings in (bad, {"x": object()}):
            with pytest.raises(InvalidTypeError):
                await run.before_model_call([user("Hi.")], model=model, settings=settings)
