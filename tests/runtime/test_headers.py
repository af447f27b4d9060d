"""Headers are read as nats-py reads them."""

# pyright: reportPrivateUsage=false
# What is compared is a private method of nats-py and our override of it.

from __future__ import annotations

import nats.aio.client
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contextbus.runtime.nats_client import Client


class Ours(Client):
    """Shows how headers are read, which is nobody else's business."""

    parse = Client._parse_header_lines


class Theirs(nats.aio.client.Client):
    """The same of nats-py."""

    parse = nats.aio.client.Client._parse_header_lines


LINES = st.lists(
    st.sampled_from([b"Ctx-Command: a1", b"Name:Value", b"Name:\t x ", b"no colon", b"", b"bad name: x", b" N : v"])
    | st.tuples(st.binary(min_size=1, max_size=6), st.binary(max_size=8)).map(b":".join),
    max_size=4,
)


@given(LINES)
@example([b"\x00\x1c:"])  # a blank to str, none to bytes
@example([b"a\x1f: \xff\x1d "])
def test_headers_are_those_of_nats_py(lines: list[bytes]) -> None:
    raw = b"\r\n".join([*lines, b"", b""])
    expected = dict(Theirs.parse(raw))
    expected.pop("", None)  # a header without a name is none
    assert Ours.parse(raw) == expected


@pytest.mark.parametrize("raw", [b"", b"\r\n\r\n", b":\r\n"])
def test_nothing_comes_of_nothing(raw: bytes) -> None:
    assert Ours.parse(raw) == {}
