"""What the plain model of a run is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, str]


@dataclass
class Record:
    """A record as a package placed it."""

    source: str
    record_id: str
    revision: int | None
    digest: str
    mandatory: bool
    step: int
    package: str

    @property
    def key(self) -> Key:
        """What makes it the same record in another revision."""
        return self.source, self.record_id

    @property
    def age(self) -> tuple[int, int]:
        """The newest placement has the greatest."""
        return (-1 if self.revision is None else self.revision, self.step)


@dataclass
class Owed:
    """A record whose block left (D.H.5)."""

    record: Record
    waits: bool = False


@dataclass
class Block:
    """A block that stands behind the first ``position`` source messages."""

    step: int
    position: int
    placement: str
    digest: str
    weight: int
    package: str
    records: list[Record] = field(default_factory=list[Record])


@dataclass
class Stand:
    """A message that stands in place of source messages: its digest, its cost, which of them it is, if it is one."""

    digest: str
    weight: int
    source: int | None


@dataclass
class Checkpoint:
    """What stands in place of the first source messages, while the history begins with them (C.L.3)."""

    source_count: int
    source_hash: str
    stands: list[Stand]
    blob: str
    applies: bool = True
    forgotten: bool = False


@dataclass
class Last:
    """The newest step: what its request was, and what becomes of it."""

    step: int
    package: str
    model: tuple[str, str]
    tools: str | None
    messages: list[str]
    system: list[str]
    prefix: list[str]
    request: list[str]
    blocks: list[Block]
    records: list[Record]
    owed: list[Owed]
    estimated: int
    options: Any
    status: str = "open"
    redacted: bool = False
    history_forgotten: bool = False
    block_forgotten: bool = False

    @property
    def append(self) -> Block | None:
        """Its append block."""
        return next((b for b in self.blocks if b.placement == "append"), None)


@dataclass
class Memory:
    """The working memory after one commit, as far as the model looks at it."""

    revision: int
    goal: str
    task: str | None
    titles: dict[str, str]
    notes: list[str]
