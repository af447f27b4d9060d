"""The types of Google's own SDK, asked about a payload; they forbid members that they do not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.genai import types


def validate_gemini(body: Mapping[str, Any]) -> None:
    """Ask them about every content, tool and the system instruction.

    Raises:
        pydantic.ValidationError: they refuse something.
    """
    assert set(body) <= {"contents", "systemInstruction", "tools"}
    for content in body["contents"]:
        types.Content.model_validate(content)
    for tool in body.get("tools", ()):
        types.Tool.model_validate(tool)
    if "systemInstruction" in body:
        types.Content.model_validate(body["systemInstruction"])
