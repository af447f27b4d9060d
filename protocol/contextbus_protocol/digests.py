"""Digests: always over bytes as stored or sent, never over a re-encoded value."""

from __future__ import annotations

import hashlib
import re

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
EMPTY_CHAIN = "sha256:" + "0" * 64


def digest_bytes(data: bytes) -> str:
    """``sha256:`` and the lowercase hex of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_text(text: str) -> str:
    """``sha256:`` and the lowercase hex of the UTF-8 text; lone surrogates count as U+FFFD (D.K.18)."""
    return digest_bytes(encode_text(text))


def encode_text(text: str) -> bytes:
    """UTF-8 of a text; lone surrogates become U+FFFD (D.M.7)."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return clean_text(text).encode()


def clean_text(text: str) -> str:
    """Replace lone surrogates by U+FFFD and join surrogate pairs; other text comes back as it is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def extend_chain(chain: str, digest: str) -> str:
    """The chain digest after one more link."""
    return digest_bytes(f"{chain}{digest}".encode())


def is_digest(text: str) -> bool:
    """Whether a text is a digest of ours, and so safe as a subject token and in the log."""
    return _DIGEST.fullmatch(text) is not None
