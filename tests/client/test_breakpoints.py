"""What a rendered request asks of a cache, as its payload tells."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.client.breakpoints import controls_of
from contextbus.core.cache_retention import HOUR_MS, MINUTE_MS, Body, infer_retention
from contextbus.core.importers import from_anthropic
from contextbus.core.payload import Payload, Request, assemble, start_rendering
from contextbus.core.persistent import CHUNK
from contextbus.core.settled import Settled, SettledMessage
from contextbus_protocol.chat import ChatMessage, assistant, user


def marked(ttl: str) -> ChatMessage:
    """A message with a part that only Anthropic knows, and its cache control."""
    part = {"type": "container_upload", "file_id": "f", "cache_control": {"type": "ephemeral", "ttl": ttl}}
    return from_anthropic([{"role": "user", "content": [part]}]).messages[0]


def retention(body: Body, provider: str = "anthropic") -> int | None:
    return infer_retention(
        provider=provider,
        model_id="claude-opus-4-6",
        body=body,
        response_model=None,
        upstream=None,
        writes_5m=None,
        writes_1h=None,
        reads=5,
    )


MESSAGES = {"u": user("Ask."), "a": assistant("So."), "5": marked("5m"), "1": marked("1h")}


@pytest.mark.rule("C.N.7", "C.N.13")
@given(st.lists(st.text("ua51", min_size=1, max_size=90), min_size=1, max_size=4), st.booleans())
def test_they_tell_the_same_as_the_whole_body(parts: list[str], other: bool) -> None:
    history = start_rendering("anthropic")
    for number, part in enumerate(parts):
        if other and number == 2:  # another history takes its place
            history = start_rendering("anthropic")
        history = history.extend(MESSAGES[letter] for letter in part)
        payload = assemble(Request(history=history))
        assert retention(controls_of(payload)) == retention(payload.json())


@pytest.mark.rule("C.N.7")
def test_a_control_of_a_later_chunk_and_one_that_differs_are_found() -> None:
    turns = [user("Ask."), assistant("So.")] * CHUNK
    history = start_rendering("anthropic").extend([*turns, marked("1h"), assistant("So."), *turns])
    for _ in range(2):
        assert retention(controls_of(assemble(Request(history=history)))) == HOUR_MS
    history = history.extend([marked("5m")])
    assert retention(controls_of(assemble(Request(history=history)))) is None
    history = start_rendering("anthropic").extend([marked("5m")])
    assert retention(controls_of(assemble(Request(history=history)))) == 5 * MINUTE_MS


@pytest.mark.rule("C.N.13")
def test_a_report_reads_nothing_of_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> bytes:
        raise AssertionError

    monkeypatch.setattr(Payload, "chunks", refuse)
    monkeypatch.setattr(Settled, "pieces", refuse)
    monkeypatch.setattr(SettledMessage, "dict", refuse)
    history = start_rendering("anthropic").extend([marked("1h"), assistant("So.")] * 12 * CHUNK)
    controls = controls_of(assemble(Request(history=history)))
    assert controls == {"messages": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}] * 4}
    assert retention(controls) == HOUR_MS
