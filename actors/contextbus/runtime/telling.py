"""Telling functions of the host of what came about; they can do no harm (D.G.26, D.W.4)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import anyio

from contextbus.runtime.logs import get_logger
from contextbus_protocol.package import ContextWarning

TELLING_SECONDS: Final = 10.0
"""How long is waited for an async function that is told something: a step must not hang on it."""

OnWarning = Callable[[ContextWarning], Awaitable[object] | object]
"""Is told one warning, async or not; what it gives back is not looked at."""

_log = get_logger(__name__)


async def tell_warnings(on_warning: OnWarning | None, warnings: Iterable[ContextWarning], **facts: str | int) -> None:
    """Tell each warning, and wait for an async function; one that raises is logged by its type.

    Args:
        on_warning: who is told; None for nobody.
        warnings: what is told, one after the other.
        facts: what the line of a failure says of the occasion: ids and numbers, no content.
    """
    if on_warning is None:
        return
    for warning in warnings:
        await tell("on_warning", on_warning, warning, **facts)


async def tell(name: str, function: Callable[..., object], *given: object, **facts: str | int) -> None:
    """Tell a function of the host something, and wait for an async one for ten seconds; a failure is logged.

    Args:
        name: the function as its option is called.
        function: who is told.
        given: what is told.
        facts: what the line of a failure says of the occasion: ids and numbers, no content.
    """
    try:
        told = function(*given)
        if inspect.isawaitable(told):
            with anyio.fail_after(TELLING_SECONDS):
                await told
    except Exception as exc:  # told after the fact: whatever it is, it changes nothing
        _log.warning(f"{name}_failed", error=type(exc).__name__, **facts)
