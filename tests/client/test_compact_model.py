"""What ``compact`` asks of a model, and what it makes of the answer (C.F, C.G)."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.compacting import (
    LABEL,
    Counted,
    Scripted,
    assistant,
    b1,
    compact,
    compacted,
    refused,
    res,
    user,
)

from contextbus.client import Usage
from contextbus.core.compaction.instructions import INSTRUCTIONS
from contextbus.summarisers.interface import MalformedSummaryError, Summary, SummaryRequest, read_answer, summariser
from contextbus_protocol.compaction import SummaryPart

USAGE = Usage(900, 30, 5, 2)
REFUSED: tuple[tuple[Summary | str, str], ...] = (
    (Summary((SummaryPart("text", "x"),), "length"), "incomplete-summary"),
    (Summary((SummaryPart("text", "x"),), "max_tokens"), "incomplete-summary"),
    (Summary((SummaryPart("text", "x"),), "tool-calls"), "incomplete-summary"),
    (Summary((SummaryPart("text", "x"),), "content_filter"), "incomplete-summary"),
    (Summary((SummaryPart("text", "x"), SummaryPart("tool-call")), "stop"), "incomplete-summary"),
    (Summary((SummaryPart("image"),), "stop"), "incomplete-summary"),
    (Summary((), "length"), "incomplete-summary"),
    (Summary((), "stop"), "empty-summary"),
    (Summary((SummaryPart("reasoning", "thought"),)), "empty-summary"),
    (Summary((SummaryPart("text", " \n\t"),)), "empty-summary"),
    ("", "empty-summary"),
    ("\u3000 \n", "empty-summary"),
    ("x" * 400, "summary-too-large"),
)


class ProviderError(Exception):
    """An error of a provider."""


@pytest.mark.rule("C.F.1", "C.F.7")
@pytest.mark.parametrize("answer", [*(answer for answer, _ in REFUSED), "Short.", ProviderError("too long")])
async def test_a_call_asks_once_whatever_comes_of_it(answer: Any) -> None:
    model = Scripted(answer)
    try:
        await compact(b1(), model=model, target_tokens=100, keep_last_messages=2)
    except ProviderError as exc:
        assert exc is answer  # noqa: PT017  # the others raise nothing
    assert len(model.asked) == 1
    assert len(model.asked[0].messages) == 2


@pytest.mark.rule("C.F.4", "C.F.5", "C.F.6")
async def test_the_request_is_one_text_with_instructions_and_nothing_else() -> None:
    model = Scripted()
    await compacted(b1(), model, keep_last_messages=2)
    (request,) = model.asked
    assert request.instructions == INSTRUCTIONS
    assert set(request.__struct_fields__) == {"messages", "instructions", "max_output_tokens"}
    assert len(json.loads(request.prompt)) == 2
    await compacted(b1(), model, keep_last_messages=2, instructions="Keep order ids. \ud83d")
    assert model.asked[1].instructions.startswith(INSTRUCTIONS)
    assert model.asked[1].instructions.endswith("Keep order ids. \ufffd")


@pytest.mark.rule("C.F.8")
@pytest.mark.parametrize("error", [ProviderError("no"), TimeoutError(), TypeError("mine"), KeyError("k")])
async def test_what_a_model_raises_comes_out_as_the_same_object(error: Exception) -> None:
    async def asynchronous(_: SummaryRequest) -> str:
        raise error

    def synchronous(_: SummaryRequest) -> str:
        raise error

    decorated = summariser(id="mine")(synchronous)
    for model in (asynchronous, synchronous, decorated, Scripted(error)):
        with pytest.raises(type(error)) as caught:
            await compact(b1(), model=model, target_tokens=100, keep_last_messages=2)
        assert caught.value is error
        assert caught.value.__cause__ is None


@pytest.mark.rule("C.F.8")
async def test_what_a_counter_raises_comes_out_too() -> None:
    error = ProviderError("no")

    def count(_: Any) -> int:
        raise error

    with pytest.raises(ProviderError) as caught:
        await compact(b1(), model=Scripted(), target_tokens=100, count_tokens=count)
    assert caught.value is error


@pytest.mark.rule("C.F.9", "C.G.12")
async def test_a_cancellation_reaches_the_model_and_comes_out_unwrapped() -> None:
    started, reached = asyncio.Event(), asyncio.Event()

    async def model(_: SummaryRequest) -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            reached.set()
            raise
        return "never"

    for on_failure in ("stop", "drop"):
        started.clear()
        reached.clear()
        task = asyncio.create_task(
            compact(b1(), model=model, target_tokens=100, keep_last_messages=2, on_failure=on_failure)
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert reached.is_set()


@pytest.mark.rule("C.F.9")
async def test_a_deadline_ends_a_model_that_waits_in_a_thread() -> None:
    release = threading.Event()

    def model(_: SummaryRequest) -> str:
        release.wait(30)
        return "late"

    with anyio.move_on_after(0.05) as scope:
        await compact(b1(), model=model, target_tokens=100, keep_last_messages=2)
    release.set()
    assert scope.cancelled_caught


@pytest.mark.rule("C.F.9")
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("wait", [False, True])
async def test_a_cancellation_during_any_count_ends_the_call(at: int, wait: bool) -> None:
    model = Scripted()

    def cancel_now(messages: Any) -> int:
        task = asyncio.current_task()
        assert task is not None
        if len(counter.given) == at:
            task.cancel()
        return len(messages)

    counter = Counted(cancel_now)

    async def later(messages: Any) -> Any:
        return counter(messages)

    task = asyncio.create_task(
        compact(b1(), model=model, target_tokens=100, keep_last_messages=2, count_tokens=later if wait else counter)
    )
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(counter.given) == at
    assert len(model.asked) == (at == 3)


@pytest.mark.rule("C.F.9")
async def test_a_cancellation_during_an_answer_keeps_its_summary_out() -> None:
    counter = Counted()

    async def model(_: SummaryRequest) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "written at the last moment"

    task = asyncio.create_task(
        compact(b1(), model=model, target_tokens=100, keep_last_messages=2, count_tokens=counter)
    )
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(counter.given) == 2


@pytest.mark.rule("C.F.10")
@pytest.mark.parametrize("reason", ["stop", "end_turn", "stop_sequence", "STOP"])
async def test_an_answer_that_ended_well_is_taken_under_every_name(reason: str) -> None:
    answer = Summary((SummaryPart("text", "S"),), reason)
    assert read_answer(answer).finish_reason == "stop"
    result = await compacted(b1(), Scripted(answer), keep_last_messages=2)
    assert result.summary == "S"


@pytest.mark.rule("C.F.10", "C.G.5")
@pytest.mark.parametrize(
    ("reason", "normalised"),
    [
        ("length", "length"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("tool-calls", "tool-calls"),
        ("content_filter", "content_filter"),
        ("end-turn", "end-turn"),
        ("Stop", "Stop"),
        ("Length", "Length"),
    ],
)
async def test_an_answer_that_was_cut_or_ended_otherwise_is_refused_under_every_name(
    reason: str, normalised: str
) -> None:
    answer = Summary((SummaryPart("text", "S"),), reason)
    assert read_answer(answer).finish_reason == normalised
    result = await refused(b1(), Scripted(answer), target_tokens=100, keep_last_messages=2)
    assert (result.reason, result.tokens.after) == ("incomplete-summary", 234)


@pytest.mark.rule("C.F.10")
@pytest.mark.parametrize("answer", [None, 5, b"text", {"text": "x"}, Summary("abc"), Summary((5,))])  # type: ignore[arg-type]  # malformed
async def test_what_is_no_answer_is_refused(answer: Any) -> None:
    def model(_: SummaryRequest) -> Any:
        return answer

    with pytest.raises(MalformedSummaryError):
        await compact(b1(), model=model, target_tokens=100, keep_last_messages=2)


@pytest.mark.rule("C.G.2", "C.G.3", "C.G.5", "C.G.6", "C.G.8", "C.G.12")
@pytest.mark.parametrize(("answer", "reason"), REFUSED)
async def test_an_answer_that_is_no_summary_changes_nothing(answer: Any, reason: str) -> None:
    result = await refused(b1(), Scripted(answer), target_tokens=100, keep_last_messages=2)
    assert (result.reason, result.tokens.after) == (reason, 234)
    assert ("Previous conversation summary" in str(result), "thought" in str(result)) == (False, False)


@pytest.mark.rule("C.G.4")
@pytest.mark.parametrize(("answer", "reason"), REFUSED)
async def test_usage_is_told_of_what_was_refused_too(answer: Any, reason: str) -> None:
    if isinstance(answer, str):
        answer = Summary((SummaryPart("text", answer),))
    used = Summary(answer.parts, answer.finish_reason, USAGE)
    result = await refused(b1(), Scripted(used), target_tokens=100, keep_last_messages=2)
    assert (result.reason, result.usage) == (reason, USAGE)
    assert result.usage is USAGE


@pytest.mark.rule("C.G.4")
async def test_there_is_no_usage_without_a_report_or_without_a_call() -> None:
    assert (await compacted(b1(), Scripted("S"), keep_last_messages=2)).usage is None
    used = Scripted(Summary((SummaryPart("text", "S"),), usage=USAGE))
    assert (await compacted(b1(), used, keep_last_messages=2)).usage is USAGE
    assert (await refused([], used)).usage is None
    assert (await refused(b1(), used, target_tokens=10, keep_last_messages=2)).usage is None


@pytest.mark.rule("C.G.7")
async def test_the_summary_is_the_trimmed_text_without_reasoning() -> None:
    parts = (
        SummaryPart("reasoning", "thought"),
        SummaryPart("text", "\n One"),
        SummaryPart("reasoning", "more"),
        SummaryPart("text", ", two. "),
    )
    result = await compacted(b1(), Scripted(Summary(parts)), keep_last_messages=2)
    assert result.summary == "One, two."
    assert result.messages[0] == user(f"{LABEL}One, two.")


@pytest.mark.rule("C.G.8")
async def test_a_summary_may_fill_the_target_to_the_last_token() -> None:
    exact = await compacted(b1(), Scripted("x" * 10), target_tokens=36, keep_last_messages=2)
    assert exact.tokens.after == 36
    over = await refused(b1(), Scripted("x" * 11), target_tokens=36, keep_last_messages=2)
    assert (over.reason, over.required_tokens) == ("summary-too-large", 37)


@pytest.mark.rule("C.G.9")
async def test_the_range_counts_in_the_list_of_the_call() -> None:
    messages = [user("a"), assistant("b"), *b1()]
    result = await compacted(messages, keep_last_messages=2)
    start, end = result.replaced_range.start, result.replaced_range.end
    assert messages[start:end] == messages[:4]
    again = await compacted([*result.messages, assistant("more"), user("last")], keep_last_messages=2)
    assert (again.replaced_range.start, again.replaced_range.end) == (0, 3)


@pytest.mark.rule("C.G.10")
async def test_a_short_range_may_grow() -> None:
    result = await compacted(
        [user("a"), assistant("b")], Scripted("longer than what it stands for"), keep_last_messages=1
    )
    assert result.tokens.after > result.tokens.before


@pytest.mark.rule("C.G.11")
async def test_nothing_at_all_cannot_be_reduced() -> None:
    model = Scripted()
    empties: tuple[Any, ...] = ([], (), iter(()))
    for empty in empties:
        result = await compact(empty, model=model, target_tokens=5)
        assert (result.status, result.reason, result.messages) == ("cannot-fit", "no-safe-boundary", ())
        assert (result.tokens.before, result.tokens.after, result.usage) == (0, 0, None)
    assert not model.asked


@pytest.mark.rule("C.G.13")
def test_the_documentation_says_what_to_keep() -> None:
    text = " ".join((compact.__doc__ or "").split())
    assert "Map them to ids of your own" in text
    assert "store that mapping and the summary together, and only then go on" in text
    assert "keep the original transcript" in text


@pytest.mark.rule("C.G.14", "C.A.7")
async def test_a_summary_stays_as_it_is_until_it_is_replaced() -> None:
    first = await compacted(b1(), Scripted("One."), keep_last_messages=2)
    longer = [*first.messages, assistant("new"), res("x")]
    told = await refused(longer, keep_last_messages=50)
    assert told.messages[0] is first.messages[0]
    assert first.messages[0] == user(f"{LABEL}One.")


@pytest.mark.rule("C.G.8", "C.G.9", "C.F.2")
@given(st.integers(1, 300), st.integers(0, 600), st.integers(1, 5))
def test_the_target_holds_or_nothing_happens(target: int, length: int, keep: int) -> None:
    messages = [*b1(), user("and then"), assistant("x" * 40)]
    asked: list[SummaryRequest] = []

    def model(request: SummaryRequest) -> str:
        asked.append(request)
        return "y" * length

    async def run() -> Any:
        return await compact(messages, model=model, target_tokens=target, keep_last_messages=keep)

    result = asyncio.run(run())
    if result.status == "compacted":
        start, end = result.replaced_range.start, result.replaced_range.end
        assert result.tokens.after <= target
        assert end <= len(messages) - keep
        assert all(a is b for a, b in zip(reversed(result.messages), reversed(messages[end:]), strict=False))
        assert len(asked[0].messages) == end - start
        assert 1 <= asked[0].max_output_tokens <= min(2048, target)
    else:
        assert result.messages == tuple(messages)
        assert (result.reason == "protected-history") == (not asked)
