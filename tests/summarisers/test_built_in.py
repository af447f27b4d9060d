"""The summariser that needs no model keeps to its allowance, and never gives a copy for a summary (C.X.9, C.X.4)."""

from __future__ import annotations

import anyio
import pytest

from contextbus.core.estimate import make_estimator
from contextbus.summarisers.built_in import LONGEST_SHARE, extractive_summariser
from contextbus.summarisers.interface import SummaryRequest
from contextbus.summarisers.prompt import write_prompt
from contextbus_protocol.chat import ChatMessage, assistant, user


def summarise(messages: tuple[ChatMessage, ...], allowance: int) -> str:
    request = SummaryRequest(messages=messages, instructions="", max_output_tokens=allowance)
    return anyio.run(extractive_summariser().summarise, request)


@pytest.mark.rule("C.X.4", "C.X.9")
@pytest.mark.parametrize("turns", [1, 3, 20])
def test_a_summary_takes_at_most_half_of_what_it_is_given(turns: int) -> None:
    messages = tuple(
        message
        for turn in range(turns)
        for message in (user(f"The port of host-{turn} is {4000 + turn}."), assistant(f"Noted: {4000 + turn}."))
    )
    count = make_estimator().count
    assert count(summarise(messages, 100_000)) <= LONGEST_SHARE * count(write_prompt(messages))


@pytest.mark.rule("C.F.3", "C.X.9")
def test_the_allowance_holds_where_it_is_smaller() -> None:
    messages = tuple(user(f"The port of host-{turn} must stay {4000 + turn}.") for turn in range(40))
    found = summarise(messages, 30)
    assert found
    assert make_estimator().count(found) <= 30
