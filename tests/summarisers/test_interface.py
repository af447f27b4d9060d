"""What may be a summariser, and what is read of its answers."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.compaction.finish import normalise_finish
from contextbus.core.compaction.instructions import INSTRUCTIONS
from contextbus.summarisers.answers import Handler
from contextbus.summarisers.built_in import extractive_summariser
from contextbus.summarisers.interface import (
    Answer,
    FunctionSummariser,
    MalformedSummaryError,
    Summariser,
    Summary,
    SummaryRequest,
    check_summariser,
    read_answer,
    summariser,
    summariser_of,
)
from contextbus.summarisers.prompt import write_prompt
from contextbus_protocol.chat import ChatMessage, ProviderData, Reasoning, Text, ToolCall, ToolResult, assistant, user
from contextbus_protocol.compaction import Summarise, Summarised, SummaryFailed, SummaryPart
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import Usage

REQUEST = SummaryRequest(messages=(user("hi"), assistant("hello")), instructions=INSTRUCTIONS, max_output_tokens=64)
TEXT = (SummaryPart("text", "x"),)


def ask(**changes: Any) -> Summarise:
    return msgspec.structs.replace(
        Summarise(
            run="run",
            tenant="t",
            command="c",
            token="token",
            reply_to="",
            summariser="mine",
            messages=REQUEST.messages,
            instructions=REQUEST.instructions,
            max_output_tokens=64,
            seconds_left=5.0,
        ),
        **changes,
    )


@pytest.mark.rule("C.X.10", "C.F.10")
async def test_a_function_becomes_a_summariser() -> None:
    @summariser(id="mine")
    async def mine(request: SummaryRequest) -> str:
        return f"{len(request.messages)} messages, {request.max_output_tokens} tokens"

    assert isinstance(mine, Summariser)
    assert mine.id == "mine"
    assert summariser_of(mine) is mine
    assert await mine.summarise(REQUEST) == "2 messages, 64 tokens"
    called = mine(REQUEST)
    assert not isinstance(called, str | Summary)
    assert await called == "2 messages, 64 tokens"


@pytest.mark.rule("C.X.10")
async def test_a_function_that_is_not_async_does_not_hold_up_the_loop() -> None:
    release = threading.Event()

    def slow(_request: SummaryRequest) -> str:
        assert release.wait(5)
        return threading.current_thread().name

    made = summariser_of(slow)
    assert made.id == "slow"
    task = asyncio.create_task(made.summarise(REQUEST))
    await asyncio.sleep(0.01)
    release.set()
    assert await task != threading.current_thread().name


@pytest.mark.rule("C.F.8")
async def test_in_process_the_exception_is_the_same_object() -> None:
    error = LookupError("no model")

    @summariser(id="mine")
    async def mine(_request: SummaryRequest) -> str:
        raise error

    with pytest.raises(LookupError) as raised:
        await mine.summarise(REQUEST)
    assert raised.value is error


class _Unnamed:
    id = ""

    async def summarise(self, request: SummaryRequest) -> Answer:
        return request.instructions


class _NotAsync:
    id = "x"

    def summarise(self, request: SummaryRequest) -> Answer:
        return request.instructions


@pytest.mark.parametrize("given_", [7, None, _Unnamed(), _NotAsync(), _NotAsync, "gpt", object()])
def test_what_is_no_summariser_is_refused(given_: object) -> None:
    with pytest.raises(InvalidTypeError):
        summariser_of(given_)


@pytest.mark.parametrize("name", ["", "\ud800", "x" * 129, 7, None])
def test_an_id_must_fit_a_subject(name: Any) -> None:
    def mine(request: SummaryRequest) -> str:
        return request.instructions

    with pytest.raises(InvalidTypeError):
        summariser(id=name)(mine)
    with pytest.raises(InvalidTypeError):
        FunctionSummariser(7, id="seven")  # type: ignore[arg-type]  # that is the point


@pytest.mark.rule("C.F.10")
def test_a_text_stands_for_one_part_that_ended_with_stop() -> None:
    assert read_answer("a summary") == Summary((SummaryPart("text", "a summary"),), "stop")
    assert read_answer("half \ud800 pair") == Summary((SummaryPart("text", "half \ufffd pair"),), "stop")


@pytest.mark.rule("C.F.10")
def test_a_finish_reason_has_one_word_for_all_providers() -> None:
    for reason in ("stop", "end_turn", "stop_sequence", "STOP"):
        assert normalise_finish(reason) == "stop"
    for reason in ("length", "max_tokens", "MAX_TOKENS"):
        assert normalise_finish(reason) == "length"
    for reason in ("tool_calls", "content_filter", "SAFETY", "stopped", "Stop", "end-turn"):
        assert normalise_finish(reason) == reason
    assert normalise_finish(None) == "unknown"
    assert read_answer(Summary(TEXT, "end_turn")).finish_reason == "stop"


@pytest.mark.rule("C.F.10", "D.W.2")
@given(st.one_of(st.text(), st.integers(), st.none(), st.binary()))
def test_no_content_passes_as_a_finish_reason(reason: object) -> None:
    word = normalise_finish(reason)
    assert 0 < len(word) <= 64
    assert all(c.isascii() and (c.isalnum() or c in "_-.") for c in word)
    assert normalise_finish(word) == word


@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        b"bytes",
        ["text"],
        {"parts": []},
        Summary("text"),  # type: ignore[arg-type]  # that is the point
        Summary(("text",)),  # type: ignore[arg-type]  # what is refused
        Summary((SummaryPart("text", 7),)),  # type: ignore[arg-type]  # what is refused
        Summary((SummaryPart("the user asked", "x"),)),
        Summary((SummaryPart("", "x"),)),
        Summary(TEXT, "stop", {"input_tokens": 1}),  # type: ignore[arg-type]  # what is refused
        Summary(TEXT, "stop", Usage(-1)),
        Summary(TEXT, "stop", Usage(2**53)),
        Summary(TEXT, "stop", Usage(True)),
    ],
)
def test_what_is_no_summary_is_malformed(answer: object) -> None:
    with pytest.raises(MalformedSummaryError):
        read_answer(answer)


@pytest.mark.rule("C.F.4")
def test_the_prompt_holds_the_messages_and_nothing_of_a_provider() -> None:
    secret = ProviderData("anthropic", '{"cache_control":{"type":"ephemeral"}}')
    messages = (
        ChatMessage(role="user", content=(Text(text="Find é", provider_data=secret, cache=True),), cache=True),
        ChatMessage(
            role="assistant",
            content=(
                Reasoning(text="I think", signature="c2lnbmF0dXJl", redacted="cmVkYWN0ZWQ="),
                ToolCall(id="call-1", name="search", arguments='{"q": "cafe"}', provider_data=secret),
            ),
            provider_data=secret,
        ),
        ChatMessage(
            role="tool", content=(ToolResult(id="call-1", content=(Text(text="found", provider_data=secret),)),)
        ),
    )
    request = SummaryRequest(messages=messages, instructions="i", max_output_tokens=1)
    read = json.loads(request.prompt)
    assert [message["role"] for message in read] == ["user", "assistant", "tool"]
    for kept in ("Find é", "I think", "call-1", "search", "cafe", "found"):
        assert kept in request.prompt
    for gone in ("ephemeral", "cache", "c2lnbmF0dXJl", "cmVkYWN0ZWQ="):
        assert gone not in request.prompt
    assert (
        write_prompt(messages[:1]) == SummaryRequest(messages=messages[:1], instructions="", max_output_tokens=1).prompt
    )


@pytest.mark.rule("C.X.9")
async def test_the_built_in_one_keeps_to_the_allowance_and_says_the_same_twice() -> None:
    said = tuple(user(f"The deploy of service-{i} must never run on port {4000 + i}.") for i in range(40))
    request = SummaryRequest(messages=said, instructions=INSTRUCTIONS, max_output_tokens=120)
    built_in = extractive_summariser(count=lambda text: -(-len(text) // 4))
    first = await built_in.summarise(request)
    assert 0 < len(first) <= 480
    assert await built_in.summarise(request) == first
    assert built_in.id == "extractive"
    assert check_summariser(built_in) is built_in


@pytest.mark.rule("C.F.10", "D.W.4")
async def test_a_handler_answers_a_request() -> None:
    seen: list[SummaryRequest] = []

    @summariser(id="mine")
    async def mine(request: SummaryRequest) -> Summary:
        seen.append(request)
        return Summary((SummaryPart("reasoning", "hm"), SummaryPart("text", "x")), "max_tokens", Usage(1, 2))

    answer = await Handler(mine)(ask())
    assert seen == [REQUEST]
    assert answer == Summarised(
        run="run",
        token="token",
        summariser="mine",
        parts=(SummaryPart("reasoning", "hm"), SummaryPart("text", "x")),
        finish_reason="length",
        usage=Usage(1, 2),
    )


class _QuotaError(LookupError):
    code = "quota"


@pytest.mark.rule("D.W.2", "C.F.8")
@pytest.mark.parametrize(
    ("error", "origin_code", "origin_type"),
    [
        (_QuotaError("the user asked about tea"), "quota", "_QuotaError"),
        (LookupError("the user asked about tea"), "error", "LookupError"),
        (SystemExit("the user asked about tea"), "the user asked about tea", "SystemExit"),
        (ExceptionGroup("tea", [ValueError("tea")]), "error", "ExceptionGroup"),
    ],
)
async def test_an_exception_becomes_code_and_type_without_its_text(
    error: BaseException, origin_code: str, origin_type: str
) -> None:
    told: list[BaseException] = []

    @summariser(id="mine")
    async def mine(_request: SummaryRequest) -> str:
        raise error

    answer = await Handler(mine, on_error=lambda _question, exc: told.append(exc))(ask())
    code = "error" if " " in origin_code else origin_code  # text is no word
    expected = SummaryFailed(
        run="run", token="token", summariser="mine", code="error", origin_code=code, origin_type=origin_type
    )
    assert answer == expected
    assert told == [error]


async def test_a_malformed_answer_and_a_late_one_are_failures() -> None:
    told: list[BaseException] = []

    async def garbage(_request: SummaryRequest) -> Any:
        return 7

    async def hang(_request: SummaryRequest) -> str:
        await asyncio.sleep(60)
        return ""

    for function, code in ((garbage, "malformed"), (hang, "timeout")):
        handler = Handler(FunctionSummariser(function, id="mine"), on_error=lambda _q, exc: told.append(exc))
        answer = await handler(ask(seconds_left=0.05))
        assert answer == SummaryFailed(run="run", token="token", summariser="mine", code=code)
    assert [type(exc) for exc in told] == [MalformedSummaryError]


@pytest.mark.rule("D.W.5", "C.F.9")
async def test_a_cancellation_is_no_failure() -> None:
    reached = asyncio.Event()

    @summariser(id="mine")
    async def mine(_request: SummaryRequest) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            reached.set()
        return ""

    told: list[BaseException] = []
    task = asyncio.create_task(Handler(mine, on_error=lambda _q, exc: told.append(exc))(ask()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached.is_set()
    assert not told
