"""From one provider's conversation to chat messages.  Pure."""

from __future__ import annotations

from contextbus.core.importers.ai_sdk import from_ai_sdk
from contextbus.core.importers.anthropic import from_anthropic
from contextbus.core.importers.detect import detect, read_conversations
from contextbus.core.importers.gemini import from_gemini
from contextbus.core.importers.openai import from_openai
from contextbus.core.importers.reading import Conversation, Provider
from contextbus.core.importers.responses import from_responses

__all__ = [
    "Conversation",
    "Provider",
    "detect",
    "from_ai_sdk",
    "from_anthropic",
    "from_gemini",
    "from_openai",
    "from_responses",
    "read_conversations",
]
