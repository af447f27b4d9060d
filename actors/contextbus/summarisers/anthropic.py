"""Summaries by an Anthropic endpoint, through the ``anthropic`` SDK (C.X.10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from contextbus.summarisers.endpoints import (
    check_client,
    check_extra_body,
    import_sdk,
    read_count,
    read_response,
    read_text,
    seconds_left,
)
from contextbus.summarisers.interface import Summary, SummaryRequest, check_summariser
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.values import Usage

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

ANTHROPIC_ID: Final = "anthropic"
_KINDS: Final = {"thinking": "reasoning", "redacted_thinking": "reasoning", "tool_use": "tool-call"}


class _Block(msgspec.Struct):
    type: str = ""
    text: object = None
    thinking: object = None


class _Used(msgspec.Struct):
    input_tokens: object = None
    output_tokens: object = None
    cache_read_input_tokens: object = None
    cache_creation_input_tokens: object = None


class _Message(msgspec.Struct):
    content: list[_Block] | None = None
    stop_reason: object = None
    usage: _Used | None = None


class AnthropicSummariser:
    """One model behind one endpoint; ``anthropic_summariser`` makes it."""

    def __init__(
        self,
        client: AsyncAnthropic,
        *,
        model: str,
        id: str,  # noqa: A002  (the word that users write)
        extra_body: Mapping[str, object],
        owned: bool,
    ) -> None:
        self.id = id
        self._client = client.with_options(max_retries=0)
        self._model = model
        self._extra_body = extra_body
        self._owned = owned
        check_summariser(self)

    async def summarise(self, request: SummaryRequest) -> Summary:
        """Make one request, with no retry and no tools (C.F.1, C.F.6); errors of the SDK are raised as they are."""
        left = seconds_left()
        message = await self._client.messages.create(
            model=self._model,
            max_tokens=request.max_output_tokens,
            system=request.instructions,
            messages=[{"role": "user", "content": request.prompt}],
            timeout=self._client.timeout if left is None else left,
            extra_body=self._extra_body,
        )
        return _read(read_response(message, _Message))

    async def aclose(self) -> None:
        """Close the client, unless it was given."""
        if self._owned:
            await self._client.close()


def anthropic_summariser(
    *,
    model: str,
    client: AsyncAnthropic | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    id: str = ANTHROPIC_ID,  # noqa: A002  (the word that users write)
    extra_body: Mapping[str, object] | None = None,
) -> AnthropicSummariser:
    """Make a summariser of a model behind an Anthropic endpoint (C.X.10).

    Args:
        model: The model, as the endpoint calls it.
        client: An asynchronous client of the SDK; its own retries are turned off (C.F.1).  Without it one is made.
        base_url: The endpoint, for a client that is made here; what the SDK reads from the environment without it.
        api_key: The key, likewise.
        id: The name of the summariser.
        extra_body: Further fields of each request.

    Raises:
        InvalidRequestError: the SDK is not installed.
        InvalidTypeError: the client is not asynchronous, the id is not usable, or ``extra_body`` holds what is not the
            caller's to say.
    """
    sdk = import_sdk("anthropic")
    if client is not None:
        check_client(client, "anthropic")
    used: AsyncAnthropic = sdk.AsyncAnthropic(base_url=base_url, api_key=api_key) if client is None else client
    return AnthropicSummariser(used, model=model, id=id, extra_body=check_extra_body(extra_body), owned=client is None)


def _read(message: _Message) -> Summary:
    parts = tuple(_read_block(block) for block in message.content or ())
    return Summary(parts, read_text(message.stop_reason) or "unknown", _read_usage(message.usage))


def _read_block(block: _Block) -> SummaryPart:
    kind = _KINDS.get(block.type, block.type or "unknown")
    return SummaryPart(kind, read_text(block.thinking if block.type == "thinking" else block.text))


def _read_usage(used: _Used | None) -> Usage | None:
    if used is None:
        return None
    return Usage(
        input_tokens=read_count(used.input_tokens),
        output_tokens=read_count(used.output_tokens),
        cache_read_tokens=read_count(used.cache_read_input_tokens),
        cache_write_tokens=read_count(used.cache_creation_input_tokens),
    )
