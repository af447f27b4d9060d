"""What simulated clients say and ask for, drawn from a client's own generator."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from contextbus.core.skill_loads import BODY_SUFFIX, LOAD_SKILL
from contextbus_protocol.callbacks import AskCallback, CallbackAnswered, CallbackName, HistoryState
from contextbus_protocol.chat import ChatMessage, Reasoning, ToolCall, ToolResult, assistant, system, user
from contextbus_protocol.chat import Text as TextPart
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import EstimatorSpec, Model, RefreshOptions, Scope, StepOptions, Usage
from contextbus_protocol.working_memory import (
    AddHypothesis,
    AddObservation,
    AnyOperation,
    SetActiveTask,
    SetGoal,
    Task,
    TaskList,
    TasksInput,
)
from tests.simulation.sources import SKILLS, SOURCES

MODEL: Final = Model("anthropic", "claude-haiku-4-5", 20_000, 2_000)
BOUND: Final = Model("anthropic", "claude-opus-5-5", 20_000, 2_000)
SMALL: Final = Model("anthropic", "claude-opus-4-6", 4_000, 3_900)
CALIBRATES: Final = "run-1"
"""The run whose estimator learns from reported usage."""
HOOKS: Final[tuple[CallbackName, ...]] = ("prepare-step", "before-compile", "transform-context", "rewrite-query")
LOADED: Final = (*SKILLS, "absent")
REFRESH: Final = RefreshOptions(min_steps=2, max_passes=30, candidates_per_source=6)


def text_of(chance: random.Random, name: str, number: int) -> str:
    """A text that nobody else says."""
    return f"{name} says {number} " + "something " * chance.randrange(6)


def messages_of(chance: random.Random, name: str, number: int) -> tuple[ChatMessage, ...]:
    """What comes before a step: nothing, a user's message, blanks, a tool's result, a loaded skill."""
    draw = chance.random()
    if draw < 0.15:
        return ()
    if draw < 0.65:
        return (user(text_of(chance, name, number)),)
    if draw < 0.7:
        return (user("   "),)
    call = f"{name}-{number}"
    if draw < 0.85:
        return look(call, text_of(chance, name, number))
    return load_skill(call, chance.choice(LOADED), failed=chance.random() < 0.2)


def look(call: str, text: str) -> tuple[ChatMessage, ...]:
    """The model calls a tool."""
    result = ToolResult(id=call, content=(TextPart(text=text),))
    return (
        ChatMessage(role="assistant", content=(ToolCall(id=call, name="look", arguments='{"a":1}'),)),
        ChatMessage(role="tool", content=(result,)),
    )


def load_skill(call: str, skill: str, *, failed: bool = False) -> tuple[ChatMessage, ...]:
    """The model loads a skill (D.K.26)."""
    result = ToolResult(id=call, content=(TextPart(text="done"),), name=LOAD_SKILL, error=failed)
    asked = ToolCall(id=call, name=LOAD_SKILL, arguments=f'{{"skill":"{skill}"}}')
    return (
        ChatMessage(role="assistant", content=(asked,)),
        ChatMessage(role="tool", content=(result,)),
    )


def answer_of(text: str) -> ChatMessage:
    """What a model answers, its thinking before it."""
    thinking = Reasoning(text="thinking of " + text, signature="signed")
    return ChatMessage(role="assistant", content=(thinking, *assistant(text).content))


def options_of(chance: random.Random, run: str) -> StepOptions:
    """Options of a step: mostly one model, at times one that binds thinking or a tiny one, and changing tools."""
    draw = chance.random()
    model = MODEL if draw < 0.7 else BOUND if draw < 0.95 else SMALL
    return StepOptions(
        scope=Scope(user_id="ada"),
        model=model,
        sources=SOURCES if chance.random() < 0.95 else SOURCES[:2],
        refresh=REFRESH,
        estimator=EstimatorSpec(calibrate=run == CALIBRATES),
        tools_digest=None if chance.random() < 0.9 else "sha256:" + "7" * 64,
    )


def usage_of(chance: random.Random) -> Usage:
    """What a provider reports."""
    return Usage(chance.randrange(100, 4000), 10)


def tasks() -> TasksInput:
    """The tasks of every run."""
    return TasksInput(TaskList("ship", (Task("a", "Deploy billing"), Task("b", "Tell support"))), "a")


def operation_of(chance: random.Random, text: str) -> AnyOperation:
    """One operation of a patch."""
    choices: tuple[AnyOperation, ...] = (
        AddObservation(text=text),
        AddHypothesis(text=text),
        SetActiveTask(id=chance.choice(("a", "b", None))),
        SetGoal(text=text),
    )
    return chance.choice(choices)


def callbacks_of(chance: random.Random) -> tuple[CallbackName, ...]:
    """The functions of the host that a step asks for: mostly none."""
    if chance.random() < 0.6:
        return ()
    return tuple(name for name in HOOKS if chance.random() < 0.4)


def prompt_of(chance: random.Random, text: str) -> PromptParts | None:
    """What the host adds to a step's request: mostly nothing, else a system layer that seldom changes, and a tail."""
    if chance.random() < 0.6:
        return None
    in_system = chance.random() < 0.1
    layer = (system("be terse" if chance.random() < 0.8 else "be verbose"),) if chance.random() < 0.7 else ()
    return PromptParts(
        system=(*layer, system(text)) if in_system else layer,
        state=() if in_system or chance.random() < 0.2 else (user(f"<dynamic_state>{text}</dynamic_state>"),),
        guardrails=(user("Answer inside <answer>."),) if chance.random() < 0.5 else (),
        prefill="So: " if chance.random() < 0.4 else None,
        thinking=chance.random() < 0.2,
        state_in_system=in_system,
    )


def transformed_text(history: HistoryState) -> str:
    """What ``transform_context`` gives in place of a history: it tells which one."""
    return f"transformed for {history.count} messages and the blocks {history.blocks or 'none'}"


def answer_callback(
    ask: AskCallback, run: str, chance: random.Random, faulty: float
) -> list[tuple[float, CallbackAnswered]]:
    """What a function of the host gives, each with its delay in seconds: usually one answer to it (D.W.4)."""
    if ask.name == "rewrite-query":
        text = chance.choice((f"{ask.query} again", "  ", "rewritten"))
        answer = CallbackAnswered(run=run, token=ask.token, name=ask.name, text=text)
    elif ask.name == "before-compile":
        answer = CallbackAnswered(
            run=run, token=ask.token, name=ask.name, text=chance.choice((None, "", f"a snippet for {ask.command}"))
        )
    elif ask.name == "transform-context":
        assert ask.history is not None
        given = (user(transformed_text(ask.history)),) if chance.random() < 0.5 else None
        answer = CallbackAnswered(run=run, token=ask.token, name=ask.name, messages=given)
    else:
        changed = chance.random()
        answer = CallbackAnswered(
            run=run,
            token=ask.token,
            name=ask.name,
            messages=(user(f"prepared for {ask.command}"),) if changed < 0.3 else None,
            model=BOUND if 0.2 < changed < 0.5 else None,
            overhead_tokens=250 if 0.4 < changed < 0.7 else None,
            tools_digest="sha256:" + "8" * 64 if 0.6 < changed < 0.8 else None,
        )
    delay = chance.expovariate(500)
    if chance.random() >= faulty:
        return [(delay, answer)]
    failed = CallbackAnswered(run=run, token=ask.token, name=ask.name, code="error", origin_type="KeyError")
    other = HOOKS[HOOKS.index(ask.name) - 1]
    strange = CallbackAnswered(run=run, token=ask.token, name=other, text="another's", overhead_tokens=777)
    older = msgspec.structs.replace(strange, name=ask.name, token=f"{ask.token}/older", messages=(user("another's"),))
    outcomes: list[list[tuple[float, CallbackAnswered]]] = [
        [(delay / 2, older), (delay, answer)],
        [],
        [(delay + ask.seconds_left * 2, answer)],
        [(delay / 2, strange), (delay, answer), (delay * 2, answer)],
        [(delay, failed)],
        [(delay, answer), (delay * 2, failed)],
    ]
    return chance.choice(outcomes)


def is_body(record_id: str) -> bool:
    """Whether a record is the body of a skill."""
    return record_id.endswith(BODY_SUFFIX)
