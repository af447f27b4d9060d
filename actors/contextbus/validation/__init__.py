"""Whether a payload is right, before it is sent: the ordering rules of four APIs, and their SDKs' own types.

``validate`` needs nothing installed and finds what types cannot see, such as a call without its result; ``check_types``
asks the request types of the provider's SDK, where that is installed.  A payload is right when both find no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from contextbus.core.json_text import as_object
from contextbus.validation import anthropic, gemini, openai, responses
from contextbus.validation.detection import tell_target
from contextbus.validation.findings import SHAPE, Finding, Object, Severity, as_text, error, find_surrogates
from contextbus.validation.sdk_types import SDKS, TYPES, check_types
from contextbus_protocol.errors import InvalidTypeError

Check = Callable[[Object, str | None], Iterator[Finding]]

_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "anthropic": anthropic.check,
        "openai": openai.check,
        "openai-responses": responses.check,
        "gemini": gemini.check,
    }
)
TARGETS: Final = tuple(_CHECKS)


def validate(body: object, target: str, model: str | None = None) -> tuple[Finding, ...]:
    """What breaks the rules of the target's API, in the order of the body; its cost is linear (P.A.2).

    Args:
        body: the payload as it would be sent, as decoded JSON; whatever it is, nothing is raised for it.
        target: whose API it is for, one of ``TARGETS``.
        model: the model's id where the body does not hold it.  Some rules hold only for some models; without an id the
            strict ones apply.

    Raises:
        InvalidTypeError: there is no such target.
    """
    check = _CHECKS.get(target)
    if check is None:
        raise InvalidTypeError(f"no target {target!r}; the targets are {', '.join(TARGETS)}")
    found = as_object(body)
    if found is None:
        return (error(SHAPE, "body", "The body is no JSON object; write one."), *find_surrogates(body))
    return (*check(found, model or as_text(found.get("model"))), *find_surrogates(body))


__all__ = ["SDKS", "SHAPE", "TARGETS", "TYPES", "Finding", "Severity", "check_types", "tell_target", "validate"]
