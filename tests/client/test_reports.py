"""What a caller reports of a model call, and what of it the log gets (D.W.8)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.scripted import MODEL, SCOPE, bus_with

import contextbus.client as contextbus
from contextbus.client.report import read_report
from contextbus_protocol import codec
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.digests import digest_bytes, digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import CallSucceeded

SECRET = "the password is swordfish"


@pytest.mark.rule("D.W.8", "D.D.25")
async def test_the_log_gets_words_and_a_digest_and_no_text() -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        step = await run.before_model_call([user(SECRET)], model=MODEL)
        report = contextbus.Report(
            status="succeeded",
            messages=[assistant("So.")],
            finish_reason=SECRET,
            started_at=1_700_000_000_000,
            request_body=step.payload(),
            response_model="gpt-test-2026",
            upstream={"name": "azure", "note": SECRET},
        )
        await run.after_model_call(report)
        log = await bus.log("r")
        assert log.commits[-1].commit.events[-1] == CallSucceeded(
            step=0,
            finish_reason="other",
            started_at=1_700_000_000_000,
            response_model="gpt-test-2026",
            request_digest=digest_bytes(step.payload().json()),
            upstream="azure",
        )
        assert not any(SECRET.encode() in codec.encode_commit(c.commit) for c in log.commits)
        assert (await bus.verify("r")).is_clean


@pytest.mark.rule("D.W.8")
@pytest.mark.parametrize(
    ("body", "text"), [("{}", "{}"), (b"{}", "{}"), ({"model": "m"}, '{"model":"m"}'), ({}, "{}"), (None, None)]
)
def test_a_body_is_its_digest(body: Any, text: str | None) -> None:
    fields = read_report(contextbus.Report(status="succeeded", request_body=body))
    assert fields["request_digest"] == (None if text is None else digest_text(text))


@pytest.mark.rule("D.W.8", "D.T.4")
@pytest.mark.parametrize(
    "wrong",
    [
        {"started_at": 1.5},
        {"started_at": -1},
        {"started_at": True},
        {"response_model": 7},
        {"finish_reason": 7},
        {"upstream": 7},
        {"request_body": 7},
        {"request_body": {"model": object()}},
    ],
)
async def test_a_field_of_a_wrong_type_is_refused_and_the_step_stays_open(wrong: dict[str, Any]) -> None:
    async with bus_with() as bus:
        run = await bus.run("r", scope=SCOPE)
        await run.before_model_call([user("How?")], model=MODEL)
        with pytest.raises(InvalidTypeError):
            await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("So.")], **wrong))
        assert len(run.messages) == 1
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("So.")]))
        assert list(run.messages) == [user("How?"), assistant("So.")]


@pytest.mark.rule("D.W.8")
@pytest.mark.parametrize("upstream", [None, "a sentence of words", {}, {"name": 7}, {"name": "two words"}])
def test_an_upstream_without_a_word_is_none(upstream: Any) -> None:
    assert read_report(contextbus.Report(status="succeeded", upstream=upstream))["upstream"] is None
