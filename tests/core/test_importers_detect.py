"""Whose form a file has: that of a provider, or that of a coding agent's sessions (P.E.9)."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.session_checks import SESSIONS, text_of
from tests.validation.bodies import RIGHT

from contextbus.core.importers import (
    Form,
    Provider,
    detect,
    from_claude_code,
    from_codex,
    from_gemini,
    from_openai,
    from_responses,
    read_conversations,
)
from contextbus.core.importers.detect import READERS, tell_provider
from contextbus_protocol.errors import InvalidTypeError

CLAUDE = (SESSIONS / "claude_code.jsonl").read_text()
CODEX = (SESSIONS / "codex.jsonl").read_text()
AGENTS: list[tuple[Form, str, Any]] = [("claude-code", CLAUDE, from_claude_code), ("codex", CODEX, from_codex)]
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize("form", RIGHT)
def test_a_request_of_every_api_is_told_by_its_form(form: Form) -> None:
    body = RIGHT[form]
    lines = "\n".join([json.dumps(body)] * 3)
    for data in (body, json.dumps(body), json.dumps(body, indent=2).encode()):
        assert detect(data) == form
        assert read_conversations(data) == read_conversations(data, form)
        assert len(read_conversations(data)) == 1
    assert detect(lines) == form
    assert read_conversations(lines) == read_conversations(body) * 3


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(("form", "text", "read"), AGENTS)
def test_the_lines_of_a_session_are_one_conversation(form: Form, text: str, read: Any) -> None:
    lines = text.splitlines()
    whole = read(text)
    for data in (text, text.encode(), "\ufeff" + text, text.replace("\n", "\r\n"), "\n\n" + text, lines):
        assert detect(data) == form
        assert read_conversations(data) == read_conversations(data, form) == (whole,)
    assert detect([json.loads(line) for line in lines]) == form


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(("form", "text", "read"), AGENTS)
def test_one_line_of_a_session_is_enough(form: Form, text: str, read: Any) -> None:
    for line in text.splitlines():
        assert detect(line) == detect(line + "\n") == form
        assert read_conversations(line) == (read(line),)


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(("form", "text", "read"), AGENTS)
def test_a_last_line_that_was_cut_off_is_left_out(form: Form, text: str, read: Any) -> None:
    *before, last = text.splitlines()
    whole = "\n".join(before)
    for cut in (1, len(last) // 2, len(last) - 1):
        assert detect(f"{whole}\n{last[:cut]}") == form
        assert read_conversations(f"{whole}\n{last[:cut]}") == (read(whole),)
    assert read_conversations(f"{whole}\n{last}".encode()[:-2] + b"\xe2\x82") == (read(whole),)


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(("form", "text", "read"), AGENTS)
@pytest.mark.parametrize("junk", ["{", "not json", '"\\u12"'])
def test_junk_inside_a_session_is_named_by_its_line(form: Form, text: str, read: Any, junk: str) -> None:
    first, *rest = text.splitlines()
    mixed = "\n".join([first, junk, *rest])
    assert detect(mixed) == form
    for reader in (read, read_conversations):
        with pytest.raises(InvalidTypeError, match=r"^line 2: not JSON"):
            reader(mixed)


@pytest.mark.rule("P.E.9")
@pytest.mark.parametrize(
    "more",
    [
        {"sessionId": "s", "uuid": "u", "cwd": "/srv"},
        {"type": "user", "sessionId": "s", "uuid": "u"},
        {"type": "session_meta", "sessionId": "s"},
        {"payload": {"id": "s"}, "type": "conversation"},
        {"id": "s", "timestamp": "2026-01-01T00:00:00Z", "instructions": "be kind"},
    ],
)
def test_conversations_that_name_a_session_are_no_session(more: dict[str, Any]) -> None:
    lines = text_of([{**more, **TALK}] * 3)
    assert detect(lines) == "openai"
    assert [conversation.messages for conversation in read_conversations(lines)] == [from_openai(TALK).messages] * 3


@pytest.mark.rule("P.E.9")
def test_what_a_message_says_does_not_decide() -> None:
    for text in (CLAUDE, CODEX):
        quoted = {"messages": [{"role": "user", "content": text}]}
        assert detect(json.dumps(quoted)) == "openai"
        assert detect(json.dumps(quoted, indent=1)) == "openai"
        assert detect(json.dumps({"contents": [{"role": "user", "parts": [{"text": text}]}]})) == "gemini"


@pytest.mark.rule("P.E.9")
def test_each_line_of_a_mixed_file_is_told_by_itself() -> None:
    bodies = [RIGHT["gemini"], RIGHT["openai-responses"], TALK]
    read = read_conversations(text_of(bodies))
    assert read == (from_gemini(bodies[0]), from_responses(bodies[1]), from_openai(TALK))


@pytest.mark.rule("P.E.9")
def test_a_form_that_is_said_is_not_told_again() -> None:
    assert read_conversations("\n".join(CODEX.splitlines()[:1]), "codex") == (from_codex(CODEX.splitlines()[0]),)
    with pytest.raises(InvalidTypeError):
        read_conversations(CODEX, "anthropic")
    assert read_conversations("nothing whole", "claude-code") == (from_claude_code(""),)  # a line that was cut off


@pytest.mark.parametrize(
    ("messages", "provider"),
    [
        (RIGHT["gemini"]["contents"], "gemini"),
        (RIGHT["openai-responses"]["input"], "openai-responses"),
        (RIGHT["openai"]["messages"], "openai"),
        (RIGHT["anthropic"]["messages"], "anthropic"),
        ([{"role": "user", "content": [{"type": "file", "mediaType": "image/png", "data": "AA=="}]}], "ai-sdk"),
        (TALK["messages"], None),
        ([5, None, "x"], None),
    ],
)
def test_a_list_of_messages_is_told_where_it_is_certain(messages: list[object], provider: Provider | None) -> None:
    assert tell_provider(messages) == provider


VALUES = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from(["user", "assistant", "message", "response_item", "s", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "payload", "message", "messages", "content", "parts", "input", "uuid"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.rule("P.E.9")
@given(values=st.lists(VALUES, max_size=4), cut=st.integers(0, 40))
def test_anything_is_told_and_read_or_refused_with_a_reason(values: list[object], cut: int) -> None:
    text = "\n".join(map(json.dumps, values))
    for data in (values, text, text[: len(text) - cut], text.encode()):
        with contextlib.suppress(InvalidTypeError):
            assert detect(data) in READERS
        with contextlib.suppress(InvalidTypeError):
            assert read_conversations(data)
