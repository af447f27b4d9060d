"""Loads of skills as facts of source messages: calls of ``load_skill`` and the results that are no error (D.K.26)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from contextbus.core import json_text
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult
from contextbus_protocol.digests import clean_text, digest_text
from contextbus_protocol.events import SkillCall
from contextbus_protocol.values import PlacedEntry, SourceSpec

LOAD_SKILL: Final = "load_skill"
"""The name of the tool."""
SKILL_ARGUMENT: Final = "skill"
"""The tool's only argument: the id of a skill."""
BODY_SUFFIX: Final = "/body"
"""What the record id of a skill's body has behind the skill's id."""
FAILED: Final = "load_skill failed: "
"""How an answer of the tool that is an error begins: some providers' tool results have no mark for errors."""
LONGEST_SKILL_ID: Final = 128
"""Characters of a skill's id."""

# The event log holds ids and no texts: without blanks and this short, nothing that a model writes is a sentence.  The
# blanks are written out, since what a release of Python takes for one may change.
_BLANKS: Final = r"\x00-\x20\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
_CALL_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_SKILL_ID: Final = re.compile(rf"[^{_BLANKS}\ud800-\udfff]{{1,{LONGEST_SKILL_ID}}}")


def is_skill_id(text: str) -> bool:
    """Whether a text can be a skill's id: no blanks, at most 128 characters, and not the record id of a body."""
    return _SKILL_ID.fullmatch(text) is not None and not text.endswith(BODY_SUFFIX)


def body_record(skill: str) -> str:
    """The record id of a skill's body (D.K.26)."""
    return skill + BODY_SUFFIX


def demand_bodies(
    skills: Iterable[str], held: Iterable[PlacedEntry], sources: Iterable[SourceSpec]
) -> tuple[tuple[str, str], ...]:
    """The bodies of loaded skills that are neither in the history nor owed, of each source of skills (D.K.26).

    Args:
        skills: the loaded skills whose body is not known to be absent.
        held: what stands in the history or is owed.
        sources: the sources of the step.

    Returns:
        (source, record id), by skill and then in source order.
    """
    bodies = [body_record(skill) for skill in skills]
    if not bodies:
        return ()
    asked = [spec.id for spec in sources if spec.kind == "skills"]
    known = {(entry.source, entry.record_id) for entry in held}
    return tuple(
        (source, body) for body in bodies if not any((name, body) in known for name in asked) for source in asked
    )


def absent_records(
    demanded: Iterable[tuple[str, str]], answered: Collection[str], offered: Collection[str]
) -> frozenset[str]:
    """The demanded records that every source which was asked for them answered without (D.H.8).

    Args:
        demanded: what was asked for by id, as (source, record id).
        answered: the sources that did not fail.
        offered: the records that came back.
    """
    demanded = tuple(demanded)
    failed = {record for source, record in demanded if source not in answered}
    return frozenset(record for _, record in demanded if record not in failed and record not in offered)


def skill_facts(message: ChatMessage) -> tuple[tuple[SkillCall, ...], tuple[str, ...]]:
    """What a message says of loaded skills: ``MessageFact.skill_calls`` and ``MessageFact.succeeded`` (D.K.26).

    Calls are those of the assistant; one whose arguments name no skill is none.  A result without a tool's name may
    belong to any call, so it counts: providers leave the name out.  Whether it answers a call of ``load_skill`` is for
    the fold, which sees both.  An error of our own tool counts as one where the provider has no mark for it.
    """
    calls: tuple[SkillCall, ...] = ()
    succeeded: tuple[str, ...] = ()
    for part in message.content:
        if isinstance(part, ToolCall):
            if message.role == "assistant" and part.name == LOAD_SKILL:
                skill = json_text.read_object(part.arguments).get(SKILL_ARGUMENT)
                if isinstance(skill, str) and is_skill_id(skill):
                    calls = (*calls, SkillCall(_log_id(part.id), skill))
        elif isinstance(part, ToolResult) and part.name in (None, LOAD_SKILL) and not _is_error(part):
            succeeded = (*succeeded, _log_id(part.id))
    return calls, succeeded


def _log_id(call: str) -> str:
    """The id of a call as the log holds it: one that is no short word may be a text, so its digest stands for it."""
    return call if _CALL_ID.fullmatch(call) else digest_text(clean_text(call))


def _is_error(result: ToolResult) -> bool:
    first = result.content[0] if result.content else None
    return result.error or (isinstance(first, Text) and first.text.startswith(FAILED))
