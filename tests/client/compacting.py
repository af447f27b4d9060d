"""Messages in the AI SDK's form, and summarisers that are played, for the tests of ``compact``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import contextbus.client as contextbus
from contextbus.client import CannotFit, Compacted
from contextbus.summarisers.interface import Summary, SummaryRequest

Message = dict[str, Any]

compact: Any = contextbus.compact  # hands over what the types forbid, too
LABEL = "Previous conversation summary:\n"
MEDIA: Message = {"role": "user", "content": [{"type": "file", "mediaType": "application/pdf", "data": "JVBERi0="}]}
IMAGE: Message = {"role": "user", "content": [{"type": "image", "image": "aGVsbG8=", "mediaType": "image/png"}]}


def system(text: str = "rules") -> Message:
    return {"role": "system", "content": text}


def user(text: str = "ask") -> Message:
    return {"role": "user", "content": text}


def assistant(text: str = "say") -> Message:
    return {"role": "assistant", "content": text}


def call_part(name: str) -> Message:
    return {"type": "tool-call", "toolCallId": name, "toolName": "t", "input": {}}


def result_part(name: str, text: str = "done") -> Message:
    return {
        "type": "tool-result",
        "toolCallId": name,
        "toolName": "t",
        "output": {"type": "text", "value": text},
    }


def request_part(name: str, approval: str | None = None) -> Message:
    return {"type": "tool-approval-request", "approvalId": approval or f"ok-{name}", "toolCallId": name}


def response_part(name: str, *, approved: bool = True) -> Message:
    return {"type": "tool-approval-response", "approvalId": f"ok-{name}", "approved": approved}


def assistant_of(*parts: Message) -> Message:
    return {"role": "assistant", "content": list(parts)}


def tool_of(*parts: Message) -> Message:
    return {"role": "tool", "content": list(parts)}


def call(name: str) -> Message:
    return assistant_of(call_part(name))


def res(name: str, text: str = "done") -> Message:
    return tool_of(result_part(name, text))


def b1() -> list[Message]:
    return [user("R" * 400), assistant("S" * 400), user("keep me"), assistant("ok")]


def b2() -> list[Message]:
    return [user("find it"), call("k"), res("k", "x" * 200), call("l"), res("l", "y" * 10)]


class Scripted:
    """A summariser that gives what it was told to, and remembers what it was asked."""

    id = "scripted"

    def __init__(self, *answers: str | Summary | BaseException) -> None:
        self.answers = list(answers) or ["Short."]
        self.asked: list[SummaryRequest] = []

    async def summarise(self, request: SummaryRequest) -> str | Summary:
        self.asked.append(request)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Counted:
    """A counter of the caller: counts by characters, and remembers what it was given."""

    def __init__(self, count: Callable[[Sequence[Any]], Any] | None = None) -> None:
        self.given: list[tuple[Any, ...]] = []
        self._count = count or contextbus.estimate_tokens

    def __call__(self, messages: tuple[Any, ...]) -> Any:
        self.given.append(messages)
        return self._count(messages)


async def compacted(messages: Sequence[Any], model: Any = None, **options: Any) -> Compacted:
    """Compact what must be compactable."""
    result = await compact(messages, model=model or Scripted(), **{"target_tokens": 10_000, **options})
    assert isinstance(result, Compacted), result
    return result


async def refused(messages: Sequence[Any], model: Any = None, **options: Any) -> CannotFit:
    """Compact what must be refused; nothing of the messages may be another object (C.G.2)."""
    result = await compact(messages, model=model or Scripted(), **{"target_tokens": 10_000, **options})
    assert isinstance(result, CannotFit), result
    assert result.status == "cannot-fit"
    assert result.messages == tuple(messages)
    assert all(ours is theirs for ours, theirs in zip(result.messages, messages, strict=True))
    assert result.tokens.before == result.tokens.after
    return result


async def range_of(messages: Sequence[Any], keep: int, **options: Any) -> tuple[int, int] | None:
    """The range that a call replaces; None where there is none."""
    options = {"model": Scripted(), "target_tokens": 100_000, **options}
    result = await compact(messages, keep_last_messages=keep, **options)
    if isinstance(result, Compacted):
        return result.replaced_range.start, result.replaced_range.end
    assert result.reason == "no-safe-boundary"
    return None
