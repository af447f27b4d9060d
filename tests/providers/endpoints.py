"""SDK clients on the local servers, and requests that are right until a test spoils them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import anthropic
import openai

from tests.providers.server import ProviderServer, serve
from tests.providers.turns import Turn

CLAUDE: Final = "claude-opus-4-6"
GPT: Final = "gpt-5.1"
ANTHROPIC_TOOL: Final[dict[str, Any]] = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
OPENAI_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object"}},
}


def anthropic_body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A request to Anthropic, with a tool."""
    return {
        "model": CLAUDE,
        "max_tokens": 2_000,
        "tools": [ANTHROPIC_TOOL],
        "messages": list(messages) or [{"role": "user", "content": "Hello."}],
        **more,
    }


def openai_body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A request to OpenAI, with a tool."""
    return {
        "model": GPT,
        "tools": [OPENAI_TOOL],
        "messages": list(messages) or [{"role": "user", "content": "Hello."}],
        **more,
    }


@asynccontextmanager
async def claude(
    script: Iterable[Turn], *, strict: bool = True, binds: bool = False
) -> AsyncGenerator[tuple[ProviderServer, anthropic.AsyncAnthropic]]:
    """Anthropic's server, and its SDK's client."""
    async with (
        serve("anthropic", script, strict=strict, binds=binds) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        yield server, client


@asynccontextmanager
async def gpt(
    script: Iterable[Turn], *, strict: bool = True
) -> AsyncGenerator[tuple[ProviderServer, openai.AsyncOpenAI]]:
    """OpenAI's server, and its SDK's client."""
    async with (
        serve("openai", script, strict=strict) as server,
        openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        yield server, client
