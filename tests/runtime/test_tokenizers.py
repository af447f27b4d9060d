"""Tokenizers are loaded from what is at hand, never from the network."""

from __future__ import annotations

import hashlib
import importlib.util
import socket
from pathlib import Path

import pytest
import tiktoken

from contextbus.core.estimate import make_estimator
from contextbus.runtime.tokenizers import TOKENIZER_NAMES, VOCABULARIES, load_tokenizers
from contextbus_protocol.values import EstimatorSpec


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.rule("D.M.3", "B39")
def test_packaged_vocabulary_counts_special_tokens_as_plain_text() -> None:
    count = load_tokenizers().tokenizers["cl100k_base"]
    assert count("How do I deploy?") == 5
    # One token each if they were special; several as the plain text they are.
    assert count("<|endoftext|>") > 1
    estimator = make_estimator(EstimatorSpec(kind="tokenizer", name="cl100k_base"), {"cl100k_base": count})
    text = "a <|endoftext|> <|im_start|> b"
    assert estimator.count(text) == count(text)


@pytest.mark.rule("D.M.3")
def test_missing_vocabulary_is_told_with_its_place_and_nothing_is_fetched(empty_cache: Path) -> None:
    at_hand = load_tokenizers()
    assert set(at_hand.tokenizers) | set(at_hand.absent) == set(TOKENIZER_NAMES)
    assert "o200k_base" not in at_hand.tokenizers
    assert str(empty_cache) in at_hand.absent["o200k_base"]


@pytest.mark.rule("D.M.3")
def test_damaged_vocabulary_is_told_and_left_where_it_is(empty_cache: Path) -> None:
    place = empty_cache / "fb374d419588a4632f3f557e76b4b70aebbca790"
    place.write_bytes(b"damaged")
    assert "damaged" in load_tokenizers(["o200k_base"]).absent["o200k_base"]
    assert place.read_bytes() == b"damaged"


@pytest.mark.rule("D.M.3")
def test_cache_switched_off_and_unknown_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    absent = load_tokenizers(["o200k_base", "mine"]).absent
    assert "switched off" in absent["o200k_base"]
    assert "cl100k_base" in absent["mine"]


@pytest.mark.rule("D.M.3")
def test_cached_vocabulary_is_used(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packaged file stands in for the one that tiktoken would have fetched: they are the same bytes."""
    packaged = next(Path(place, "data", "cl100k_base.tiktoken") for place in tiktoken_folders())
    place = empty_cache / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
    place.write_bytes(packaged.read_bytes())
    monkeypatch.setattr(tiktoken, "list_encoding_names", list[str])
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    at_hand = load_tokenizers(["cl100k_base"])
    assert not at_hand.absent
    assert at_hand.tokenizers["cl100k_base"]("How do I deploy?") == 5


def tiktoken_folders() -> list[str]:
    found = importlib.util.find_spec("tiktoken_ext")
    assert found is not None
    return list(found.submodule_search_locations or ())


@pytest.mark.rule("D.M.3")
def test_names_of_cache_files_follow_from_the_addresses_that_tiktoken_uses() -> None:
    for name in TOKENIZER_NAMES:
        address = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
        key = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
        assert VOCABULARIES[name].cache_key == key
