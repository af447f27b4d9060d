"""The first of the two layers that a request must pass: what the API requires, and the SDK's own request types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from contextbus.validation import sdk_types

Provider = Literal["anthropic", "openai"]
Found = list[tuple[str, str]]

REQUIRED: Final[Mapping[Provider, tuple[str, ...]]] = {
    "anthropic": ("model", "max_tokens", "messages"),
    "openai": ("model", "messages"),
}
"""Members that a whole request has; the check of types fills in those that a caller adds."""


def check_types(provider: Provider, body: Mapping[str, Any]) -> Found:
    """What of a request is missing or does not fit its SDK's types, as (code, place)."""
    missing = [(f"{provider}.types", f"{name}: Field required") for name in REQUIRED[provider] if name not in body]
    if missing:
        return missing
    found = sdk_types.check_types(body, provider)
    assert found is not None, "the tests need the SDKs"
    return [(f"{provider}.{finding.rule}", f"{finding.place}: {finding.message}") for finding in found]
