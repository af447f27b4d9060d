"""An estimator that compilers share: it learns, or wraps a tokenizer (D.M.3, D.M.5, D.M.6)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.client.compiling import QUESTION, Host

import contextbus.client as contextbus
from contextbus_protocol.chat import user
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError


@pytest.mark.rule("D.M.3", "D.M.5", "D.D.11", "D.M.11")
async def test_what_was_learned_holds_for_every_compiler_that_shares_it() -> None:
    estimator = contextbus.create_token_estimator(name="characters")
    hosts = [Host(contextbus.Compiler(estimator=estimator)) for _ in range(2)]
    before = [(await host.compile()).manifest for host in hosts]
    assert [(m.budget.used_tokens, m.estimator.calibrated) for m in before] == [(9, False)] * 2
    estimator.calibrate(18, 9)
    assert estimator.spec.factor == 13_000
    after = [(await host.compile(step=1)).manifest for host in hosts]
    assert [(m.budget.used_tokens, m.estimator.calibrated) for m in after] == [(11, True)] * 2  # 8.44... x 1.3


@pytest.mark.rule("D.M.5")
def test_what_says_nothing_calibrates_nothing() -> None:
    estimator = contextbus.create_token_estimator()
    for actual, estimated in ((0, 9), (9, 0), (math.nan, 9), (9, math.inf)):
        estimator.calibrate(actual, estimated)
    assert (estimator.spec.factor, estimator.spec.calibrated) == (10_000, False)


@pytest.mark.rule("D.M.3", "D.M.6")
async def test_a_tokenizer_is_wrapped_and_calibrated() -> None:
    estimator = contextbus.create_token_estimator(len, "letters")
    assert estimator.estimate([user(QUESTION)]) == 4 + len(QUESTION)
    assert estimator.estimate([{"role": "user", "content": QUESTION}]) == 4 + len(QUESTION)
    assert estimator.count(QUESTION) == len(QUESTION)
    estimator.calibrate(200, 100)
    assert estimator.count(QUESTION) == math.ceil(len(QUESTION) * 1.3)
    manifest = (await Host(contextbus.Compiler(estimator=estimator)).compile()).manifest
    assert (manifest.estimator.kind, manifest.estimator.name) == ("tokenizer", "letters")
    assert manifest.budget.used_tokens == math.ceil((4 + len(QUESTION)) * 1.3)


@pytest.mark.rule("D.M.6")
def test_a_tokenizer_that_fails_gives_way() -> None:
    heuristic = contextbus.create_token_estimator()

    def fail(text: str) -> int:
        raise ValueError(text)

    def go_below(text: str) -> int:
        return -len(text)

    def get_lost(text: str) -> float:
        return math.nan * len(text)

    for tokenizer in (fail, go_below, get_lost):
        assert contextbus.create_token_estimator(tokenizer).count(QUESTION) == heuristic.count(QUESTION)


@pytest.mark.rule("D.M.2", "D.T.4")
def test_what_is_no_estimator_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="classes"):
        contextbus.create_token_estimator(name="words")
    refused: list[Any] = [(3, None), (None, ""), (len, 3)]
    for tokenizer, name in refused:
        with pytest.raises(InvalidTypeError):
            contextbus.create_token_estimator(tokenizer, name)
