"""A conversation in its forms, cut at every index, before and after compaction, to every target in every shape."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

import contextbus.client as contextbus
from contextbus.core.history import digest_message
from contextbus.core.payload import start_rendering
from contextbus.core.rendering import Rendering
from contextbus.summarisers.interface import Summariser
from contextbus_protocol.chat import ChatMessage
from tests.payloads.blocks import STEPS, compiled_blocks
from tests.payloads.conversations import FORMS, Conversation, read_forms
from tests.payloads.layers import find_faults
from tests.payloads.shapes import PRODUCT, SHAPES, TARGETS, ModelKind, Shape, Target, model_of, shape_request

ENOUGH: Final = 20
"""Faults that are told of one conversation."""
_BLOCK_EVERY: Final = 5


class Tally(msgspec.Struct):
    """What was checked: payloads by target, form, "before" or "after" compaction, and shape; and what was wrong."""

    checked: Counter[tuple[str, str, str, str]] = msgspec.field(default_factory=Counter[tuple[str, str, str, str]])
    repairs: Counter[str] = msgspec.field(default_factory=Counter[str])
    empty: int = 0
    faults: list[str] = msgspec.field(default_factory=list[str])

    def add(self, other: Tally) -> None:
        """Take over what another one counted."""
        self.checked += other.checked
        self.repairs += other.repairs
        self.empty += other.empty
        self.faults += other.faults


class Renderings:
    """The renderings of one growing history, made when they are asked for and grown from the ones before."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._made: dict[tuple[Target, ModelKind], tuple[int, Rendering]] = {}

    def extend(self, messages: Sequence[ChatMessage]) -> None:
        self._messages += messages

    def of(self, target: Target, shape: Shape) -> Rendering:
        """The history for a target and the kind of model of a shape."""
        count, made = self._made.get((target, shape.model), (0, None))
        made = start_rendering(target, model_of(shape, target)) if made is None else made
        made = made.extend(self._messages[count:])
        self._made[target, shape.model] = len(self._messages), made
        return made


def sweep_conversation(number: int, every: int = 1) -> Tally:
    """Check all of one conversation, or every so many-th cut of it."""
    return asyncio.run(_sweep(number, every))


async def _sweep(number: int, every: int) -> Tally:
    tally = Tally()
    for conversation in read_forms(number):
        await _sweep_form(conversation, every, tally)
    return tally


async def _sweep_form(conversation: Conversation, every: int, tally: Tally) -> None:
    plain, placed = Renderings(), Renderings()
    messages: list[ChatMessage] = []
    with_blocks: list[ChatMessage] = []
    own: list[str] = []
    blocks = compiled_blocks()
    summariser = contextbus.extractive_summariser()
    for cut, message in enumerate(conversation.messages, start=1):
        plain.extend([message])
        placed.extend([message])
        messages.append(message)
        with_blocks.append(message)
        if (cut + conversation.number) % every == 0 or cut == len(conversation.messages):
            _check(conversation, cut, "before", (plain, placed), tally)
            keep = 1 + cut % 5
            after = [
                await compact_history(given, own, keep, summariser)
                for given in ((messages, with_blocks) if conversation.form == FORMS[0] else (with_blocks,))
            ]
            if after[-1] is not None:
                shorter = Renderings(), Renderings()
                shorter[0].extend(after[0] or ())
                shorter[1].extend(after[-1])
                _check(conversation, cut, "after", shorter, tally)
        if message.role in ("user", "tool") and cut % _BLOCK_EVERY == conversation.number % _BLOCK_EVERY:
            block = blocks[(cut + conversation.number) % STEPS].append
            placed.extend(block)
            with_blocks += block
            own += map(digest_message, block)


async def compact_history(
    messages: Sequence[ChatMessage], own: Sequence[str], keep: int, summariser: Summariser
) -> list[ChatMessage] | None:
    """The composed history, None where nothing may be replaced."""
    outcome = await contextbus.compact(
        messages,
        model=summariser,
        target_tokens=1_000_000,
        keep_last_messages=keep,
        own_blocks=own,
        media="placeholder" if keep % 2 else "protect",
        count_tokens=len,
    )
    if not isinstance(outcome, contextbus.Compacted):
        return None
    return [message for message in outcome.messages if isinstance(message, ChatMessage)]


def _check(
    conversation: Conversation, cut: int, when: str, histories: tuple[Renderings, Renderings], tally: Tally
) -> None:
    blocks = compiled_blocks()[(cut + conversation.number) % STEPS]
    for shape in _shapes(conversation, cut):
        for target in TARGETS:
            history = histories[shape.retrieval].of(target, shape)
            has_tail = shape.memory or shape.state == "last_user" or shape.guardrails != "none"
            if history.empty and not (shape.retrieval or has_tail):
                tally.empty += 1
                continue
            payload = shape_request(history, shape, target, blocks, conversation.tools)
            tally.checked[target, conversation.form, when, shape.name] += 1
            tally.repairs.update({repair.code for repair in payload.repairs})
            if faults := find_faults(payload):
                place = f"{target}, conversation {conversation.number} {conversation.form!r}, cut {cut} {when}, {shape}"
                tally.faults += [f"{place}: {fault}" for fault in faults[:3]] if len(tally.faults) < ENOUGH else []


def _shapes(conversation: Conversation, cut: int) -> Iterator[Shape]:
    """All shapes for a conversation as it was, of the others those with most in them; and one of all combinations."""
    yield from SHAPES if conversation.form == FORMS[0] else (SHAPES[0], SHAPES[4], SHAPES[7], SHAPES[8])
    yield PRODUCT[(31 * conversation.number + cut) % len(PRODUCT)]
