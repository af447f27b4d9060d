"""How long a provider keeps the cached prefix of a request, as the request and the reported usage tell (C.N.5-C.N.10).

An estimate from what was sent: no provider is asked and no caching is changed (C.N.11).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, cast

import msgspec

from contextbus.core.json_text import as_list

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS

_CLAUDE: Final = ("anthropic", "claude", "claude-code")  # the last two are names of the local provider
_ANTHROPIC_TTLS: Final[Mapping[object, int]] = {None: 5 * MINUTE_MS, "5m": 5 * MINUTE_MS, "1h": HOUR_MS}
# the setting's first spelling had a hyphen
_OPENAI_SETTINGS: Final[Mapping[object, int]] = {"in_memory": HOUR_MS, "in-memory": HOUR_MS, "24h": 24 * HOUR_MS}
_GPT = re.compile(r"(?:^|[/:.])gpt-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)", re.ASCII)
_GPT_3_5_OF_AZURE: Final = 35  # written gpt-35-turbo there

Body = Mapping[str, object] | str | bytes


def infer_retention(
    *,
    provider: str,
    model_id: str,
    body: Body | None,
    response_model: str | None,
    upstream: str | None,
    writes_5m: int | None,
    writes_1h: int | None,
    reads: int,
) -> int | None:
    """How long the cache that a call read or wrote is kept, in milliseconds; None where it is unknown.

    Args:
        provider: the model's provider; what follows a dot is an interface of it (``openai.responses``).
        model_id: the model that was asked for.
        body: the request as sent, or its JSON text.
        response_model: the model that answered.
        upstream: who served a call that went through OpenRouter (C.N.9).
        writes_5m: reported tokens of cache writes for five minutes; None counts as none.
        writes_1h: the same for one hour.
        reads: reported tokens of cache reads.
    """
    request = read_body(body)
    if request is None:
        return None
    match _name_provider(provider):
        case "openai":
            return _infer_openai(request, response_model or model_id)
        case "openrouter":
            match _name_provider(upstream or ""):
                case "openai":
                    return _infer_openai(request, response_model or "")
                case "anthropic":
                    return _infer_anthropic(request, writes_5m or 0, writes_1h or 0, reads)
                case _:
                    return None
        case name if name in _CLAUDE:
            return _infer_anthropic(request, writes_5m or 0, writes_1h or 0, reads)
        case _:
            return None


def read_body(body: Body | None) -> Mapping[str, object] | None:
    """The members of a request body; None if it is missing or no JSON object (C.N.5)."""
    if isinstance(body, str | bytes):
        try:
            return msgspec.json.decode(body, type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
    return body


def keeps_half_an_hour(model_id: str) -> bool:
    """Whether a model is GPT-5.6 or a later one, whose caches are kept for 30 minutes (C.N.6).

    Dates and variants behind the version, and the vendor or ``ft:`` before the name, do not count.
    """
    found = _GPT.search(model_id.lower())
    if found is None:
        return False
    major, minor = int(found[1]), int(found[2] or 0)
    return major != _GPT_3_5_OF_AZURE and (major, minor) >= (5, 6)


def _name_provider(provider: str) -> str:
    return provider.strip().lower().partition(".")[0]


def _infer_openai(request: Mapping[str, object], model: str) -> int | None:
    options = _as_mapping(request.get("prompt_cache_options"))
    ttl = None if options is None else options.get("ttl")
    if ttl is not None:
        return 30 * MINUTE_MS if ttl == "30m" else None
    if keeps_half_an_hour(model):
        return 30 * MINUTE_MS
    return _look_up(_OPENAI_SETTINGS, request.get("prompt_cache_retention"))


def _infer_anthropic(request: Mapping[str, object], writes_5m: int, writes_1h: int, reads: int) -> int | None:
    """What was written says more than what was asked for (C.N.8)."""
    if writes_1h > 0:
        return HOUR_MS
    if reads == 0 and writes_5m > 0:
        return 5 * MINUTE_MS
    windows = tuple(_window(control) for control in _find_controls(request))
    return windows[0] if windows and all(window == windows[0] for window in windows) else None


def _window(control: object) -> int | None:
    members = _as_mapping(control)
    return None if members is None else _look_up(_ANTHROPIC_TTLS, members.get("ttl"))


def _find_controls(request: Mapping[str, object]) -> Iterator[object]:
    """Every cache control of a request (C.N.7); schemas of tools and arguments of calls are not looked into."""
    yield from _control_of(request)
    for field in ("system", "tools", "messages"):
        for item in as_list(request.get(field)) or ():
            yield from _find_in_block(item)


def _find_in_block(block: object) -> Iterator[object]:
    """The cache control of a message, tool or block, then those of the blocks that it holds."""
    waiting = [block]
    while waiting:
        members = _as_mapping(waiting.pop())
        if members is not None:
            yield from _control_of(members)
            waiting += reversed(as_list(members.get("content")) or ())


def _control_of(members: Mapping[str, object]) -> Iterator[object]:
    control = members.get("cache_control")
    if control is not None:
        yield control


def _look_up(windows: Mapping[object, int], word: object) -> int | None:
    return windows.get(word) if word is None or isinstance(word, str) else None


def _as_mapping(value: object) -> Mapping[str, object] | None:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else None
