"""The payload of a compiler without a run: a run's request, of messages that the host holds (P.A.3, P.E.4, D.F.20)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.client.compiling import BOUND, CHARACTERS, CI, MODEL, QUESTION, Host, appended
from tests.client.scripted import Scripted, text_in

import contextbus.client as contextbus
from contextbus_protocol.chat import ChatMessage, Reasoning, Text, system, user
from contextbus_protocol.codec import encode_json
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model, ModelPrefix

SONNET = Model("anthropic", "claude-sonnet-4-5", 200_000, 8_000)
BINDS_SONNET = ModelPrefix("anthropic", "claude-sonnet-4-5")
RULE = PromptParts(guardrails=(user("Be brief."),))
TOOL: dict[str, object] = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}


def compiler(**options: Any) -> contextbus.Compiler:
    return contextbus.Compiler(sources=[Scripted([CI])], estimator=CHARACTERS, **options)


def thought(number: int) -> ChatMessage:
    thinking = Reasoning(text=f"Thought {number}.", signature=f"sig-{number}")
    return ChatMessage(role="assistant", content=(thinking, Text(text=f"Turn {number}.")))


def answer(host: Host, number: int) -> None:
    """The turn was taken, and the model had thought; then the user goes on."""
    host.history[-1:] = [thought(number), user(f"And {number}?")]


def thinking_in(host: Host) -> list[str]:
    messages: Any = json.loads(host.compiler.payload().json())["messages"]
    blocks = [block for message in messages for block in message["content"]]
    return [block["thinking"] for block in blocks if block["type"] == "thinking"]


def left_out(host: Host) -> int:
    return [repair.code for repair in host.compiler.payload().repairs].count("thinking")


@pytest.mark.rule("D.F.20", "D.H.2")
@pytest.mark.parametrize("restarts", [False, True])
async def test_thinking_from_before_a_change_is_left_out_of_this_request_and_later_ones(restarts: bool) -> None:
    host = Host(compiler(), system("You deploy."), user(QUESTION), model=BOUND)

    async def turn() -> str | None:
        if restarts:
            host.compiler = compiler(state=msgspec.json.decode(encode_json(host.compiler.state())))
        return (await host.turn()).manifest.cache_prefix_cause

    assert await turn() is None
    answer(host, 0)
    assert await turn() is None
    assert (thinking_in(host), left_out(host)) == (["Thought 0."], 0)
    answer(host, 1)
    host.history[0] = system("You roll back.")
    assert await turn() == "system"
    assert (thinking_in(host), left_out(host)) == ([], 2)
    answer(host, 2)
    assert await turn() is None
    assert (thinking_in(host), left_out(host)) == (["Thought 2."], 2)


@pytest.mark.rule("D.F.20", "D.I.1")
async def test_an_overflow_leaves_out_the_thinking_from_before_its_new_messages() -> None:
    host = Host(compiler(), model=BOUND)
    await host.turn()
    answer(host, 0)
    await host.compile()
    assert thinking_in(host) == ["Thought 0."]
    host.compiler.on_overflow(run_id="r", step=1, input_tokens=60_000, messages=host.history[1:])
    assert thinking_in(host) == []
    host.compiler.on_overflow(run_id="r", step=1, input_tokens=60_000, messages=host.history)
    assert thinking_in(host) == ["Thought 0."]


@pytest.mark.rule("D.F.20", "D.F.12")
@pytest.mark.parametrize(("bound", "left"), [((), ["Thought 0."]), ((BINDS_SONNET,), [])])
async def test_only_models_that_bind_thinking_lose_it(bound: tuple[ModelPrefix, ...], left: list[str]) -> None:
    host = Host(compiler(bound_models=bound), system("You deploy."), user(QUESTION), model=SONNET)
    await host.turn()
    answer(host, 0)
    host.history[0] = system("You roll back.")
    assert (await host.turn()).manifest.cache_prefix_cause == "system"
    assert thinking_in(host) == left


@pytest.mark.rule("P.E.4", "P.A.4")
async def test_a_breakpoint_stands_behind_what_stays_and_the_next_request_begins_with_it() -> None:
    host = Host(compiler(), model=SONNET)
    package = await host.turn(prompt=RULE)
    block = text_in(appended(package)[0])
    (message,) = json.loads(host.compiler.payload(cache="1h").json())["messages"]
    kept, tail = message["content"][:2], message["content"][2:]
    assert [part["text"] for part in kept] == [QUESTION, block]
    assert kept[1].pop("cache_control") == {"type": "ephemeral", "ttl": "1h"}
    assert [part["text"] for part in tail] == ["Be brief."]
    assert "cache_control" not in host.compiler.payload().json().decode()
    host.history.append(user("And?"))
    await host.turn()
    assert json.loads(host.compiler.payload(cache=True).json())["messages"][0]["content"] == kept


@pytest.mark.rule("P.A.3", "P.A.7")
async def test_the_tools_of_the_step_are_sent_unless_others_are_given() -> None:
    host = Host(compiler())
    await host.turn(tools=[TOOL])
    body = json.loads(host.compiler.payload().json())
    assert [tool["function"]["name"] for tool in body["tools"]] == ["look"]
    other = json.loads(host.compiler.payload("anthropic", tools=[TOOL | {"name": "ask"}]).json())
    assert [tool["name"] for tool in other["tools"]] == ["ask"]
    await host.turn()
    assert "tools" not in json.loads(host.compiler.payload().json())


@pytest.mark.rule("D.G.3", "D.F.17", "P.E.9")
async def test_a_list_of_dicts_that_is_handed_over_again_is_known_and_a_change_in_it_is_seen() -> None:
    ours, theirs = Host(compiler()), Host(compiler())
    given: list[Any] = [{"role": "user", "content": QUESTION}]
    for number in range(3):
        package = await ours.compile()
        assert await theirs.compile(messages=given, step=number) == package
        assert theirs.compiler.payload().json() == ours.compiler.payload().json()
        ours.take_turn(package)
        ours.history.append(user(f"And {number}?"))
        given += [*appended(package), {"role": "assistant", "content": f"Turn {number}."}]
        given.append({"role": "user", "content": f"And {number}?"})
    given[0]["content"] = "How do I roll back?"
    package = await theirs.compile(messages=given, step=3)
    assert package.manifest.cache_prefix_cause == "history"
    assert json.loads(theirs.compiler.payload().json())["messages"][0]["content"] == "How do I roll back?"


@pytest.mark.rule("D.W.5", "D.G.27")
async def test_messages_that_cannot_be_read_change_nothing() -> None:
    host = Host(compiler(), model=MODEL)
    await host.compile()
    sent = host.compiler.payload().json()
    with pytest.raises(InvalidTypeError):
        await host.compile(step=1, messages=[*host.history, {"role": "nobody"}])
    assert host.compiler.payload().json() == sent
    assert (await host.compile(step=1)).manifest.cache_prefix_cause == "history"  # its block was never placed
