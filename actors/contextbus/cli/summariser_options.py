"""The summariser that an option names."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from contextbus.cli.failures import UsageFault
from contextbus.core import json_text
from contextbus.summarisers.anthropic import anthropic_summariser
from contextbus.summarisers.built_in import EXTRACTIVE_ID, extractive_summariser
from contextbus.summarisers.interface import Summariser, Summary, SummaryRequest
from contextbus.summarisers.openai import openai_summariser
from contextbus_protocol.errors import InvalidRequestError, SummariserFailedError

FORMS: Final = "extractive|openai:MODEL|anthropic:MODEL"
_KEYS: Final = {
    "openai": "OPENAI_API_KEY, and OPENAI_BASE_URL for an endpoint of your own",
    "anthropic": "ANTHROPIC_API_KEY, and ANTHROPIC_BASE_URL for an endpoint of your own",
}


class Watched:
    """A summariser whose failure is told with what to look at; ``asked`` counts its requests."""

    def __init__(self, given: Summariser, name: str, look: str) -> None:
        self.id = given.id
        self.name = name
        self.asked = 0
        self._given = given
        self._look = look

    @property
    def is_remote(self) -> bool:
        """Whether it asks a model."""
        return bool(self._look)

    async def summarise(self, request: SummaryRequest) -> str | Summary:
        """Ask it.

        Raises:
            SummariserFailedError: it failed; the text says how.
        """
        self.asked += 1
        try:
            return await self._given.summarise(request)
        except Exception as exc:
            said = " ".join(str(exc).split()) or "no reason given"
            look = f"; look at {self._look}" if self._look else ""
            raise SummariserFailedError(f"{self.name} failed with {type(exc).__name__}: {said}{look}") from exc


async def open_summariser(name: str, stack: AsyncExitStack) -> Watched:
    """The summariser of a name; what it holds is closed with the stack.

    Raises:
        UsageFault: there is none of this name, its SDK is not installed, or it has no key.
    """
    kind, found, model = name.partition(":")
    if name == EXTRACTIVE_ID:
        return Watched(extractive_summariser(count=_count), name, "")
    if kind not in _KEYS or not found or not model:
        raise UsageFault(f"--summariser {name!r}: write {FORMS}, for example openai:gpt-5-mini")
    try:
        made = anthropic_summariser(model=model) if kind == "anthropic" else openai_summariser(model=model)
    except InvalidRequestError as exc:
        raise UsageFault(f"--summariser {name}: {exc.message}") from None
    except Exception as exc:  # the SDK's own, for want of a key
        raise UsageFault(f"--summariser {name}: {exc}; set {_KEYS[kind]}") from None
    stack.push_async_callback(made.aclose)
    return Watched(made, name, _KEYS[kind])


def _count(text: str) -> int:
    """What a text adds to the default count of messages: a fourth of its characters as JSON (C.C.1)."""
    return -(-(len(json_text.quote(text).decode()) - 2) // 4)
