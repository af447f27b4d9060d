"""The tool ``load_skill``: its definition for each provider, and what it answers (D.K.26).

The answer is a receipt.  The skill's text comes with the next step, as a mandatory record of the source of skills, so
that no request holds it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from contextbus.core import json_text
from contextbus.core.skill_loads import FAILED, LOAD_SKILL, SKILL_ARGUMENT, is_skill_id
from contextbus_protocol.chat import Text, ToolResult
from contextbus_protocol.errors import InvalidTypeError

PROVIDERS: Final = ("anthropic", "openai", "gemini")
MAX_LISTED: Final = 50
DESCRIPTION: Final = (
    "Load the instructions of a skill. Skills are offered in the context as lines of name, id in parentheses and "
    "description; give the id. The instructions are part of your next request."
)


def load_skill_tool(provider: str = "anthropic") -> dict[str, object]:
    """The definition of the tool, as a provider's API takes it.

    Args:
        provider: ``anthropic``, ``openai`` (Chat Completions) or ``gemini`` (one function declaration).

    Raises:
        InvalidTypeError: there is no such provider.
    """
    schema: dict[str, object] = {
        "type": "object",
        "properties": {SKILL_ARGUMENT: {"type": "string", "description": "The id of the skill."}},
        "required": [SKILL_ARGUMENT],
    }
    match provider:
        case "anthropic":
            return {"name": LOAD_SKILL, "description": DESCRIPTION, "input_schema": schema}
        case "openai":
            function = {"name": LOAD_SKILL, "description": DESCRIPTION, "parameters": schema}
            return {"type": "function", "function": function}
        case "gemini":
            return {"name": LOAD_SKILL, "description": DESCRIPTION, "parameters": schema}
        case _:
            raise InvalidTypeError(f"no provider {provider!r}: give one of {', '.join(PROVIDERS)}")


def answer_load_skill(
    arguments: str | Mapping[str, object] | None, skills: Iterable[str], *, call: str = ""
) -> ToolResult:
    """What the tool answers: a receipt, or an error that lists the ids (D.K.26).

    Args:
        arguments: the arguments of the call, as JSON text or as the SDK read them.
        skills: the ids that there are.
        call: the id of the call.
    """
    read: object = json_text.read_object(arguments) if isinstance(arguments, str) else arguments
    skill = cast("Mapping[str, object]", read).get(SKILL_ARGUMENT) if isinstance(read, Mapping) else None
    known = sorted(set(skills))
    if isinstance(skill, str) and is_skill_id(skill) and skill in known:
        return _answer(call, f"Skill {skill} is loaded; its instructions are part of the next request.")
    what = f'the argument must be {{"{SKILL_ARGUMENT}": "<id>"}}'
    if isinstance(skill, str) and is_skill_id(skill):
        what = f"there is no skill {skill}"
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    listed = f"the ids are {', '.join(known[:MAX_LISTED])}{more}" if known else "there are no skills"
    return _answer(call, f"{FAILED}{what}; {listed}.", error=True)


def _answer(call: str, text: str, *, error: bool = False) -> ToolResult:
    return ToolResult(id=call, content=(Text(text=text),), name=LOAD_SKILL, error=error)
