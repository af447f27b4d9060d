"""What selection asks before it decides a step: working memory for its items, sources for candidates."""

from __future__ import annotations

from contextbus_protocol.envelope import Message
from contextbus_protocol.values import Candidate, Scope, SourceKind, SourceUsage, Value
from contextbus_protocol.working_memory import WorkingMemorySnapshot


class AskItems(Message, frozen=True, kw_only=True, tag="ask-items"):
    """Ask what working memory offers to a step (selection to working_memory).

    ``seen`` is the sequence of the part that the client knows; ``load`` asks to look for newer commits first.
    """

    tenant: str
    token: str
    reply_to: str
    seen: int = 0
    load: bool = False


class ItemsOffered(Message, frozen=True, kw_only=True, tag="items-offered"):
    """The working memory as of a sequence (working_memory to selection); no snapshot means none was created.

    ``code`` is set when the log could not be read; the step then fails with it.
    """

    token: str
    sequence: int = 0
    digest: str = ""
    snapshot: WorkingMemorySnapshot | None = None
    code: str | None = None


class Accounting(Value, frozen=True):
    """The run that pays for a query, and the id under which it does so once (D.L.1, D.L.6)."""

    run: str
    request_id: str


class Query(Message, frozen=True, kw_only=True, tag="query"):
    """Ask a source for candidates (selection to a source's workers, D.G.23).

    ``budget_tokens`` is a hint in tokens; ``seen`` are the sequences that the client knows of the source's own store.
    ``records`` are ids that the run is owed whatever the query says (D.H.8, D.K.26); ``only_records`` asks for nothing
    else.  ``accounting`` lets the source charge what it spends (D.L.1).
    """

    tenant: str
    command: str
    token: str
    reply_to: str
    source: str
    step: int
    text: str
    scope: Scope
    limit: int
    budget_tokens: int
    seconds_left: float
    seen: int = 0
    records: tuple[str, ...] = ()
    only_records: bool = False
    accounting: Accounting | None = None


class Offered(Message, frozen=True, kw_only=True, tag="offered"):
    """What a source found (worker to selection); nothing found is an empty tuple (D.K.19).

    ``usage`` is what the query cost (D.L.6).  ``erasures`` is the sequence of the tenant's erasures that the answer is
    as of, for sources whose records can be forgotten: selection reads what was forgotten since.
    """

    token: str
    source: str
    kind: SourceKind
    candidates: tuple[Candidate, ...] = ()
    usage: tuple[SourceUsage, ...] = ()
    erasures: int | None = None


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """A source could not answer (worker, or the host for an absent source, to selection).

    ``code`` is one word without content: ``busy``, ``absent``, ``error``, ``malformed``, ``timeout``.  ``usage`` is
    what the query cost all the same (D.L.6).
    """

    token: str
    source: str
    code: str
    origin_code: str | None = None
    origin_type: str | None = None
    usage: tuple[SourceUsage, ...] = ()
