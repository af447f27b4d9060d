"""Simulated functions of the host: what one gives is drawn from its command, so it is the same however often asked."""

from __future__ import annotations

import random

import msgspec

from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.values import Model

NAMES: tuple[CallbackName, ...] = ("prepare-step", "rewrite-query")


def draw_names(command: str, share: float) -> tuple[CallbackName, ...]:
    """The functions that a client has for a command."""
    chance = random.Random(f"{command}/names")
    return tuple(name for name in NAMES if chance.random() < share)


def give(run: str, command: str, name: CallbackName, faulty: float) -> CallbackAnswered:
    """What the function gives for a command, or that it failed."""
    chance = random.Random(f"{command}/{name}")
    answer = CallbackAnswered(run=run, token="", name=name)
    if chance.random() < faulty:
        return msgspec.structs.replace(answer, code="hook_failed", origin_code="E1", origin_type="OSError")
    if name == "rewrite-query":
        return msgspec.structs.replace(answer, text=chance.choice(("", f"rewritten for {command}", "deploy " * 400)))
    if chance.random() < 0.6:
        answer = msgspec.structs.replace(
            answer, messages=(user(f"prepared for {command}"), assistant("So."), user(f"And {chance.randrange(4)}?"))
        )
    if chance.random() < 0.4:
        answer = msgspec.structs.replace(answer, model=Model("openai", "gpt-test", 9_000, 1_000))
    if chance.random() < 0.4:
        answer = msgspec.structs.replace(answer, overhead_tokens=chance.randrange(300), tools='[{"name":"look"}]')
    return answer


def answer_question(
    question: AskCallback, chance: random.Random, faulty: float
) -> list[tuple[float, CallbackAnswered]]:
    """The answers to one question, each with its delay in seconds: usually one."""
    given = give(question.run, question.command, question.name, faulty / 4)
    answer = msgspec.structs.replace(given, token=question.token)
    delay = chance.expovariate(500)
    if chance.random() >= faulty:
        return [(delay, answer)]
    other: CallbackName = "rewrite-query" if question.name == "prepare-step" else "prepare-step"
    strange = CallbackAnswered(run=question.run, token=question.token, name=other, text="of another question")
    outcomes: list[list[tuple[float, CallbackAnswered]]] = [
        [],
        [(delay + 6, answer)],
        [(delay, answer), (delay * 2, answer)],
        [(delay, strange), (delay * 2, answer)],
        [(delay + 0.2, answer)],
    ]
    return chance.choice(outcomes)
