"""Digests and chains."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus_protocol import digests

ANY_TEXT = st.text(st.characters() | st.sampled_from("\ud83d\ude00\udfff"), max_size=12)


@pytest.mark.rule("D.K.18")
@given(st.text(max_size=20))
def test_a_digest_is_the_sha256_of_the_utf8_text(text: str) -> None:
    assert digests.digest_text(text) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.rule("D.M.7", "D.E.7")
@given(ANY_TEXT)
def test_lone_surrogates_count_as_the_replacement_character(text: str) -> None:
    clean = digests.clean_text(text)
    clean.encode()
    assert digests.clean_text(clean) == clean
    assert digests.digest_text(text) == digests.digest_text(clean)
    assert digests.encode_text(text) == clean.encode()


@pytest.mark.rule("D.M.7")
def test_surrogate_pairs_are_joined_and_halves_replaced() -> None:
    assert digests.clean_text("a\ud83d\ude00b") == "a\U0001f600b"
    assert digests.clean_text("\ude00\ud83d") == "\ufffd\ufffd"
    assert digests.clean_text("plain") == "plain"


@given(st.lists(st.binary(max_size=4), max_size=6), st.lists(st.binary(max_size=4), max_size=6))
def test_a_chain_names_its_links_and_their_order(one: list[bytes], other: list[bytes]) -> None:
    def chain(links: list[bytes]) -> str:
        found = digests.EMPTY_CHAIN
        for link in links:
            found = digests.extend_chain(found, digests.digest_bytes(link))
        return found

    assert (chain(one) == chain(other)) == (one == other)
