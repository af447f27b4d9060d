"""Functions of a user's own: awaited if they are async, run in threads of their own if not."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from contextbus_protocol.errors import InvalidTypeError

DEFAULT_THREADS: Final = 8
_CHARGE: Final = "charge"


class UserFunction:
    """One function and the threads that it may take.

    Args:
        function: The function, async or not.
        name: Names its threads.
        arguments: How many positional arguments it is called with.
        threads: How many calls of a function that is not async run at once.

    Raises:
        InvalidTypeError: it needs ``charge`` even where there is none to give (D.K.10).
    """

    def __init__(
        self, function: Callable[..., object], *, name: str, arguments: int, threads: int = DEFAULT_THREADS
    ) -> None:
        self.function = function
        self._name = name
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._takes_charge = takes_charge(function, arguments)

    async def __call__(self, *arguments: object, charge: object = None) -> object:
        """Call the function; a charge is handed on only to one that has a parameter for it (D.K.10)."""
        call = self.function
        if charge is not None and self._takes_charge:
            call = partial(call, charge=charge)
        if is_async(self.function):
            found = call(*arguments)
        else:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=f"contextbus-{self._name}")
            # Threads of its own, so that functions which do not end take up those and no others: later queries wait
            # for one within their deadline, and a query that is given up leaves its thread behind.
            context = contextvars.copy_context()
            submitted = self._executor.submit(context.run, partial(_catch, call), *arguments)
            found, error = await asyncio.wrap_future(submitted)
            if error is not None:
                raise error
        return await found if inspect.isawaitable(found) else found


def _catch(call: Callable[..., object], *arguments: object) -> tuple[object, BaseException | None]:
    """What a function gives or raises: a future would change some exceptions into others (D.W.2)."""
    try:
        return call(*arguments), None
    except BaseException as exc:
        return None, exc


def is_async(function: object) -> bool:
    """Whether calling something gives an awaitable: an async function, or an object whose call is one."""
    call = type(function).__dict__.get("__call__")
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes_charge(function: Callable[..., object], arguments: int) -> bool:
    """Whether a function has a keyword parameter ``charge`` beside its positional arguments (D.K.10).

    One that takes any keyword does not count: it may hand them on to something that does not know this one.

    Raises:
        InvalidTypeError: the parameter has no default.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return False
    parameter = signature.parameters.get(_CHARGE)
    given = (None,) * arguments
    if parameter is None or not _binds(signature, given, charge=None):
        return False
    if not _binds(signature, given):
        raise InvalidTypeError("charge needs a default (charge=None): it is left out of calls that nobody accounts for")
    return True


def _binds(signature: inspect.Signature, given: tuple[None, ...], **keywords: None) -> bool:
    try:
        signature.bind(*given, **keywords)
    except TypeError:
        return False
    return True
