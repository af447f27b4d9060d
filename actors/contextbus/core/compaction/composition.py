"""What a summary looks like in the history, and where it stands (C.E.1-C.E.4, C.X.8)."""

from __future__ import annotations

from typing import Final

from contextbus_protocol.chat import ChatMessage, Text, user

LABEL: Final = "Previous conversation summary"
"""How the message of a summary begins (C.E.2)."""

_HEAD: Final = f"{LABEL}:\n"

ARCHIVE_LABEL: Final = "Archived"
ARCHIVE_SCHEME: Final = "context://archive/"
"""What the address of an archived span begins with; the digest's hex follows (C.X.8)."""

_DIGEST: Final = "sha256:"


def summary_text(summary: str, archive: str | None = None) -> str:
    """The text of a summary's message: label, summary, and in a run the line that names the archived span.

    Args:
        summary: the summary's own text.
        archive: the digest of the archived span.
    """
    text = f"{_HEAD}{summary}"
    return text if archive is None else f"{text}\n{archive_line(archive)}"


def summary_message(summary: str, archive: str | None = None) -> ChatMessage:
    """The message of a summary: the user's role and one text; history never becomes an instruction (C.E.3)."""
    return user(summary_text(summary, archive))


def is_summary(message: ChatMessage) -> bool:
    """Whether a message looks like that of a summary, by its label: a user may write the same (C.E.2)."""
    first = message.content[0] if message.content else None
    return message.role == "user" and isinstance(first, Text) and first.text.startswith(_HEAD)


def archive_line(archive: str) -> str:
    """The last line of a summary's message in a run (C.X.8)."""
    return f"{ARCHIVE_LABEL}: {archive_uri(archive)}"


def archive_uri(archive: str) -> str:
    """The address of an archived span: a digest, never a path."""
    return ARCHIVE_SCHEME + archive.removeprefix(_DIGEST)


def read_summary(text: str, archive: str | None = None) -> str:
    """The summary in the text of its message, the inverse of ``summary_text``."""
    line = "" if archive is None else f"\n{archive_line(archive)}"
    return text.removeprefix(_HEAD).removesuffix(line)
