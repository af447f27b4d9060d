"""The simulated summariser: what it writes depends on the messages alone, how it fails on chance (C.F.10, C.X.4)."""

from __future__ import annotations

import hashlib
import random
import re
from typing import Final, Literal, get_args

from contextbus.core.estimate import make_estimator
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, user
from contextbus_protocol.compaction import Summarise, Summarised, SummaryFailed, SummaryPart
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.values import Usage

Behaviour = Literal[
    "good",
    "unmetered",
    "thoughtful",
    "empty",
    "blank",
    "cut",
    "tool-call",
    "larger",
    "barely",
    "late",
    "never",
    "twice",
    "strange",
    "busy",
    "absent",
    "error",
    "costly-error",
    "fitting",
]
BEHAVIOURS: Final[tuple[Behaviour, ...]] = tuple(b for b in get_args(Behaviour) if b != "fitting")
"""Those that are drawn: a summary that takes nearly all its room is asked for by hand."""
SOUND: Final[frozenset[Behaviour]] = frozenset({"good", "unmetered", "thoughtful", "twice", "strange"})
"""Those that give a summary in time; a reduction can only refuse it for its size."""

MARK: Final = "recounted"
"""A word of every summary, of no message otherwise: it tells where one shows."""
SECRET: Final = "provider-said-secret"
"""A word of every error text: none may show anywhere."""

_FACT: Final = re.compile(r"\b[A-Z]{2,5}-\d{4,}\b")
_SAID: Final = re.compile(r"\b\S+ says \d+\b")

Answers = list[tuple[float, AnyMessage]]


def texts_of(messages: tuple[ChatMessage, ...]) -> list[str]:
    """The texts of messages and of tool results in them."""
    found: list[str] = []
    for message in messages:
        for part in message.content:
            match part:
                case Text(text=text):
                    found.append(text)
                case ToolCall(name=name, arguments=arguments):
                    found.append(f"{name} {arguments}")
                case ToolResult(content=content):
                    found += [inner.text for inner in content if isinstance(inner, Text)]
                case _:
                    pass
    return found


def summarise(messages: tuple[ChatMessage, ...]) -> str:
    """A summary that keeps every identifier and, of what was said, a digest: the same messages give the same text."""
    text = "\n".join(texts_of(messages))
    facts = list(dict.fromkeys(_FACT.findall(text)))
    said = hashlib.sha256(" ".join(_SAID.findall(text)).encode()).hexdigest()[:8]
    return f"{MARK} {said}: " + ("nothing" if not facts else " ".join(facts))


def choose_behaviour(chance: random.Random, faulty: float) -> Behaviour:
    """How the summariser takes a request."""
    return chance.choice(BEHAVIOURS) if chance.random() < faulty else "good"


def answer_request(request: Summarise, behaviour: Behaviour, delay: float) -> Answers:
    """The answers to one request, each with its delay in seconds."""
    usage = Usage(sum(map(len, texts_of(request.messages))) // 4 + 40, 12)
    written = summarise(request.messages)

    def summary(text: str, *, reason: str = "stop", extra: tuple[SummaryPart, ...] = ()) -> Summarised:
        return Summarised(
            run=request.run,
            token=request.token,
            summariser=request.summariser,
            parts=(*extra, SummaryPart("text", text)),
            finish_reason=reason,
            usage=None if behaviour == "unmetered" else usage,
        )

    def failed(code: str, *, cost: Usage | None = None) -> SummaryFailed:
        return SummaryFailed(
            run=request.run,
            token=request.token,
            summariser=request.summariser,
            code=code,
            origin_type="OSError",
            usage=cost,
        )

    late = request.seconds_left * 2 + delay
    other = Summarised(
        run=request.run,
        token=f"{request.token}0",
        summariser=request.summariser,
        parts=(SummaryPart("text", f"{SECRET} of another"),),
    )
    answers: dict[Behaviour, Answers] = {
        "good": [(delay, summary(written))],
        "unmetered": [(delay, summary(written))],
        "thoughtful": [(delay, summary(written, extra=(SummaryPart("reasoning", f"{SECRET} thinking"),)))],
        "empty": [(delay, summary(""))],
        "blank": [(delay, summary(" \n\t "))],
        "cut": [(delay, summary(written, reason="length"))],
        "tool-call": [(delay, summary(written, extra=(SummaryPart("tool-call", SECRET),)))],
        "larger": [(delay, summary(f"{written} " + "and so on " * 4_000))],
        "barely": [(delay, summary(_pad(written, request.messages)))],
        "fitting": [(delay, summary(_fill(written, request.max_output_tokens)))],
        "late": [(late, summary(written))],
        "never": [],
        "twice": [(delay, summary(written)), (delay * 2, summary(f"{written} again"))],
        "strange": [(delay / 2, other), (delay, summary(written)), (delay * 3, failed("error"))],
        "busy": [(delay, failed("busy"))],
        "absent": [(delay, failed("absent"))],
        "error": [(delay, failed("error"))],
        "costly-error": [(delay, failed("error", cost=usage))],
    }
    return answers[behaviour]


def _fill(text: str, room: int) -> str:
    """The text made as large as four fifths of what it may take, in tokens."""
    estimator = make_estimator()
    while estimator.tokens(estimator.message(user(text))) < room * 4 // 5:
        text += " word"
    return text


def _pad(text: str, messages: tuple[ChatMessage, ...]) -> str:
    """The text made as large as the messages, a little less: it shrinks them by next to nothing."""
    estimator = make_estimator()
    room = estimator.tokens(sum(estimator.message(message) for message in messages)) * 97 // 100
    words = "word " * max(0, room - estimator.tokens(18 * 60))
    return f"{text} {words}"
