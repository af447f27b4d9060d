"""A plain model of a run's rules, in lists and dicts: what the log must say of a command, step by step.

It is written from the rules and shares no code with the engine but digests and weights of messages.  Commits come in
log order; what sources offered is a fact that it reads, everything else it works out by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from contextbus.core.history import digest_message
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult
from contextbus_protocol.digests import EMPTY_CHAIN, extend_chain
from tests.simulation.model_values import Block, Checkpoint, Key, Last, Memory, Owed, Record

BOUND_IDS = ("claude-fable-5-1", "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5")


class Model:
    """The run."""

    def __init__(self, weigh: Callable[[ChatMessage], int]) -> None:
        self.weigh = weigh
        self.factor = 10_000
        self.calibrates = False
        self.messages: list[ChatMessage] = []
        self.blocks: list[Block] = []
        self.owed: dict[Key, Owed] = {}
        self.last: Last | None = None
        self.checkpoint: Checkpoint | None = None
        self.due_summary = False
        self.compacted = self.rewound = self.system_touched = False
        self.passes = 0
        self.last_refresh = 0
        self.task_at_refresh: str | None = None
        self.limit_reported: list[str | None] = []
        self.requested = False
        self.redaction_due = False
        self.touched = False
        self.redaction_hit = False
        self.forgotten: set[Key] = set()
        self.tombstones: dict[Key, int] = {}
        self.absent: set[str] = set()
        self.written: dict[str, tuple[tuple[str, str], str | None, list[str]]] = {}
        self.memories: dict[int, Memory] = {}
        self.memory_used = 0

    # -- the request

    @property
    def digests(self) -> list[str]:
        """The source messages."""
        return [digest_message(m) for m in self.messages]

    def sent(self) -> list[tuple[str, int | None, Block | None]]:
        """The request history: digest, source message and block of each, what stands for others first (C.L.3)."""
        items: list[tuple[str, int | None, Block | None]] = []
        start, known = 0, self.standing_in()
        if known is not None:
            start = known.source_count
            items = [(stand.digest, stand.source, None) for stand in known.stands]
        for position in range(start, len(self.messages) + 1):
            here = [b for b in self.blocks if b.position == position or b.position < position == start]
            items += [(b.digest, None, b) for b in here]
            if position < len(self.messages):
                items.append((digest_message(self.messages[position]), position, None))
        return items

    def standing_in(self) -> Checkpoint | None:
        """The checkpoint, if it applies."""
        return self.checkpoint if self.checkpoint is not None and self.checkpoint.applies else None

    def flat(self) -> list[str]:
        """The digests of the request history."""
        return [digest for digest, _, _ in self.sent()]

    def system(self) -> list[str]:
        """The system messages that the history begins with."""
        roles = [m.role for m in self.messages] + ["none"]
        return self.digests[: next(place for place, role in enumerate(roles) if role != "system")]

    def weight(self) -> int:
        """Eighteenths of a token of all of it."""
        known = self.standing_in()
        start = 0 if known is None else known.source_count
        stands = 0 if known is None else sum(stand.weight for stand in known.stands)
        return stands + sum(self.weigh(m) for m in self.messages[start:]) + sum(b.weight for b in self.blocks)

    def tokens(self, weight: int) -> int:
        """Tokens of a weight (D.M.4)."""
        exact = Fraction(weight * self.factor, 18 * 10_000)
        return -(-exact.numerator // exact.denominator)

    def blocks_chain(self) -> str:
        """The chain digest that an answer names; empty without blocks."""
        chain = ""
        for block in self.blocks:
            chain = extend_chain(chain or EMPTY_CHAIN, f"{block.position}:{block.digest}")
        return chain

    def standing(self) -> list[Record]:
        """The records that stand in the history."""
        return [r for b in self.blocks for r in b.records]

    # -- history

    def cut(self, keep: int) -> None:
        """The host handed over another history (D.F.14, D.F.19, D.H.5)."""
        if keep >= len(self.messages):
            return
        self.rewound = True
        if self.last is not None and keep < len(self.last.messages):
            self.touched = True
            self.system_touched = self.system_touched or keep < len(self.system())
        if self.checkpoint is not None and keep < self.checkpoint.source_count:
            self.checkpoint.applies = False
            self.due_summary = False
        unloaded = {skill for skill, position in self.loaded() if position >= keep}
        del self.messages[keep:]
        self.leave([b for b in self.blocks if b.position > keep])
        self.absent &= {skill for skill, _ in self.loaded()}
        for skill in unloaded - {skill for skill, _ in self.loaded()}:
            self.owed.pop(("skills", f"{skill}/body"), None)

    def add(self, messages: list[ChatMessage]) -> None:
        """Further messages; a skill that is loaded again is asked for again (D.K.26)."""
        before = dict(self.loaded())
        self.messages += messages
        again = {skill for skill, place in self.loaded() if before.get(skill) != place}
        self.absent -= again
        known = self.checkpoint
        if known is None or known.applies or known.forgotten or len(self.messages) < known.source_count:
            return
        if self.chain(known.source_count) == known.source_hash:  # forward again: what it stands for is back (C.L.5)
            self.stand([b for b in self.blocks if b.position <= known.source_count], known)

    def chain(self, count: int) -> str:
        """The chain digest of the first source messages."""
        chain = EMPTY_CHAIN
        for digest in self.digests[:count]:
            chain = extend_chain(chain, digest)
        return chain

    def compact(self, end: int, checkpoint: Checkpoint, *, dropped: bool) -> None:
        """A summary stands in place of a range that ends before the request's message ``end`` (C.E.9, C.L.9)."""
        assert checkpoint.source_hash == self.chain(checkpoint.source_count), "the hash is of other messages"
        self.redaction_due = self.redaction_due or (dropped and self.due_summary)
        self.due_summary = False
        self.stand([block for _, _, block in self.sent()[:end] if block is not None], checkpoint)

    def stand(self, gone: list[Block], checkpoint: Checkpoint) -> None:
        """A checkpoint applies: the blocks of its range leave, and what the last request began with is gone."""
        self.checkpoint = checkpoint
        checkpoint.applies = True
        self.compacted = self.touched = self.last is not None
        self.leave(gone)

    def forget_summary(self, blob: str) -> None:
        """A forget took a summary: its messages stand again, and the next step compacts and retrieves (C.X.11)."""
        known = self.checkpoint
        if known is None or known.blob != blob:
            return
        applied, known.applies, known.forgotten = known.applies, False, True
        if not applied:
            return
        if self.last is not None:
            self.touched = self.redaction_hit = self.last.history_forgotten = True
        self.due_summary = self.redaction_due = True

    def clear(self) -> None:
        """A new topic: no history, no placements, no checkpoint; the next step retrieves (P.J.9)."""
        if self.last is not None and self.last.messages and self.messages:
            self.touched = True
            self.system_touched = self.system_touched or bool(self.system())
        self.messages, self.blocks, self.owed, self.checkpoint = [], [], {}, None
        self.absent = set()
        self.requested, self.due_summary = True, False

    def leave(self, gone: list[Block]) -> None:
        """Blocks leave the history: their records are owed (D.H.5)."""
        self.blocks = [b for b in self.blocks if b not in gone]
        self.owe([Owed(r) for b in gone if b.placement == "append" for r in b.records])

    def owe(self, more: list[Owed]) -> None:
        """The newest placement of each is owed, unless the history has it or a newer one (D.H.9)."""
        for item in more:
            known = self.owed.get(item.record.key)
            if known is None or item.record.age >= known.record.age:
                self.owed[item.record.key] = item
        for record in self.standing():
            known = self.owed.get(record.key)
            if known is not None and record.age >= known.record.age:
                del self.owed[record.key]

    def loaded(self) -> list[tuple[str, int]]:
        """The skills that the model loaded, each with the place of its newest result (D.K.26)."""
        found: dict[str, int] = {}
        asked: dict[str, list[str]] = {}
        for place, message in enumerate(self.messages):
            if message.role == "assistant":
                asked = {}
            for part in message.content:
                if isinstance(part, ToolCall) and part.name == "load_skill":
                    asked.setdefault(part.id, []).append(part.arguments.split('"')[3])
                elif isinstance(part, ToolResult) and part.name == "load_skill" and not part.error:
                    for skill in asked.get(part.id, []):
                        found[skill] = place
        return list(found.items())

    def user_text(self) -> str:
        """The latest user text (D.G.17)."""
        for message in reversed(self.messages):
            if message.role == "user" and any(not isinstance(p, ToolResult) for p in message.content):
                return "\n".join(p.text for p in message.content if isinstance(p, Text) and p.text)
        return ""

    # -- refresh

    def due(self, step: int, task: str | None, *, asked: bool, min_steps: int) -> str | None:
        """Why a refresh is due, the first reason that applies (D.G.5, D.G.6, D.G.11, D.G.15)."""
        if self.redaction_due:
            return "redacted"
        if self.passes == 0 and not self.limit_reported:
            return "initial"
        if asked or self.requested:
            return "host-request"
        changed = task != self.task_at_refresh and task not in self.limit_reported
        return "task-change" if changed and step - self.last_refresh >= min_steps else None

    # -- what came of steps

    def succeed(self, reported: int) -> None:
        """The call of a step succeeded: its blocks join the history, or leave with what it saw (D.F.2, D.F.13)."""
        last = self.last
        assert last is not None
        assert last.status == "open"
        last.status = "succeeded"
        if self.calibrates and reported > 0 and last.estimated > 0:
            learned = self.factor * (Fraction(7, 10) + Fraction(3, 10) * Fraction(reported, last.estimated))
            self.factor = max(5_000, min(20_000, round(learned)))
        for item in last.owed:
            if self.owed.get(item.record.key) is item and not item.record.mandatory:
                item.waits = True
        known = self.standing_in()
        replaced = known is not None and len(last.messages) <= known.source_count
        if self.digests[: len(last.messages)] == last.messages and not replaced:
            # a text that was forgotten meanwhile does not join; what else its block carried is owed (D.J.4, D.J.6)
            left = [b for b in last.blocks if last.block_forgotten and b.placement == "append"]
            self.blocks += [b for b in last.blocks if b not in left]
            self.owe([Owed(r) for b in left for r in b.records])
            self.touched = self.touched or bool(left)
        else:
            self.owe([Owed(r) for b in last.blocks for r in b.records])

    def fail(self, status: str) -> None:
        """The call failed: it leaves no placement (D.F.13)."""
        assert self.last is not None
        assert self.last.status == "open"
        self.last.status = status
        if self.last.append is not None:
            self.touched = True

    def redact(self, package: str, replacement: str, key: Key) -> None:
        """A forget took a record out of a package (D.J.4-D.J.6)."""
        self.forgotten.add(key)
        gone = [b for b in self.blocks if b.package == package and any(r.key == key for r in b.records)]
        last = self.last
        for block in [*self.blocks, *(last.blocks if last is not None else [])]:
            if block.package == package:
                block.package = replacement
        for block in gone:
            block.records = [r for r in block.records if r.key != key]
        everything = [*self.standing(), *(o.record for o in self.owed.values())]
        everything += [r for b in (last.blocks if last is not None else []) for r in b.records]
        for record in everything:
            if record.package == package:
                record.package = replacement
        self.owed.pop(key, None)
        self.leave(gone)
        if gone:
            self.touched = self.redaction_hit = True
            if last is not None:
                last.history_forgotten = True
        if last is not None and last.package == replacement:
            raise AssertionError("a replacement is redacted as the package that it replaces")
        if last is not None and last.package == package:
            last.package, last.redacted = replacement, True
            for block in last.blocks:
                last.block_forgotten = last.block_forgotten or any(r.key == key for r in block.records)
                block.records = [r for r in block.records if r.key != key]
            self.redaction_due = self.redaction_due or last.status == "open"
            self.touched = True
        self.redaction_due = self.redaction_due or bool(gone)


def is_bound(model_id: str, provider: str) -> bool:
    """Whether a model binds its thinking to the prefix (D.F.8)."""
    return provider == "anthropic" and model_id.startswith(BOUND_IDS)
