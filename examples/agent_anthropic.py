"""An agent on Anthropic's Messages API: streaming, parallel tool calls, and what goes wrong on the way.

With ANTHROPIC_API_KEY it asks the real endpoint; without, a local server with a scripted model, which overflows once,
is overloaded once, and breaks off one stream in the middle of a call's arguments.

Run it: ``python examples/agent_anthropic.py``; ``--help`` tells the rest.
Needs ``pip install 'contextbus[anthropic]'``.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from agent_tools import SYSTEM, Tools, endpoint, open_run, show_end, show_step, start
from anthropic import APIConnectionError, APIError, APIStatusError, AsyncAnthropic, BadRequestError
from anthropic.types import RawMessageStreamEvent

from contextbus.client import CompiledStep, Model, Prompt, Report, Run

try:
    from httpx2 import TransportError
except ImportError:  # older versions of the SDK stand on httpx
    from httpx import TransportError

ATTEMPTS = 4
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)
SERVER_ERROR = 500


@dataclass(frozen=True)
class DeskState:
    """What the model is told anew with each request, behind the history: so it never costs the cache."""

    waiting_for_the_operator: tuple[str, ...]
    streams_broken_off: int


@dataclass
class Reply:
    """A streamed answer: its blocks by index, arguments as the text that came, and whether it came whole."""

    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None
    model: str | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The answer for the history; ``input`` is the raw text, broken or not."""
        return {"role": "assistant", "content": list(self.blocks.values())}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tool calls, also those that broke off."""
        return [block for block in self.blocks.values() if block["type"] == "tool_use"]

    def take(self, event: RawMessageStreamEvent) -> None:
        """Add an event.  The SDK's own helper would guess the end of arguments that broke off; this keeps the text."""
        match event.type:
            case "message_start":
                self.model = event.message.model
                self.usage = event.message.usage.model_dump(exclude_none=True)
            case "content_block_start":
                block = event.content_block.model_dump(exclude_none=True)
                self.blocks[event.index] = {**block, "input": ""} if block["type"] == "tool_use" else block
            case "content_block_delta":
                key = {"input_json_delta": "input", "text_delta": "text"}.get(event.delta.type)
                key = key or event.delta.type.removesuffix("_delta")
                given = event.delta.model_dump(exclude={"type"})
                block = self.blocks[event.index]
                block[key] = block.get(key, "") + next(iter(given.values()))
            case "content_block_stop":
                block = self.blocks[event.index]
                if block["type"] == "tool_use":
                    block["input"] = block["input"] or "{}"  # a tool without parameters
            case "message_delta":
                self.stop_reason = event.delta.stop_reason
                self.usage |= event.usage.model_dump(exclude_none=True)
            case _:
                pass


def is_temporary(error: APIError) -> bool:
    """Whether the same request may succeed later."""
    return not isinstance(error, APIStatusError) or error.status_code in TEMPORARY or error.status_code >= SERVER_ERROR


class Agent:
    """One run, and the endpoint that answers it."""

    def __init__(self, run: Run, client: AsyncAnthropic, model: str) -> None:
        self.tools = Tools(run)
        self._run = run
        self._client = client
        self._model = Model("anthropic", model, 200_000, 8_000)
        prompt = Prompt().system(SYSTEM, cache=True).tools(self.tools.definitions)
        self._prompt = prompt.guardrails(output_tag="answer", thinking=True)
        self._broken_off = 0
        self._settings: dict[str, Any] = {"max_tokens": 8_000, "thinking": {"type": "adaptive"}}

    async def ask(self, question: str) -> str:
        """Answer a question: call the model until it calls no tool."""
        self._run.append({"role": "user", "content": question})
        refresh = True
        while True:
            step, reply = await self._call_model(refresh=refresh)
            refresh = False
            whole = reply.stop_reason is not None
            report = Report(
                status="succeeded",
                messages=[reply.message],
                usage=reply.usage,
                finish_reason=reply.stop_reason or "broken-off",
                response_model=reply.model,
            )
            await self._run.after_model_call(report)
            read, written = (reply.usage.get(f"cache_{kind}_input_tokens", 0) for kind in ("read", "creation"))
            sent = reply.usage["input_tokens"] + read + written
            outcome = f"{len(reply.calls)} calls" if whole else "broken off, no call is made"
            show_step(step, sent=sent, cached=read, outcome=outcome if reply.calls else "answered")
            if not reply.calls:
                text = "".join(block["text"] for block in reply.blocks.values() if block["type"] == "text")
                tagged = ANSWER.search(text)
                return tagged[1] if tagged else text
            self._broken_off += not whole
            if whole:
                calls = [(call["id"], call["name"], call["input"]) for call in reply.calls]
                self._run.append(*await self.tools.call_all(calls))

    async def _call_model(self, *, refresh: bool) -> tuple[CompiledStep, Reply]:
        """Compile a step and stream its answer; less is sent after an overflow, the same again after an error."""
        compiled = None
        for attempt in range(ATTEMPTS):
            state = DeskState(tuple(self.tools.desk.proposals), self._broken_off)
            step = compiled or await self._run.before_model_call(
                model=self._model, prompt=self._prompt.state(state), settings=self._settings, refresh=refresh
            )
            compiled = None
            try:
                reply = await self._stream(step)
            except BadRequestError as error:
                if "prompt is too long" not in str(error):
                    raise
                print(f"step {step.step}: too long for the model; compiled again for less")
                compiled = await self._run.on_overflow()
                continue
            except (APIConnectionError, APIStatusError) as error:
                await self._run.after_model_call(Report(status="failed"))
                if not is_temporary(error):
                    raise
                print(f"step {step.step}: failed ({type(error).__name__}); asked again")
            else:
                if reply.calls or reply.stop_reason is not None:
                    return step, reply
                await self._run.after_model_call(Report(status="failed"))  # half a sentence is no answer
                print(f"step {step.step}: broken off; asked again")
            await asyncio.sleep(0.2 * 2**attempt)
        raise SystemExit(f"no answer after {ATTEMPTS} attempts")

    async def _stream(self, step: CompiledStep) -> Reply:
        """Send the step's payload as it is, and read what comes until it ends or breaks off."""
        reply = Reply()
        body: dict[str, Any] = step.payload("anthropic", cache=True).body
        stream = await self._client.messages.create(model=self._model.model_id, stream=True, **body, **self._settings)
        try:
            async for event in stream:
                reply.take(event)
        except (APIError, TransportError):
            pass  # what came is kept; without a stop reason it is not whole
        finally:
            await stream.close()
        return reply


async def main(options: argparse.Namespace) -> None:
    """Ask the questions one after the other."""
    async with (
        endpoint("anthropic", options, tag="answer") as where,
        AsyncAnthropic(**where, max_retries=0) as client,
        open_run(options) as (bus, run),
    ):
        agent = Agent(run, client, options.model)
        for question in options.ask:
            print(f"\n> {question}")
            print(await agent.ask(question))
        print()
        await show_end(bus, run, agent.tools)


if __name__ == "__main__":
    start(main, model="claude-opus-4-6")
