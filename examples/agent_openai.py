"""An agent on OpenAI's Chat Completions: streaming, parallel tool calls, and what goes wrong on the way.

With OPENAI_API_KEY it asks the real endpoint; without, a local server with a scripted model, which overflows once, is
overloaded once, and breaks off one stream in the middle of a call's arguments.  The payload goes out as the bytes that
were compiled, through the SDK's own ``post``.

Run it: ``python examples/agent_openai.py``; ``--help`` tells the rest.  Needs ``pip install 'contextbus[openai]'``.
"""

from __future__ import annotations

import argparse
import asyncio
from http import HTTPStatus

from agent_tools import SYSTEM, Tools, endpoint, open_run, show_end, show_step, start
from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, AsyncStream, BadRequestError
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage

from contextbus.client import CompiledStep, Model, Report, Run, user

try:
    from httpx2 import TransportError
except ImportError:  # older versions of the SDK stand on httpx
    from httpx import TransportError

ATTEMPTS = 4
TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)
SERVER_ERROR = 500


class Reply:
    """A streamed answer: what came, whether it came whole, and the bytes that it answers."""

    def __init__(self, completion: ChatCompletion, sent: bytes) -> None:
        choice = completion.choices[0]
        self.sent = sent
        self.message: ChatCompletionMessage = choice.message
        self.finish_reason: str | None = choice.finish_reason
        self.usage = completion.usage
        self.model = completion.model

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of the tool calls, also of those that broke off."""
        calls = self.message.tool_calls or ()
        return [(call.id, call.function.name, call.function.arguments) for call in calls if call.type == "function"]


def is_temporary(error: APIError) -> bool:
    """Whether the same request may succeed later."""
    return not isinstance(error, APIStatusError) or error.status_code in TEMPORARY or error.status_code >= SERVER_ERROR


class Agent:
    """One run, and the endpoint that answers it."""

    def __init__(self, run: Run, client: AsyncOpenAI, model: str) -> None:
        self.tools = Tools(run)
        self._run = run
        self._client = client
        self._model = Model("openai", model, 400_000, 8_000)
        self._settings = {"max_completion_tokens": 8_000}

    async def ask(self, question: str) -> str:
        """Answer a question: call the model until it calls no tool."""
        self._run.append(user(question))
        refresh = True
        while True:
            step, reply = await self._call_model(refresh=refresh)
            refresh = False
            whole = reply.finish_reason is not None
            report = Report(
                status="succeeded",
                messages=[reply.message],  # the SDK's object; arguments are text in it, broken or not
                usage=reply.usage,
                finish_reason=reply.finish_reason or "broken-off",
                request_body=reply.sent,
                response_model=reply.model,
            )
            await self._run.after_model_call(report)
            details = reply.usage.prompt_tokens_details if reply.usage else None
            sent = reply.usage.prompt_tokens if reply.usage else 0
            outcome = f"{len(reply.calls)} calls" if whole else "broken off, no call is made"
            cached = (details.cached_tokens or 0) if details else 0
            show_step(step, sent=sent, cached=cached, outcome=outcome if reply.calls else "answered")
            if not reply.calls:
                return reply.message.content or ""
            if whole:
                self._run.append(*await self.tools.call_all(reply.calls))

    async def _call_model(self, *, refresh: bool) -> tuple[CompiledStep, Reply]:
        """Compile a step and stream its answer; less is sent after an overflow, the same again after an error."""
        compiled = None
        for attempt in range(ATTEMPTS):
            step = compiled or await self._run.before_model_call(
                model=self._model, tools=self.tools.definitions, settings=self._settings, refresh=refresh
            )
            compiled = None
            try:
                reply = await self._stream(step)
            except BadRequestError as error:
                if error.code != "context_length_exceeded":
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
                if reply is not None and (reply.calls or reply.finish_reason is not None):
                    return step, reply
                await self._run.after_model_call(Report(status="failed"))  # half a sentence is no answer
                print(f"step {step.step}: broken off; asked again")
            await asyncio.sleep(0.2 * 2**attempt)
        raise SystemExit(f"no answer after {ATTEMPTS} attempts")

    async def _stream(self, step: CompiledStep) -> Reply | None:
        """Send the step's bytes as they are, and read what comes until it ends or breaks off; None if nothing came."""
        body = step.payload("openai").json(
            model=self._model.model_id, stream=True, stream_options={"include_usage": True}, **self._settings
        )
        state = ChatCompletionStreamState()
        came = False
        stream = await self._client.post(
            "/chat/completions",
            cast_to=ChatCompletion,
            content=body,
            options={"headers": {"content-type": "application/json"}},
            stream=True,
            stream_cls=AsyncStream[ChatCompletionChunk],
        )
        try:
            async for chunk in stream:
                state.handle_chunk(chunk)
                came = True
        except (APIError, TransportError):
            pass  # what came is kept; without a finish reason it is not whole
        finally:
            await stream.close()
        return Reply(state.current_completion_snapshot, body) if came else None


async def main(options: argparse.Namespace) -> None:
    """Ask the questions one after the other."""
    async with (
        endpoint("openai", options) as where,
        AsyncOpenAI(**where, max_retries=0) as client,
        open_run(options) as (bus, run),
    ):
        run.append({"role": "system", "content": SYSTEM})
        agent = Agent(run, client, options.model)
        for question in options.ask:
            print(f"\n> {question}")
            print(await agent.ask(question))
        print()
        await show_end(bus, run, agent.tools)


if __name__ == "__main__":
    start(main, model="gpt-5.1")
