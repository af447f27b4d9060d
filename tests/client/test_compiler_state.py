"""State and determinism of a compiler, over histories of any kind (D.H.2, D.A.6, D.A.7)."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.compiling import CHARACTERS, QUESTION, Host
from tests.client.scripted import Scripted

import contextbus.client as contextbus
from contextbus_protocol.chat import user
from contextbus_protocol.codec import decode_json, encode_json
from contextbus_protocol.compiler_state import ContextCompilerState
from contextbus_protocol.package import Package
from contextbus_protocol.values import Candidate, RefreshOptions

TEXTS = ("Deploys need a green CI run.", "Rollbacks use the previous image tag.", "Every deploy goes to eu-west.")

CANDIDATES = st.builds(
    contextbus.candidate,
    st.sampled_from(["0", "1", "2"]),
    st.sampled_from(TEXTS),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.sampled_from([None, 1, 2]),
    mandatory=st.booleans(),
)


class Step(msgspec.Struct, frozen=True):
    """What the sources offer at a step, and what the host does with it; ``fails`` tells that its call failed."""

    offers: tuple[Candidate, ...]
    refresh: bool = False
    asked: bool = False
    redacted: bool = False
    fails: bool = False
    question: str | None = None
    jump: int = 1


STEPS = st.lists(
    st.builds(
        Step,
        st.lists(CANDIDATES, max_size=3).map(tuple),
        st.booleans(),
        st.booleans(),
        st.sampled_from([False, False, False, True]),
        st.just(False),
        st.sampled_from([None, "", "And back?"]),
        st.integers(1, 5),
    ),
    max_size=6,
)


def compiler_with(source: Scripted, state: object = None) -> contextbus.Compiler:
    given_state: Any = state
    options = RefreshOptions(min_steps=2, max_passes=3)
    return contextbus.Compiler(sources=[source], refresh=options, estimator=CHARACTERS, state=given_state)


async def follow(steps: Sequence[Step], *, restart: bool) -> tuple[list[Package], ContextCompilerState, int]:
    """What a host gets of a compiler whose blocks it keeps; with ``restart`` every step has a compiler of its own."""
    source = Scripted(id="skills", kind="skills")
    host = Host(compiler_with(source), user(QUESTION))
    packages: list[Package] = []
    for step in steps:
        if restart:
            host.compiler = compiler_with(source, msgspec.json.decode(encode_json(host.compiler.state())))
        source.answer = step.offers
        if step.question is not None:
            host.history.append(user(step.question))
        if step.asked:
            host.compiler.request_refresh()
        handed = copy.deepcopy(host.history)
        package = await host.compile(refresh=step.refresh, redacted=step.redacted)
        assert host.history == handed
        packages.append(package)
        if step.fails:
            host.step += 1
        else:
            host.take_turn(package)
        host.step += step.jump - 1
    return packages, host.compiler.state(), len(source.asked)


@pytest.mark.rule("D.H.1", "D.H.2", "D.H.13", "D.A.6", "D.A.7")
@given(STEPS)
def test_a_compiler_made_from_a_state_compiles_the_same(steps: list[Step]) -> None:
    async def compare() -> None:
        kept = await follow(steps, restart=False)
        made = await follow(steps, restart=True)
        assert encode_json(made) == encode_json(kept)

    asyncio.run(compare())


@pytest.mark.rule("D.A.6", "D.H.2", "D.H.3", "D.H.4", "D.D.3")
@given(STEPS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_same_steps_give_the_same_bytes_and_a_state_without_texts(steps: list[Step], fails: list[bool]) -> None:
    steps = [msgspec.structs.replace(step, fails=fail) for step, fail in zip(steps, fails, strict=False)]

    async def compare() -> None:
        first, second = await follow(steps, restart=False), await follow(steps, restart=False)
        assert encode_json(first) == encode_json(second)
        data = encode_json(first[1])
        assert encode_json(decode_json(data, ContextCompilerState)) == data
        assert all(text.encode() not in data for text in (*TEXTS, QUESTION))
        for package in first[0]:
            assert len({e.digest for e in package.manifest.entries if e.selected}) == sum(
                e.selected for e in package.manifest.entries
            )

    asyncio.run(compare())
