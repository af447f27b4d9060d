"""What a provider's prompt cache serves of a sequence of requests, by the rules that the providers document.

A model of them, with no network: requests are blocks of tokens in the order in which the provider reads them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

MINUTE_MS: Final = 60_000
LOOKBACK: Final = 20
"""At so many blocks, the one of the breakpoint included, Anthropic looks for a prefix that it has."""


class RequestBlock(msgspec.Struct, frozen=True):
    """A part of a request that is cached whole or not: a tool, a text, a call, a result.

    ``breakpoint`` says that the request asks for a cache behind it.
    """

    layer: str
    text: str
    tokens: tuple[int, ...]
    breakpoint: bool = False


class Served(msgspec.Struct, frozen=True):
    """Input tokens of one request: all of them, those read from the cache, those written to it."""

    sent: int
    read: int = 0
    written: int = 0

    @property
    def rest(self) -> int:
        """What is neither read nor written."""
        return self.sent - self.read - self.written

    def cost(self, read_price: float, write_price: float) -> float:
        """What the request costs, in tokens at the full price."""
        return self.rest + self.read * read_price + self.written * write_price


class ProviderCache(Protocol):
    """Serves one request after the other, for one model."""

    def serve(self, request: Sequence[RequestBlock], at_ms: int) -> Served:
        """What of a request is read and written; ``at_ms`` is when it is sent, and never falls."""
        ...


class BreakpointCache:
    """Anthropic's cache: a prefix is written at a breakpoint, and read where a later request has it again.

    At each breakpoint the cache looks at the last twenty blocks before it, its own included, for the longest prefix
    that an earlier request wrote.  What is read is kept for another retention.

    Args:
        minimum: a prefix of fewer tokens is not written.
        lookback: how many blocks are looked at from a breakpoint.
        retention_ms: for how long a prefix is kept after it was last used.
    """

    def __init__(self, *, minimum: int = 1_024, lookback: int = LOOKBACK, retention_ms: int = 5 * MINUTE_MS) -> None:
        self._minimum = minimum
        self._lookback = lookback
        self._retention_ms = retention_ms
        self._used: dict[str, int] = {}

    def serve(self, request: Sequence[RequestBlock], at_ms: int) -> Served:
        """Read the longest prefix that is there, and write those of the breakpoints."""
        prefixes = list(_prefixes(request))
        places = [index for index, block in enumerate(request) if block.breakpoint]
        read, found = 0, None
        for place in places:
            for index in range(place, max(-1, place - self._lookback), -1):
                key, tokens = prefixes[index]
                if tokens > read and self._holds(key, at_ms):
                    read, found = tokens, key
                    break
        if found is not None:
            self._used[found] = at_ms
        end = read
        for place in places:
            key, tokens = prefixes[place]
            if tokens >= self._minimum:
                self._used[key] = at_ms
                end = max(end, tokens)
        return Served(sent=prefixes[-1][1] if prefixes else 0, read=read, written=end - read)

    def _holds(self, key: str, at_ms: int) -> bool:
        used = self._used.get(key)
        return used is not None and at_ms - used <= self._retention_ms


class PrefixCache:
    """The cache of OpenAI and Gemini's implicit one: the longest prefix in common with an earlier request.

    Nothing asks for it, and nothing is paid for writing.

    Args:
        minimum: a shorter prefix is not served.
        step: above the minimum a prefix is served in steps of so many tokens.
        retention_ms: for how long a request is remembered after it was sent.
    """

    def __init__(self, *, minimum: int = 1_024, step: int = 128, retention_ms: int = 5 * MINUTE_MS) -> None:
        self._minimum = minimum
        self._step = step
        self._retention_ms = retention_ms
        self._requests: list[tuple[int, array[int]]] = []

    def serve(self, request: Sequence[RequestBlock], at_ms: int) -> Served:
        """Read the longest common prefix; the request is remembered whole."""
        tokens = array("L", (token for block in request for token in block.tokens))
        self._requests = [(sent, old) for sent, old in self._requests if at_ms - sent <= self._retention_ms]
        common = max((count_common(old, tokens) for _, old in self._requests), default=0)
        self._requests.append((at_ms, tokens))
        if common < self._minimum:
            return Served(sent=len(tokens))
        return Served(sent=len(tokens), read=self._minimum + (common - self._minimum) // self._step * self._step)


def count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two requests have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # the longest equal beginning, by halves: a comparison of slices is one of memory
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _prefixes(request: Sequence[RequestBlock]) -> Iterator[tuple[str, int]]:
    """For each block the digest of all up to it, and their tokens."""
    digest, tokens = hashlib.sha256(), 0
    for block in request:
        text = block.text.encode("utf-8", "surrogatepass")
        digest.update(b"%b %d:%b" % (block.layer.encode(), len(text), text))
        tokens += len(block.tokens)
        yield digest.copy().hexdigest(), tokens
