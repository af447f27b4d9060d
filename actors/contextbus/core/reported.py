"""What of a reported model call is a fact of the log: words, numbers and a digest, never a text (D.W.8, D.D.25)."""

from __future__ import annotations

from typing import Final

from contextbus.core.usage_facts import as_count
from contextbus_protocol.commands import ReportStep
from contextbus_protocol.errors import LONGEST_WORD, word_of
from contextbus_protocol.events import CallFailed, CallSucceeded

_DIGEST: Final = "sha256:"
_DIGEST_LENGTH: Final = len(_DIGEST) + 64
_HEX: Final = frozenset("0123456789abcdef")
_SEPARATORS: Final = str.maketrans("", "", "/:@")


def outcome_of_report(command: ReportStep) -> CallSucceeded | CallFailed:
    """The event of a report; what of it is no word, count or digest is left out, whoever sent it.

    A finish reason that is no word becomes ``other``.
    """
    if command.status != "succeeded":
        return CallFailed(step=command.step, status=command.status)
    reason = command.finish_reason
    return CallSucceeded(
        step=command.step,
        usage=command.usage,
        finish_reason=None if reason is None else word_of(reason) or "other",
        started_at=as_count(command.started_at),
        response_model=model_word(command.response_model),
        request_digest=command.request_digest if _is_digest(command.request_digest) else None,
        upstream=word_of(command.upstream),
        measured=as_count(command.measured),
        retention_ms=as_count(command.retention_ms),
    )


def model_word(name: str | None) -> str | None:
    """A model's name, if it is a short word once the separators of such names are taken out: ``/``, ``:`` and ``@``."""
    if name is None or len(name) > LONGEST_WORD or word_of(name.translate(_SEPARATORS)) is None:
        return None
    return name


def _is_digest(value: str | None) -> bool:
    return (
        value is not None
        and len(value) == _DIGEST_LENGTH
        and value.startswith(_DIGEST)
        and _HEX.issuperset(value[len(_DIGEST) :])
    )
