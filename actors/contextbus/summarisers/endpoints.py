"""What the summarisers of model endpoints share: the SDK, the time left, and reading what the SDK gives back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final, Protocol, TypeVar, cast, runtime_checkable

import anyio
import msgspec

from contextbus.summarisers.interface import MalformedSummaryError
from contextbus_protocol.errors import InvalidRequestError, InvalidTypeError

_OURS: Final = frozenset(
    (
        "model",
        "messages",
        "system",
        "max_tokens",
        "max_completion_tokens",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "mcp_servers",
        "stream",
        "n",
    )
)
"""Fields of a request that the caller cannot set: they are the request's own, or would offer tools (C.F.6)."""

T = TypeVar("T")


@runtime_checkable
class Dumpable(Protocol):
    """An answer of an SDK (pydantic)."""

    def model_dump(self, *, warnings: bool = True) -> dict[str, object]:
        """Its fields as plain values."""
        ...


def import_sdk(name: str) -> ModuleType:
    """The SDK of a provider, which is also the name of our extra.

    Raises:
        InvalidRequestError: it is not installed; the text says how to get it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        raise InvalidRequestError(
            f"this summariser needs the SDK {name!r}, which is not installed: pip install 'contextbus[{name}]'"
        ) from exc


def check_client(client: object, sdk: str) -> None:
    """Refuse a client that would hold up the loop, and that no cancellation reaches (C.F.9).

    Raises:
        InvalidTypeError: it is no asynchronous one.
    """
    if not hasattr(client, "__aenter__"):
        raise InvalidTypeError(f"give an asynchronous client of the SDK {sdk!r}, not {type(client).__name__}")


def check_extra_body(extra: Mapping[str, object] | None) -> dict[str, object]:
    """The further fields of a request.

    Raises:
        InvalidTypeError: one of them is the request's own, or offers tools (C.F.6).
    """
    fields = dict(extra or {})
    refused = sorted(_OURS & fields.keys())
    if refused:
        raise InvalidTypeError(f"extra_body must not hold {', '.join(refused)}")
    return fields


def seconds_left() -> float | None:
    """The time until the deadline of the call, in seconds; None without one."""
    left = anyio.current_effective_deadline() - anyio.current_time()
    return None if math.isinf(left) and left > 0 else max(0.0, left)


def read_response(response: object, form: type[T]) -> T:
    """Read an answer of an SDK, which does not check what an endpoint sends.

    Raises:
        MalformedSummaryError: the endpoint sent something else.
    """
    if not isinstance(response, Dumpable):
        raise MalformedSummaryError(f"the endpoint answered {type(response).__name__}, no completion")
    try:
        return msgspec.convert(response.model_dump(warnings=False), form)
    except msgspec.ValidationError as exc:
        raise MalformedSummaryError(f"the endpoint answered no completion: {exc}") from None


def read_count(value: object) -> int:
    """A number of tokens; anything else counts as none."""
    return value if type(value) is int and value >= 0 else 0


def read_text(value: object) -> str:
    """A text; anything else is empty."""
    return value if isinstance(value, str) else ""


def list_of(value: object) -> list[object]:
    """A list; anything else is empty."""
    return cast("list[object]", value) if isinstance(value, list) else []
