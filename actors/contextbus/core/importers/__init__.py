"""From one provider's conversation to chat messages.  Pure."""

from __future__ import annotations

from contextbus.core.importers.ai_sdk import from_ai_sdk
from contextbus.core.importers.anthropic import from_anthropic
from contextbus.core.importers.claude_code import from_claude_code
from contextbus.core.importers.codex import from_codex
from contextbus.core.importers.detect import SESSIONS, detect, read_conversations
from contextbus.core.importers.gemini import from_gemini
from contextbus.core.importers.openai import from_openai
from contextbus.core.importers.reading import Conversation, Form, Provider
from contextbus.core.importers.responses import from_responses

__all__ = [
    "SESSIONS",
    "Conversation",
    "Form",
    "Provider",
    "detect",
    "from_ai_sdk",
    "from_anthropic",
    "from_claude_code",
    "from_codex",
    "from_gemini",
    "from_openai",
    "from_responses",
    "read_conversations",
]
