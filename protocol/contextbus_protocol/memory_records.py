"""What clients ask of a memory worker, what it answers, and the record that its stream holds."""

from __future__ import annotations

from contextbus_protocol.envelope import Message, ReplyEncoding
from contextbus_protocol.values import Scope, Value
from contextbus_protocol.working_memory import SourceRef


class Remember(Message, frozen=True, kw_only=True, tag="remember"):
    """Store a memory record or a new revision of it (client to a memory worker, D.K.24).

    ``message_id`` makes a repeated request have one effect; ``now`` is in milliseconds since the epoch.
    """

    tenant: str
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    source: str
    message_id: str
    text: str
    scope: Scope
    now: int
    record_id: str | None = None
    origin: str = "asserted"
    source_refs: tuple[SourceRef, ...] = ()


class Forget(Message, frozen=True, kw_only=True, tag="forget"):
    """Erase every revision of a record (client to a memory worker)."""

    tenant: str
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    source: str
    message_id: str
    record_id: str
    scope: Scope


class ListRecords(Message, frozen=True, kw_only=True, tag="list-records"):
    """List the newest revisions of the records of a scope (client to a memory worker)."""

    tenant: str
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    source: str
    message_id: str
    scope: Scope
    limit: int = 1000


class AllowRecords(Message, frozen=True, kw_only=True, tag="allow-records"):
    """Let forgotten texts be remembered again (client to a memory worker, D.K.24).

    They are named by their digests, or as all that one forgotten record said.
    """

    tenant: str
    reply_to: str
    reply_as: ReplyEncoding = "msgpack"
    source: str
    message_id: str
    digests: tuple[str, ...] = ()
    record_id: str | None = None


class MemoryRecord(Value, frozen=True, kw_only=True):
    """One revision of a memory record as its stream holds it."""

    version: int
    record_id: str
    revision: int
    text: str
    digest: str
    scope: Scope
    at: int
    origin: str = "asserted"
    source_kinds: tuple[str, ...] = ()


class Remembered(Message, frozen=True, kw_only=True, tag="remembered"):
    """A record is stored (memory worker to the client); ``sequence`` is the store's."""

    message_id: str
    record_id: str
    revision: int
    digest: str
    sequence: int


class RedactedRun(Value, frozen=True):
    """The steps of a run that a record was taken out of."""

    run: str
    steps: tuple[int, ...]


class DeletedSummary(Value, frozen=True):
    """A summary of a run's history that was deleted with the span that it was archived for (C.X.11).

    ``summary`` is the reference of the blob that stood in place of messages, ``archive`` that of the archived span.
    """

    run: str
    summary: str
    archive: str | None = None


class Forgotten(Message, frozen=True, kw_only=True, tag="forgotten"):
    """A record is erased, and so are packages and summaries that held it (memory worker to the client, D.J.7).

    ``redacted`` are the steps that it was taken out of, ``summaries`` what was deleted of compacted histories since the
    record had been placed in them; ``blobs`` is how many stored blobs the worker that answers
    erased for it, whoever of its tasks did; what another worker erased meanwhile is not counted.
    ``messages`` and ``items`` count the source messages and the entries of working memory that quote the record's text
    in those runs; nothing of them is touched.  They are left out where the text was gone before it could be looked for,
    as it is for a request that is repeated.
    """

    message_id: str
    record_id: str
    revisions: int
    sequence: int
    redacted: tuple[RedactedRun, ...] = ()
    summaries: tuple[DeletedSummary, ...] = ()
    blobs: int = 0
    messages: int | None = None
    items: int | None = None


class RecordsAllowed(Message, frozen=True, kw_only=True, tag="records-allowed"):
    """Texts of these digests may be remembered again (memory worker to the client, D.K.24)."""

    message_id: str
    digests: tuple[str, ...]
    sequence: int


class RecordsListed(Message, frozen=True, kw_only=True, tag="records-listed"):
    """The records of a scope, ordered by id."""

    message_id: str
    records: tuple[MemoryRecord, ...] = ()
    sequence: int = 0
