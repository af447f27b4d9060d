"""Commits: deterministic bytes, events that this release does not know, damage, and versions."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.values import values_of

from contextbus.core.run import fold_commit
from contextbus.core.run_state import RunState
from contextbus_protocol import codec, digests, upcast
from contextbus_protocol.errors import InvalidTypeError, UnsupportedVersionError
from contextbus_protocol.events import Commit, RefreshRequested, StepFailed, UnknownEvent

HEAD: dict[str, Any] = {
    "version": 1,
    "tenant": "t",
    "run": "r",
    "part": "run",
    "command": "c",
    "commandDigest": "d",
    "attempt": 1,
    "engine": "0.1.0",
    "policy": 1,
    "previous": "",
    "at": 5,
}


def stored(*events: bytes, **changes: object) -> bytes:
    raw = [msgspec.Raw(event) for event in events]
    return msgspec.json.encode({**HEAD, "events": raw, **changes})


@settings(max_examples=40, deadline=None)
@given(values_of(Commit))
def test_a_commit_comes_back_the_same_and_its_bytes_are_deterministic(commit: Commit) -> None:
    commit = msgspec.structs.replace(commit, version=codec.COMMIT_VERSION)
    data = codec.encode_commit(commit)
    again = codec.decode_commit(data)
    assert again == commit
    assert codec.encode_commit(again) == data


@pytest.mark.parametrize(
    "event",
    [
        b'{"type":"later-event","b":1,"a":[1.50,"\\u00e9",{"z":null}]}',
        b'{ "type" : "later-event" }',
        b'{"type":"step-compiled","step":"of another shape"}',
        b'{"step-failed":{"step":1}}',
        b'{"type":"unknown-event","name":"n","data":"d"}',
        b'{"type":12345678901234567890123}',
        b'"text"',
        b"null",
        '{"type":"é","x":"😀"}'.encode(),
    ],
)
def test_an_event_that_is_not_known_is_kept_to_the_byte(event: bytes) -> None:
    """B74: neither an unknown type nor an old shape aborts a replay, and nothing of it is lost."""
    known = b'{"type":"refresh-requested"}'
    data = stored(event, known)
    commit = codec.decode_commit(data)
    assert isinstance(commit.events[0], UnknownEvent)
    assert commit.events[0].data == event.decode()
    assert commit.events[1] == RefreshRequested()
    assert codec.encode_commit(commit) == data
    state = fold_commit(RunState("r"), 1, digests.digest_bytes(data), commit)
    assert state.refresh_requested
    assert state.digest == digests.digest_bytes(data)


def test_an_unknown_event_says_what_it_is_called() -> None:
    (event,) = codec.decode_commit(stored(b'{"type":"package-redacted","step":3}')).events
    assert isinstance(event, UnknownEvent)
    assert event.name == "package-redacted"
    (event,) = codec.decode_commit(stored(b'{"type":"step-failed"}')).events
    assert isinstance(event, UnknownEvent)
    assert event.name == "step-failed"


def test_a_field_that_is_not_known_is_skipped_and_stays_under_the_digest() -> None:
    """The log is never written again: what a newer release added stays in the stored bytes, which the chain is over."""
    data = stored(b'{"type":"step-failed","step":1,"code":"conflict","later":{"x":[1]}}', alsoLater=[2])
    commit = codec.decode_commit(data)
    assert commit.events == (StepFailed(step=1, code="conflict"),)
    state = fold_commit(RunState("r"), 1, digests.digest_bytes(data), commit)
    after = stored(b'{"type":"refresh-requested"}', previous=digests.digest_bytes(data))
    assert fold_commit(state, 2, digests.digest_bytes(after), codec.decode_commit(after)).sequence == 2


DAMAGED: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"\xff",
    stored(b'{"type":"later","x":"\xff"}'),
    stored(b'{"type":"later","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    stored()[:-1],
    stored(version=True),
    stored(version=-1),
    stored(version="1"),
    stored(part="erasure"),
    stored(attempt=1.5),
    stored(events=None),
    msgspec.json.encode({k: v for k, v in HEAD.items() if k != "previous"}),
]


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_damage_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(InvalidTypeError):
        codec.decode_commit(data)


@settings(deadline=None)
@given(commit=values_of(Commit), data=st.data())
def test_a_changed_byte_is_read_or_refused_and_never_crashes(commit: Commit, data: st.DataObject) -> None:
    raw = bytearray(codec.encode_commit(msgspec.structs.replace(commit, version=1)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidTypeError, UnsupportedVersionError):
        codec.decode_commit(bytes(raw))


def test_a_newer_version_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedVersionError, match="upgrade contextbus"):
        codec.decode_commit(stored(version=2))


def test_a_commit_with_a_lone_surrogate_is_refused() -> None:
    for event in (UnknownEvent(name="x", data='{"type":"\ud83d"}'), StepFailed(step=0, code="\ud83d")):
        commit = codec.decode_commit(stored())
        with pytest.raises(InvalidTypeError):
            codec.encode_commit(msgspec.structs.replace(commit, events=(event,)))


# -- upcasters


def rename(event: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in event.items() if k != "reason"}, "code": event["reason"]}


def later(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "step": event["step"] + 10}


UPCASTERS = {(0, "step-failed"): rename}


def test_an_old_event_is_lifted_version_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    old = b'{"type":"step-failed","step":4,"reason":"conflict"}'
    lifted = upcast.lift_event(old, 0, UPCASTERS)
    assert msgspec.json.decode(lifted) == {"type": "step-failed", "step": 4, "code": "conflict"}
    twice = {**UPCASTERS, (1, "step-failed"): later}
    assert msgspec.json.decode(upcast.lift_event(old, 0, twice))["step"] == 14
    assert msgspec.json.decode(upcast.lift_event(lifted, 1, twice)) == {
        "type": "step-failed",
        "step": 14,
        "code": "conflict",
    }
    monkeypatch.setattr(upcast.lift_event, "__defaults__", (UPCASTERS,))
    assert codec.decode_commit(stored(old, version=0)).events == (StepFailed(step=4, code="conflict"),)
    assert isinstance(codec.decode_commit(stored(old)).events[0], UnknownEvent)


@pytest.mark.parametrize("event", [b'{ "type":"other" }', b'{"type":7}', b"[]", b"{", b'{"x":"\xff"}', b"[" * 9999])
def test_what_needs_no_lifting_keeps_its_bytes(event: bytes) -> None:
    for version in (0, 1):
        assert upcast.lift_event(event, version, UPCASTERS) == event
        assert upcast.lift_event(event, version) == event
