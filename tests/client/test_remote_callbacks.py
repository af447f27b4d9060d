"""Functions of the host where selection is another process's, and clients of another language (D.W.4)."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import nats
import pytest
from nats.aio.client import Client
from tests.client.scripted import CHARACTERS, MODEL, SCOPE, Scripted

import contextbus.client as contextbus
from contextbus.client import PreparedStep, StepContext
from contextbus.core.handle import RunHandle
from contextbus.runtime import embedded
from contextbus.runtime.embedded import Endpoint
from contextbus.sources.interface import check_source
from contextbus_protocol import codec, subjects
from contextbus_protocol.callbacks import AskCallback
from contextbus_protocol.chat import ChatMessage, assistant, user
from contextbus_protocol.commands import CompileStep, ErrorReply
from contextbus_protocol.errors import CallbackTimeoutError, HookFailedError, LimitError
from contextbus_protocol.values import Model, SourceSpec, StepOptions

pytestmark = pytest.mark.broker

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
DOCS = SourceSpec("rag", "rag")
SMALL = Model("openai", "gpt-small", 20_000, 2_000)
DONE = contextbus.Report(status="succeeded", messages=[assistant("Run the pipeline.")])
JSON = {"Content-Type": "application/json"}


class Site:
    """A process with actors and a source, and the address of its server."""

    def __init__(self, bus: contextbus.ContextBus, rag: Scripted, endpoint: Endpoint) -> None:
        self.bus = bus
        self.rag = rag
        self.endpoint = endpoint


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    """Selection, working memory, placement and a source on an embedded server."""
    rag = Scripted([CI])
    sources = [check_source(rag)]
    async with contextbus.open(data=tmp_path, sources=sources, memory=False, durability="interval") as bus:
        endpoint = await embedded.attach(tmp_path)
        assert endpoint is not None
        yield Site(bus, rag, endpoint)


@pytest.fixture
async def remote(site: Site) -> AsyncGenerator[contextbus.ContextBus]:
    """Another host, without actors."""
    at = site.endpoint
    async with contextbus.open(at.url, token=at.token, actors="remote", memory=False) as bus:
        yield bus


@pytest.mark.rule("D.W.4", "D.A.9", "D.R.3", "D.D.25")
async def test_functions_run_in_the_clients_process(site: Site, remote: contextbus.ContextBus) -> None:
    seen: list[StepContext] = []

    async def prepare(step: StepContext) -> PreparedStep:
        seen.append(step)
        return PreparedStep(model=SMALL, messages=[user("Prepared?")], tools=[{"name": "deploy"}])

    run = await remote.run(
        "r", scope=SCOPE, sources=[DOCS], prepare_step=prepare, rewrite_query=lambda query, _: f"about {query}"
    )
    step = await run.before_model_call([user("How?")], model=MODEL)
    assert [q.text for q in site.rag.asked] == ["about Prepared?"]
    assert (step.model, step.manifest.budget.input_tokens) == (SMALL, 18_000)
    assert [(s.step, s.messages, s.model) for s in seen] == [(0, (user("How?"),), MODEL)]
    here = await site.bus.run("r", scope=SCOPE, sources=[DOCS])
    again = await here.before_model_call(model=MODEL)
    assert again.stored
    assert again.payload().json() == step.payload().json()
    await run.after_model_call(DONE)
    assert (await remote.verify("r")).is_clean


@pytest.mark.rule("D.W.2", "D.W.4")
async def test_what_a_function_raises_is_the_cause_though_selection_is_elsewhere(
    remote: contextbus.ContextBus,
) -> None:
    error = KeyError("swordfish")

    def prepare(_: StepContext) -> None:
        raise error

    run = await remote.run("r", scope=SCOPE, sources=[DOCS], prepare_step=prepare)
    with pytest.raises(HookFailedError) as caught:
        await run.before_model_call([user("How?")], model=MODEL)
    assert caught.value.__cause__ is error
    assert (caught.value.origin, caught.value.origin_type) == ("prepare_step", "KeyError")


@pytest.mark.rule("D.W.4", "D.W.2")
@pytest.mark.parametrize("wrong", ["address", "run", "name"])
async def test_what_was_said_goes_to_nobody_outside_the_tenant(site: Site, wrong: str) -> None:
    """Whoever can publish to a client's address could else have it send its conversation anywhere."""
    at, tenant = site.endpoint, "other"
    heard: list[bytes] = []
    called: list[int] = []
    stranger = await nats.connect(at.url, token=at.token)

    async def hear(message: Any) -> None:
        heard.append(message.data)

    async def act(message: Any) -> None:  # in the place of selection
        command = codec.decode_message(message.data)
        assert isinstance(command, CompileStep)
        ask = AskCallback(
            run="another" if wrong == "run" else command.run,
            command=command.command,
            token="t",
            reply_to="somewhere.else" if wrong == "address" else subjects.inbox(tenant, "stranger"),
            name="rewrite-query" if wrong == "name" else "prepare-step",
            step=0,
            seconds_left=5.0,
        )
        await stranger.publish(command.reply_to, codec.encode_message(ask))
        over = ErrorReply(run=command.run, command=command.command, code="limit", message="over")
        await stranger.publish(command.reply_to, codec.encode_message(over))

    await stranger.subscribe("somewhere.else", cb=hear)
    await stranger.subscribe(subjects.inbox(tenant, "stranger"), cb=hear)
    await stranger.subscribe(subjects.command("selection", tenant), cb=act)
    await stranger.flush()
    async with contextbus.open(at.url, token=at.token, tenant=tenant, actors="remote", memory=False) as bus:

        def prepare(step: StepContext) -> PreparedStep:
            called.append(step.step)
            return PreparedStep(messages=step.messages)

        run = await bus.run("r", scope=SCOPE, prepare_step=prepare)
        with pytest.raises(LimitError):
            await run.before_model_call([user("A secret.")], model=MODEL)
        await asyncio.sleep(0)
    await stranger.flush()
    await stranger.close()
    assert (called, heard) == ([], [])


@pytest.mark.rule("D.W.4")
async def test_messages_of_a_function_may_be_larger_than_a_message_of_the_bus(remote: contextbus.ContextBus) -> None:
    large = user("word " * 300_000)
    run = await remote.run("r", scope=SCOPE, prepare_step=lambda _: PreparedStep(messages=[large]))
    model = Model("openai", "gpt-test", 2_000_000, 8_000)
    step = await run.before_model_call([user("How?")], model=model)
    assert step.payload("openai").copy()["messages"] == [{"role": "user", "content": "word " * 300_000}]
    assert (await remote.verify("r")).is_clean


# -- a client of another language: plain NATS and JSON


class Plain:
    """A client with nothing of ours but the wire format."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = f"{subjects.inbox('default', 'plain')}.1"
        self.asked: list[dict[str, Any]] = []

    async def compile(self, body: dict[str, Any], answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Send a step, answer what is asked of us, and give back the answer."""
        replies = await self._client.subscribe(self._inbox)
        to = subjects.command("selection", "default")
        await self._client.publish(to, json.dumps(body | {"replyTo": self._inbox}).encode(), headers=JSON)
        while True:
            message = await replies.next_msg(timeout=30)
            assert (message.headers or {})["Content-Type"] == "application/json"
            said: dict[str, Any] = json.loads(message.data)
            if said["type"] != "ask-callback":
                await replies.unsubscribe()
                return said
            self.asked.append(said)
            answer = answers.get(said["name"])
            if answer is not None:
                base = {"type": "callback-answered", "run": said["run"], "token": said["token"], "name": said["name"]}
                await self._client.publish(said["replyTo"], json.dumps(base | answer).encode(), headers=JSON)


@pytest.fixture
async def plain(site: Site) -> AsyncGenerator[Plain]:
    at = site.endpoint
    client = await nats.connect(at.url, token=at.token, inbox_prefix=subjects.inbox("default", "plain").encode())
    yield Plain(client)
    await client.close()


def body_of(*messages: ChatMessage, callbacks: list[str], command: str = "c", seconds: float = 10.0) -> dict[str, Any]:
    """A step as such a client writes it."""
    handle = RunHandle().append(messages)
    step = CompileStep(
        run="r",
        tenant="default",
        command=command,
        attempt=1,
        reply_to="",
        seconds_left=seconds,
        now=0,
        history=handle.new_messages(),
        user_text=handle.history.user_text,
        options=StepOptions(scope=SCOPE, model=MODEL, sources=(DOCS,), estimator=CHARACTERS),
    )
    body: dict[str, Any] = json.loads(codec.encode_message(step, codec.JSON))
    return body | {"callbacks": callbacks}


@pytest.mark.rule("D.W.4", "D.A.9", "D.R.3")
async def test_a_json_client_answers_for_its_own_functions(site: Site, plain: Plain) -> None:
    given = {"role": "user", "content": [{"type": "text", "text": "Prepared?"}]}
    answers: dict[str, dict[str, Any]] = {
        "prepare-step": {
            "messages": [given],
            "model": {"provider": "openai", "modelId": "gpt-small", "contextWindow": 20_000, "maxOutputTokens": 2_000},
            "overheadTokens": 100,
            "tools": '[{"name":"deploy"}]',
        },
        "rewrite-query": {"text": "about deploys"},
    }
    said = await plain.compile(body_of(user("How?"), callbacks=["prepare-step", "rewrite-query"]), answers)
    assert [a["name"] for a in plain.asked] == ["prepare-step", "rewrite-query"]
    assert [a.get("query", "") for a in plain.asked] == ["", "Prepared?"]
    assert said["type"] == "step-compiled"
    assert said["options"]["overheadTokens"] == 100
    assert (said["prepared"], said["tools"]) == ([given], '[{"name":"deploy"}]')
    assert json.loads(said["package"])["manifest"]["budget"]["inputTokens"] == 18_000
    assert [q.text for q in site.rag.asked] == ["about deploys"]
    here = await site.bus.run("r", scope=SCOPE, sources=[DOCS], estimator=CHARACTERS)
    again = await here.before_model_call(model=MODEL)
    assert (again.text, again.stored) == (said["package"], True)
    tools = cast("list[Any]", again.payload("openai").copy()["tools"])
    assert [tool["function"]["name"] for tool in tools] == ["deploy"]
    assert (await site.bus.verify("r")).is_clean


@pytest.mark.rule("D.W.4", "D.W.2")
async def test_a_json_client_may_say_that_its_function_failed(site: Site, plain: Plain) -> None:
    wrong = {"code": "hook_failed", "originCode": "E42", "originType": "DownError"}
    said = await plain.compile(body_of(user("How?"), callbacks=["prepare-step"]), {"prepare-step": wrong})
    assert (said["type"], said["code"], said["data"]["originCode"]) == ("error", "hook_failed", "E42")
    said = await plain.compile(body_of(user("How?"), callbacks=["prepare-step"]), {"prepare-step": {}})
    assert (said["type"], said["step"]) == ("step-compiled", 0)
    assert (await site.bus.verify("r")).is_clean


@pytest.mark.rule("D.W.4")
async def test_a_json_client_that_gives_no_answer_or_none_that_can_be_read_is_late(site: Site, plain: Plain) -> None:
    silent = await plain.compile(body_of(user("How?"), callbacks=["prepare-step"], seconds=1.0), {})
    assert (silent["type"], silent["code"], silent["data"]["origin"]) == ("error", "callback_timeout", "prepare_step")
    garbage: dict[str, Any] = {"model": "gpt-test"}
    body = body_of(user("How?"), callbacks=["prepare-step"], seconds=1.0)
    assert (await plain.compile(body, {"prepare-step": garbage}))["code"] == "callback_timeout"
    wrong: dict[str, Any] = {"overheadTokens": -7}
    said = await plain.compile(body_of(user("How?"), callbacks=["prepare-step"]), {"prepare-step": wrong})
    assert (said["code"], said["data"]["originCode"]) == ("hook_failed", "invalid_type")
    run = await site.bus.run("r", scope=SCOPE, sources=[DOCS], estimator=CHARACTERS)
    assert (await run.before_model_call([user("How?")], model=MODEL)).step == 0  # the actors live on


@pytest.mark.rule("D.W.4")
async def test_a_remote_function_that_hangs_is_late(remote: contextbus.ContextBus) -> None:
    async def hangs(_: str, __: StepContext) -> str:
        await asyncio.sleep(3600)
        return ""

    run = await remote.run("r", scope=SCOPE, sources=[DOCS], rewrite_query=hangs)
    with pytest.raises(CallbackTimeoutError) as caught:
        await run.before_model_call([user("How?")], model=MODEL, seconds=1.0)
    assert caught.value.origin == "rewrite_query"
