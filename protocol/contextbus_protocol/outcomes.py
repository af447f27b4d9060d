"""How an effect ended, as the host tells the actor that asked for it by its token."""

from __future__ import annotations

from contextbus_protocol.envelope import Message
from contextbus_protocol.events import Commit
from contextbus_protocol.subjects import Part


class Committed(Message, frozen=True, kw_only=True, tag="committed"):
    """A commit is in the log (host to the actor that stored it; placement to selection)."""

    token: str
    part: Part
    sequence: int
    digest: str
    commit: Commit


class Conflicted(Message, frozen=True, kw_only=True, tag="conflicted"):
    """Another commit came first (host to the actor that stored; placement to selection)."""

    token: str
    part: Part


class Unstored(Message, frozen=True, kw_only=True, tag="unstored"):
    """The log refused or did not answer in time (host to the actor that stored; placement to selection)."""

    token: str
    part: Part
    code: str
    message: str = ""


class Loaded(Message, frozen=True, kw_only=True, tag="loaded"):
    """The commits of a part after a sequence, oldest first (host to the actor that asked).

    Each is (sequence, digest of the bytes, commit).  ``code`` is set when the log could not be read.
    """

    token: str
    part: Part
    after: int
    commits: tuple[tuple[int, str, Commit], ...] = ()
    code: str | None = None


class Fetched(Message, frozen=True, kw_only=True, tag="fetched"):
    """Blobs that were asked for (host to the actor); a missing one is absent from ``blobs``."""

    token: str
    blobs: tuple[tuple[str, bytes], ...] = ()
    code: str | None = None


class Elapsed(Message, frozen=True, kw_only=True, tag="elapsed"):
    """A timer ran out (host to the actor that set it)."""

    token: str
