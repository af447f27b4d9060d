"""Loads of skills as facts of source messages: calls of ``load_skill`` and the results that are no error (D.K.26)."""

from __future__ import annotations

import re
from typing import Final

from contextbus.core import json_text
from contextbus_protocol.chat import ChatMessage, ToolCall, ToolResult
from contextbus_protocol.digests import clean_text
from contextbus_protocol.events import SkillCall

LOAD_SKILL: Final = "load_skill"
"""The name of the tool."""
SKILL_ARGUMENT: Final = "skill"
"""The tool's only argument: the id of a skill."""
BODY_SUFFIX: Final = "/body"
"""What the record id of a skill's body has behind the skill's id."""
LONGEST_SKILL_ID: Final = 128
"""Characters of a skill's id."""

# The event log holds ids and no texts: without blanks and this short, nothing that a model writes is a sentence.
_SKILL_ID: Final = re.compile(rf"[^\x00-\x20\x7f\ud800-\udfff]{{1,{LONGEST_SKILL_ID}}}")


def is_skill_id(text: str) -> bool:
    """Whether a text can be a skill's id: no blanks, at most 128 characters, and not the record id of a body."""
    return _SKILL_ID.fullmatch(text) is not None and not text.endswith(BODY_SUFFIX)


def body_record(skill: str) -> str:
    """The record id of a skill's body (D.K.26)."""
    return skill + BODY_SUFFIX


def skill_facts(message: ChatMessage) -> tuple[tuple[SkillCall, ...], tuple[str, ...]]:
    """What a message says of loaded skills: ``MessageFact.skill_calls`` and ``MessageFact.succeeded`` (D.K.26).

    Calls are those of the assistant; one whose arguments name no skill is none.  A result without a tool's name may
    belong to any call, so it counts: providers leave the name out.  Whether it answers a call of ``load_skill`` is for
    the fold, which sees both.
    """
    calls: tuple[SkillCall, ...] = ()
    succeeded: tuple[str, ...] = ()
    for part in message.content:
        if isinstance(part, ToolCall):
            if message.role == "assistant" and part.name == LOAD_SKILL:
                skill = json_text.read_object(part.arguments).get(SKILL_ARGUMENT)
                if isinstance(skill, str) and is_skill_id(skill):
                    calls = (*calls, SkillCall(clean_text(part.id), skill))
        elif isinstance(part, ToolResult) and not part.error and part.name in (None, LOAD_SKILL):
            succeeded = (*succeeded, clean_text(part.id))
    return calls, succeeded
