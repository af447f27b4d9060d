"""What the usage of a model call says: tokens, what came from a cache, and whether the whole input was measured.

Providers differ in whether cached tokens lie inside their input count.  ``Usage.input_tokens`` is always without them,
the measured input always with them (C.M.13).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast

import msgspec

from contextbus.core.json_text import as_list
from contextbus_protocol.chat import ChatMessage, Part, Text, Unknown
from contextbus_protocol.values import MAX_SAFE_INTEGER, Usage

Fields = Mapping[str, object]
Content = Iterable[ChatMessage | Part | Fields]

# Gemini's and OpenAI's counts hold what was cached, Anthropic's and ours do not.
_GEMINI_INPUT: Final = ("promptTokenCount", "prompt_token_count")
_GEMINI_CACHED: Final = ("cachedContentTokenCount", "cached_content_token_count")
_GEMINI_OUTPUT: Final = ("candidatesTokenCount", "candidates_token_count")
_GEMINI_THOUGHTS: Final = ("thoughtsTokenCount", "thoughts_token_count")
_OUTPUT: Final = ("completion_tokens", "output_tokens")
_CACHE_READ: Final = ("cache_read_tokens", "cache_read_input_tokens")
_CACHE_WRITE: Final = ("cache_write_tokens", "cache_creation_input_tokens")
_METADATA: Final = ("providerOptions", "providerMetadata", "provider_options", "provider_metadata")


class UsageFacts(msgspec.Struct, frozen=True):
    """What a usage object says, in tokens.

    ``usage`` has 0 for each count that is missing or invalid.  ``measured`` is the whole input, cached tokens included
    (C.M.13); None where a count that it rests on is missing or invalid (C.M.8), or where it is 0, which no request has.
    ``writes_5m`` and ``writes_1h`` are cache writes by the time that Anthropic keeps them, None where not told apart.
    """

    usage: Usage
    measured: int | None = None
    writes_5m: int | None = None
    writes_1h: int | None = None


class _Input(msgspec.Struct, frozen=True):
    """The input of a call as its provider counts it; a count that was not given is None."""

    count: object
    reads: object
    writes: object
    holds_cached: bool


def read_usage_facts(usage: Usage | Fields) -> UsageFacts:
    """Read usage of ours, of Anthropic, OpenAI (both interfaces) or Gemini (camelCase and snake_case)."""
    if isinstance(usage, Usage):
        given = _Input(usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, holds_cached=False)
        return UsageFacts(usage, _measure(given))
    given = _find_input(usage)
    count, reads, writes = as_count(given.count) or 0, as_count(given.reads) or 0, as_count(given.writes) or 0
    if given.holds_cached:
        reads = min(reads, count)
        writes = min(writes, count - reads)
        count -= reads + writes
    by_time = _members(usage.get("cache_creation"))
    return UsageFacts(
        Usage(
            input_tokens=count,
            output_tokens=_read_output(usage),
            cache_read_tokens=reads,
            cache_write_tokens=writes,
        ),
        _measure(given),
        as_count(by_time.get("ephemeral_5m_input_tokens")),
        as_count(by_time.get("ephemeral_1h_input_tokens")),
    )


def is_aggregate(usage: Usage | Fields | None, content: Content) -> bool:
    """Whether usage sums up several requests or one that the provider compacted: no measure of the context (C.M.9).

    Args:
        usage: as the provider gave it; a ``raw`` object in it is looked into.
        content: what the call answered with: messages or their parts, ours or a provider's.
    """
    if usage is not None and not isinstance(usage, Usage):
        for fields in (usage, _members(usage.get("raw"))):
            iterations = fields.get("iterations")
            if iterations is not None and not _is_one_message(iterations):
                return True
    return any(map(_is_compaction, content))


def as_count(value: object) -> int | None:
    """The value if it is an integer from 0 to 2^53-1 and no bool, as every count is; else None (C.M.8)."""
    return value if type(value) is int and 0 <= value <= MAX_SAFE_INTEGER else None


def _find_input(usage: Fields) -> _Input:
    if (count := _first(usage, _GEMINI_INPUT)) is not None:
        return _Input(count, _first(usage, _GEMINI_CACHED), None, holds_cached=True)
    count, details = usage.get("prompt_tokens"), _members(usage.get("prompt_tokens_details"))
    if count is None:
        count, details = usage.get("input_tokens"), _members(usage.get("input_tokens_details"))
        if not details:
            return _Input(count, _first(usage, _CACHE_READ), _first(usage, _CACHE_WRITE), holds_cached=False)
    reads, writes = details.get("cached_tokens"), details.get("cache_write_tokens")
    return _Input(
        count,
        _first(usage, _CACHE_READ) if reads is None else reads,  # gateways name them as Anthropic does
        _first(usage, _CACHE_WRITE) if writes is None else writes,
        holds_cached=True,
    )


def _read_output(usage: Fields) -> int:
    for name in _OUTPUT:
        if (count := as_count(usage.get(name))) is not None:
            return count
    answer, thoughts = (as_count(_first(usage, names)) or 0 for names in (_GEMINI_OUTPUT, _GEMINI_THOUGHTS))
    return answer + thoughts


def _measure(given: _Input) -> int | None:
    cached = [as_count(value) for value in (given.reads, given.writes) if value is not None]
    count = as_count(given.count)
    if count is None or None in cached:
        return None
    total = count if given.holds_cached else count + sum(value or 0 for value in cached)
    return as_count(total) or None


def _is_one_message(iterations: object) -> bool:
    entries = as_list(iterations)
    return entries is not None and len(entries) == 1 and _members(entries[0]).get("type") == "message"


def _is_compaction(item: ChatMessage | Part | Fields) -> bool:
    """Whether a message or part is what a provider's own compaction leaves."""
    match item:
        case ChatMessage():
            return any(map(_is_compaction, item.content))
        case Unknown():
            return _is_compaction(_decode(item.data))
        case Text(provider_data=data) if data is not None:
            fields = _decode(data.data)
            return _is_marked(fields) or (data.provider == "anthropic" and fields.get("type") == "compaction")
        case Mapping():
            if item.get("kind") == "openai.compaction" or item.get("type") == "compaction" or _is_marked(item):
                return True
            return any(_is_compaction(_members(part)) for part in as_list(item.get("content")) or ())
        case _:
            return False


def _is_marked(part: Fields) -> bool:
    """Whether a part's metadata for Anthropic says that it is a compaction."""
    return any(_members(options.get("anthropic")).get("type") == "compaction" for options in _metadata_of(part))


def _metadata_of(part: Fields) -> Iterator[Fields]:
    for name in _METADATA:
        yield _members(part.get(name))


def _decode(text: str) -> Fields:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}


def _members(value: object) -> Fields:
    """The members of an object; none of anything else."""
    return cast("Fields", value) if isinstance(value, Mapping) else {}


def _first(fields: Fields, names: Iterable[str]) -> object:
    """The first of these fields that is given."""
    return next((value for name in names if (value := fields.get(name)) is not None), None)
