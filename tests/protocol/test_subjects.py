"""Subjects: names as tokens, and what may be answered to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus_protocol import subjects
from contextbus_protocol.errors import InvalidTypeError

NAME = st.text(min_size=1, max_size=10)
PLAIN = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-=")


@given(NAME, NAME)
def test_a_name_has_one_token_and_gives_it_back(one: str, other: str) -> None:
    token = subjects.encode_name(one)
    assert set(token) <= PLAIN
    assert subjects.decode_name(token) == one
    assert (subjects.encode_name(other) == token) == (one == other)


def test_a_token_has_at_most_128_characters() -> None:
    assert len(subjects.encode_name("x" * 128)) == 128
    assert len(subjects.encode_name("." * 42)) == 126
    for name in ("x" * 129, "." * 43, "", "\ud83d"):
        with pytest.raises(InvalidTypeError):
            subjects.encode_name(name)


@pytest.mark.parametrize("token", ["", "=", "=2", "=ZZ", "=ff", "=FF", "=2E=2", "a b", "= 2", "é", ".", "=41"])
def test_what_no_name_has_as_its_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidTypeError):
        subjects.decode_name(token)


def log(tenant: str, run: str) -> str:
    return subjects.log(tenant, run, "run")


def blob(tenant: str, run: str) -> str:
    return subjects.blob(tenant, run, "sha256:00")


@given(NAME, NAME, NAME)
def test_no_two_tenants_or_runs_share_a_subject(one: str, other: str, run: str) -> None:
    for make in (log, blob, subjects.query, subjects.source_admin, subjects.inbox):
        assert (make(one, run) == make(other, run)) == (one == other)
        assert (make(run, one) == make(run, other)) == (one == other)
        assert all(make(one, run).split("."))


def test_the_erasures_of_a_tenant_are_no_part_of_a_run() -> None:
    for part in subjects.PARTS:
        assert subjects.log("t", "erasures", part) != subjects.erasures("t")


@pytest.mark.parametrize(
    "address",
    [
        "ctx.inbox.acme.client-1",
        "ctx.inbox.acme.client-1.7.x",
        "ctx.inbox.acme._INBOX",
    ],
)
def test_an_address_under_the_tenants_inbox_is_one(address: str) -> None:
    assert subjects.is_reply_address(address, "acme")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "ctx.inbox.acme",
        "ctx.inbox.acme.",
        "ctx.inbox.acme..x",
        "ctx.inbox.acme.x.",
        "ctx.inbox.acme.*",
        "ctx.inbox.acme.x.>",
        "ctx.inbox.acme.x y",
        "ctx.inbox.acme.x\tPUB",
        "ctx.inbox.acme.x\r\nPUB ctx.log.acme.r.run 0",
        "ctx.inbox.acme.\x00",
        "ctx.inbox.acme.\x7f",
        "ctx.inbox.acme.é",
        "ctx.inbox.acme.\ud83d",
        "ctx.inbox.acme.\u2028x",
        "ctx.inbox.acme." + "x" * 5000,
        "ctx.inbox.acme2.x",
        "ctx.inbox.*.x",
        "ctx.log.acme.r.run",
        "$JS.API.STREAM.DELETE.CTX_LOG_acme",
        "_INBOX.x",
        " ctx.inbox.acme.x",
    ],
)
def test_any_other_address_is_refused(address: str) -> None:
    assert not subjects.is_reply_address(address, "acme")


@given(NAME, NAME)
def test_an_inbox_belongs_to_its_tenant_only(one: str, other: str) -> None:
    address = subjects.inbox(one, "client") + ".1"
    assert subjects.is_reply_address(address, one)
    assert subjects.is_reply_address(address, other) == (one == other)
