"""The log holds ids, digests and counts, never a text that was retrieved, asked or said (D.D.25, D.D.3)."""

from __future__ import annotations

import contextlib

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with

import contextbus.client as contextbus
from contextbus.client.reading import read_blobs
from contextbus_protocol import codec
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, assistant, user
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import SourceFailedError
from contextbus_protocol.events import StepCompiled

WORDS = st.text(st.sampled_from("abcdefgh&<é"), min_size=6, max_size=12)


def secret(kind: str, word: str) -> str:
    """A text that nothing else of a log contains."""
    return f"zq{kind}{word}qz"


@pytest.mark.rule("D.D.25", "D.D.3", "D.W.2")
@settings(max_examples=25, deadline=None)
@given(words=st.lists(WORDS, min_size=6, max_size=6), fails=st.sampled_from(["no", "optional", "required"]))
async def test_no_text_of_a_run_is_in_its_log_or_in_what_the_process_logs(words: list[str], fails: str) -> None:
    asked, said, found, tool, raised, title = (
        secret(kind, word) for kind, word in zip(("A", "B", "C", "D", "E", "F"), words, strict=True)
    )
    rag = Scripted([contextbus.candidate("0", found, 0.5)])
    other = Scripted(RuntimeError(raised) if fails != "no" else (), id="other", required=fails == "required")
    call = ChatMessage(role="assistant", content=(ToolCall(id="c", name="read", arguments=f'{{"q":"{tool}"}}'),))
    result = ChatMessage(role="tool", content=(ToolResult(id="c", content=(Text(text=tool),)),))
    with structlog.testing.capture_logs() as logged:
        async with bus_with(rag, other) as bus:
            run = await bus.run("r", scope=SCOPE, sources=["rag", "other"])
            with contextlib.suppress(SourceFailedError):
                await run.before_model_call([user(asked)], model=MODEL, estimator_kind="mine")
                await run.after_model_call(
                    contextbus.Report(status="succeeded", messages=[assistant(said), call, result])
                )
                await run.before_model_call([user(title)], model=MODEL, refresh=True)
            log = await bus.log("r")
            stored = b"".join(codec.encode_commit(c.commit) for c in (*log.commits, *log.memory)).decode()
    for text in (asked, said, found, tool, raised, title):
        for form in (text, text.replace("&", "&amp;").replace("<", "&lt;")):
            assert form not in stored
            assert form not in repr(logged)


@pytest.mark.rule("D.D.25", "D.D.18")
async def test_the_query_is_a_digest_in_the_commit_and_a_text_in_the_package_blob() -> None:
    rag = Scripted([contextbus.candidate("0", "Deploys need a green CI run.", 0.5)])
    async with bus_with(rag) as bus:
        run = await bus.run(scope=SCOPE, sources=["rag"])
        step = await run.before_model_call([user("How do I deploy?")], model=MODEL)
        (event,) = [e for c in (await bus.log(run.id)).commits for e in c.commit.events if isinstance(e, StepCompiled)]
        assert event.query_digest == digest_text("How do I deploy?")
        assert event.query_length == 16
        blobs = await read_blobs(bus.driver, run.id, [event.package])
    assert b'"query":"How do I deploy?"' in blobs[event.package]
    assert {e.query for e in step.manifest.entries} == {"How do I deploy?"}
    assert step.manifest.package == event.package


@pytest.mark.rule("D.D.25")
async def test_working_memory_patches_are_facts_and_stand_in_the_log() -> None:
    async with bus_with() as bus:
        run = await bus.run(scope=SCOPE)
        await run.working_memory.create(goal="Deploy the billing service.")
        log = await bus.log(run.id)
    assert b"Deploy the billing service." in codec.encode_commit(log.memory[0].commit)
