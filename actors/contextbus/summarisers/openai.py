"""Summaries by any endpoint of the form of OpenAI's chat completions, through the ``openai`` SDK (C.X.10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from contextbus.summarisers.endpoints import (
    check_client,
    check_extra_body,
    import_sdk,
    list_of,
    read_count,
    read_response,
    read_text,
    seconds_left,
)
from contextbus.summarisers.interface import Summary, SummaryRequest, check_summariser
from contextbus_protocol.compaction import SummaryPart
from contextbus_protocol.values import Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OPENAI_ID: Final = "openai"
_OFFICIAL_HOSTS: Final = ("api.openai.com", ".openai.azure.com")

LimitField = Literal["max_tokens", "max_completion_tokens"]


class _Content(msgspec.Struct):
    type: str = ""
    text: object = None


class _Said(msgspec.Struct):
    content: str | list[_Content] | None = None
    refusal: object = None
    reasoning_content: object = None
    reasoning: object = None
    tool_calls: object = None
    function_call: object = None


class _Choice(msgspec.Struct):
    message: _Said | None = None
    finish_reason: object = None


class _Cached(msgspec.Struct):
    cached_tokens: object = None
    cache_write_tokens: object = None


class _Used(msgspec.Struct):
    prompt_tokens: object = None
    completion_tokens: object = None
    prompt_tokens_details: _Cached | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Used | None = None


class OpenAISummariser:
    """One model behind one endpoint; ``openai_summariser`` makes it."""

    def __init__(
        self,
        client: AsyncOpenAI,
        *,
        model: str,
        id: str,  # noqa: A002  (the word that users write)
        extra_body: Mapping[str, object],
        limit_field: LimitField,
        owned: bool,
    ) -> None:
        self.id = id
        self._client = client.with_options(max_retries=0)
        self._model = model
        self._extra_body = extra_body
        self._limit_field: LimitField = limit_field
        self._owned = owned
        check_summariser(self)

    async def summarise(self, request: SummaryRequest) -> Summary:
        """Make one request, with no retry and no tools (C.F.1, C.F.6); errors of the SDK are raised as they are."""
        left = seconds_left()
        completion = await self._client.chat.completions.create(
            model=self._model,
            messages=[
                {"role": "system", "content": request.instructions},
                {"role": "user", "content": request.prompt},
            ],
            timeout=self._client.timeout if left is None else left,
            extra_body={**self._extra_body, self._limit_field: request.max_output_tokens},
        )
        return _read(read_response(completion, _Completion))

    async def aclose(self) -> None:
        """Close the client, unless it was given."""
        if self._owned:
            await self._client.close()


def openai_summariser(
    *,
    model: str,
    client: AsyncOpenAI | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    id: str = OPENAI_ID,  # noqa: A002  (the word that users write)
    extra_body: Mapping[str, object] | None = None,
    limit_field: LimitField | None = None,
) -> OpenAISummariser:
    """Make a summariser of a model behind an OpenAI-compatible endpoint (C.X.10).

    Args:
        model: The model, as the endpoint calls it.
        client: An asynchronous client of the SDK; its own retries are turned off (C.F.1).  Without it one is made.
        base_url: The endpoint, for a client that is made here; what the SDK reads from the environment without it.
        api_key: The key, likewise.
        id: The name of the summariser.
        extra_body: Further fields of each request, such as ``reasoning_effort``.
        limit_field: In which field the endpoint takes the allowance; without it ``max_completion_tokens`` for OpenAI
            itself, ``max_tokens``, which others know, elsewhere.

    Raises:
        InvalidRequestError: the SDK is not installed.
        InvalidTypeError: the client is not asynchronous, the id is not usable, or ``extra_body`` holds what is not the
            caller's to say.
        openai.OpenAIError: no key is given and none is in the environment.
    """
    sdk = import_sdk("openai")
    if client is not None:
        check_client(client, "openai")
    used: AsyncOpenAI = sdk.AsyncOpenAI(base_url=base_url, api_key=api_key) if client is None else client
    official = used.base_url.host.endswith(_OFFICIAL_HOSTS)
    return OpenAISummariser(
        used,
        model=model,
        id=id,
        extra_body=check_extra_body(extra_body),
        limit_field=limit_field or ("max_completion_tokens" if official else "max_tokens"),
        owned=client is None,
    )


def _read(completion: _Completion) -> Summary:
    usage = _read_usage(completion.usage)
    if not completion.choices:  # some endpoints report an error this way, with status 200
        return Summary((), "error", usage)
    choice = completion.choices[0]
    said = choice.message or _Said()
    parts: list[SummaryPart] = []
    if thought := read_text(said.reasoning_content) or read_text(said.reasoning):
        parts.append(SummaryPart("reasoning", thought))
    if isinstance(said.content, str):
        parts.append(SummaryPart("text", said.content))
    else:
        parts += [_read_content(content) for content in said.content or ()]
    if refusal := read_text(said.refusal):
        parts.append(SummaryPart("refusal", refusal))
    calls = len(list_of(said.tool_calls)) + (said.function_call is not None)
    parts += [SummaryPart("tool-call")] * calls  # neither run nor adopted (C.F.6)
    return Summary(tuple(parts), read_text(choice.finish_reason) or "unknown", usage)


def _read_content(content: _Content) -> SummaryPart:
    kind = "reasoning" if content.type == "thinking" else content.type or "unknown"
    return SummaryPart(kind, read_text(content.text))


def _read_usage(used: _Used | None) -> Usage | None:
    """Usage as ours: input without what was read from a cache or written to it."""
    if used is None:
        return None
    cached = used.prompt_tokens_details or _Cached()
    read, written = read_count(cached.cached_tokens), read_count(cached.cache_write_tokens)
    return Usage(
        input_tokens=max(0, read_count(used.prompt_tokens) - read - written),
        output_tokens=read_count(used.completion_tokens),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
