"""One run in a world, two clients, and the plain model that every commit is held against."""

from __future__ import annotations

from typing import TypeVar

from contextbus.client.sending import CommandHead
from contextbus.core.estimate import make_estimator
from contextbus.core.history import digest_message
from contextbus.core.projection import request_digests
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import replay_run
from contextbus_protocol import blobs, codec, subjects
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import (
    AnyCommand,
    CompileStep,
    CreateWorkingMemory,
    OverflowStep,
    PatchWorkingMemory,
    ReportStep,
    StepCompiled,
)
from contextbus_protocol.events import (
    CallFailed,
    CallSucceeded,
    Commit,
    CompactionCompleted,
    HistoryCleared,
    HistoryReplaced,
    MessagesAppended,
    PackageRedacted,
    RefreshRequested,
    StepFailed,
    SummaryRedacted,
)
from contextbus_protocol.events import StepCompiled as StepEvent
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.package import Package
from contextbus_protocol.values import CompactionOptions, EstimatorSpec, Model, RefreshOptions, Scope, StepOptions
from contextbus_protocol.working_memory import AddHypothesis, AddObservation, SetActiveTask, SetGoal
from tests.simulation import scripts
from tests.simulation.compactions import check_compactions
from tests.simulation.forgetting import Forgetter
from tests.simulation.forgotten import check_forgotten, check_revisions, check_usage
from tests.simulation.invariants import (
    check_acknowledged,
    check_log,
    check_states,
    check_steps,
    evaluation_of,
    read_log,
)
from tests.simulation.machine_clients import RECORDED, RUN, MachineClient
from tests.simulation.model import Model as Plain
from tests.simulation.model_steps import StepCheck
from tests.simulation.model_values import Checkpoint, Memory, Stand
from tests.simulation.sources import SOURCES
from tests.simulation.world import TENANT, Faults, World

T = TypeVar("T")
LOG = subjects.log(TENANT, RUN, "run")
MEMORY = subjects.log(TENANT, RUN, "working-memory")
MODELS = (scripts.MODEL, scripts.BOUND, Model("openai", "gpt-test", 12_000, 1_000), scripts.SMALL)
TOOLS = (None, "sha256:" + "7" * 64)


class Harness:
    """The run: what is sent to it, what its log must say, and what must hold in the end."""

    def __init__(self, seed: int, faults: Faults, *, calibrates: bool) -> None:
        self.world = World(seed, faults)
        self.clients = [MachineClient(self.world, name) for name in ("ada", "bob")]
        self.forgetter = Forgetter(self.world, (RUN,))
        self.estimator = EstimatorSpec(calibrate=calibrates)
        self.model = Plain(make_estimator().message)
        self.model.calibrates = calibrates
        self.model.tombstones = self.forgetter.forgotten
        self.sent: dict[str, tuple[AnyCommand, list[ChatMessage]]] = {}
        self.words = 0
        self.steps = self.last_step = 0
        self.compactions = 0
        self.newest = 0
        self.packages: list[tuple[str, str]] = []
        self.told: dict[int, str] = {}
        self.checkpoints: dict[int, str] = {}
        self.thinking: dict[int, set[int]] = {}
        self.alone = True
        self.sound = True
        self.world.server.on_append = self.appended

    # -- what the log takes

    def appended(self, subject: str, sequence: int, data: bytes) -> None:
        """A commit is stored: the model works out what it must say."""
        commit, sound = codec.decode_commit(data), self.sound
        self.sound = False
        if subject == MEMORY:
            self.remember(sequence, commit)
        elif subject == LOG:
            self.fold(sequence, commit)
        self.sound = sound

    def remember(self, sequence: int, commit: Commit) -> None:
        """A commit of the working memory."""
        command, _ = self.sent[commit.command]
        if isinstance(command, CreateWorkingMemory):
            titles = {"a": "Deploy billing", "b": "Tell support"}
            self.model.memories[sequence] = Memory(0, "Deploy the billing service.", "a", titles, [])
            return
        assert isinstance(command, PatchWorkingMemory)
        before = self.model.memories[max(self.model.memories)]
        assert command.patch.expected_revision == before.revision
        after = Memory(before.revision + 1, before.goal, before.task, before.titles, [*before.notes])
        match command.patch.operations[0]:
            case SetGoal(text=text):
                after.goal = text
            case SetActiveTask(id=task):
                after.task = task
            case AddObservation(text=text) | AddHypothesis(text=text):
                after.notes.append(text)
            case _:
                raise AssertionError("an operation that no rule sends")
        self.model.memories[sequence] = after

    def fold(self, sequence: int, commit: Commit) -> None:
        """A commit of the run."""
        nothing: list[ChatMessage] = []
        command, messages = self.sent.get(self.command_of(commit.command), (None, nothing))
        self.newest = sequence
        model = self.model
        for event in commit.events:
            match event:
                case HistoryReplaced(keep=keep):
                    common = 0
                    while common < min(len(messages), len(model.messages)) and (
                        messages[common] == model.messages[common]
                    ):
                        common += 1
                    assert keep <= common
                    assert keep < len(model.messages)
                    model.cut(keep)
                case MessagesAppended():
                    model.add(messages[len(model.messages) :])
                    assert model.digests == [digest_message(m) for m in messages], "the history is not the client's"
                case StepEvent():
                    assert isinstance(command, CompileStep | OverflowStep)
                    self.check_step(sequence, event, command, messages)
                case StepFailed():
                    assert event.code in RECORDED
                case CallSucceeded():
                    assert isinstance(command, ReportStep)
                    assert model.last is not None
                    self.note_thinking()
                    usage = command.usage
                    model.succeed(0 if usage is None else usage.input_tokens)
                case CallFailed():
                    model.fail("overflow" if event.status == "overflow" else "failed")
                case RefreshRequested():
                    model.requested = True
                case PackageRedacted():
                    model.redact(event.package, event.replacement, (event.source, event.record_id))
                case CompactionCompleted():
                    self.check_compaction(event)
                case SummaryRedacted(replaced_by=blob):
                    model.forget_summary(blob)
                case HistoryCleared():
                    model.clear()
                case _:
                    pass
        self.told.setdefault(sequence, model.blocks_chain())
        known = model.standing_in()
        self.checkpoints[sequence] = "" if known is None else known.blob
        present = set(model.digests)  # what left and is brought again later counts as new
        model.written = {digest: written for digest, written in model.written.items() if digest in present}

    def check_step(
        self, sequence: int, event: StepEvent, command: CompileStep | OverflowStep, messages: list[ChatMessage]
    ) -> None:
        """A step is compiled."""
        self.steps += 1
        model, last = self.model, self.model.last
        if isinstance(command, CompileStep):
            assert model.digests == [digest_message(m) for m in messages], "the history is not the client's"
            if (
                last is not None
                and self.alone
                and command.seen >= self.last_step
                and last.status == "open"
                and not command.refresh
            ):
                same = last.messages == model.digests and command.step in {None, last.step}
                own = [p for c, p in self.packages if c == command.command] + [last.package]
                forgotten = last.redacted or last.history_forgotten
                stored = not forgotten and not any((RUN, p) in self.world.server.lost for p in own)
                moved = model.requested or model.rewound  # what the host took back was behind another history
                assert not (same and stored) or moved, "an open step with the same messages is compiled anew"
        store = {digest: data for (run, digest), data in self.world.server.blobs.items() if run == RUN}
        self.last_step = sequence
        self.packages.append((command.command, event.package))
        self.told[sequence] = model.blocks_chain()
        self.thinking[sequence] = self.stale_messages(event)
        lost = {digest for run, digest in self.world.server.lost if run == RUN}
        retried = any(c == command.command and p in lost for c, p in self.packages[:-1])
        StepCheck(model, event, command, store, lost, retried=retried).run()

    def command_of(self, command: str) -> str:
        """The client's command that a commit is of: those of an evaluation name it in their id (C.O.1, C.K.9)."""
        if not command.startswith("compaction-"):
            return command
        known = next((c for c in self.sent if command.startswith(evaluation_of(RUN, c, self.newest))), None)
        return command if known is None else known

    def check_compaction(self, event: CompactionCompleted) -> None:
        """A range was replaced: by unchanged messages and at most one summary (C.E.1, C.L.2)."""
        model = self.model
        data = self.world.server.blobs[RUN, event.replaced_by]
        messages = blobs.decode_replacement(data).messages
        stands: list[Stand] = []
        for fact, message in zip(event.replacement, messages, strict=True):
            assert fact.own == "summary" or (fact.source is not None and message == model.messages[fact.source])
            stands.append(Stand(digest_message(message), model.weigh(message), fact.source))
        self.compactions += not event.dropped
        checkpoint = Checkpoint(event.source_count, event.source_hash, stands, event.replaced_by)
        model.compact(event.replaced_range.end, checkpoint, dropped=event.dropped)

    def note_thinking(self) -> None:
        """An answer was written behind the request of the last step (D.F.20)."""
        model, last = self.model, self.model.last
        assert last is not None
        answers = [m for m in model.messages[len(last.messages) :][:1] if m.role == "assistant"]
        for message in answers:  # what comes behind it, or with others before it, was written behind what no log has
            model.written[digest_message(message)] = (last.model, last.tools, last.request)

    def stale_messages(self, event: StepEvent) -> set[int]:
        """The messages whose thinking was written behind other bytes than it now stands behind (D.F.20)."""
        options = event.options
        found: set[int] = set()
        if scripts.BOUND.model_id != options.model.model_id:
            return found
        sent = self.model.sent()
        flat = [digest for digest, _, _ in sent]
        places = {source: place for place, (_, source, _) in enumerate(sent) if source is not None}
        for index, message in enumerate(self.model.digests):
            place = places.get(index)
            if place is None:
                continue  # a summary stands for it
            written = self.model.written.get(message)
            once = self.model.digests.count(message) == 1  # what a host repeats elsewhere was not written there
            if not once or written is None or written[0] != ("anthropic", scripts.BOUND.model_id):
                continue
            if written[1] != options.tools_digest or written[2] != flat[:place]:
                found.add(index)
        return found

    # -- commands

    def head(self, client: MachineClient) -> CommandHead:
        """The fields of a command."""
        client.serial += 1
        return CommandHead(
            run=RUN,
            tenant=TENANT,
            command=f"{RUN}/{client.name}/{client.serial}",
            attempt=1,
            reply_to=self.world.inbox(client.name),
            seconds_left=1.0,
            now=1_700_000_000_000 + int(self.world.now * 1000),
            seen=client.handle.seen,
            seen_memory=client.handle.seen_memory,
        )

    def start(self, client: MachineClient, command: AnyCommand) -> None:
        """Send a command."""
        client.answer = None
        messages = [e.message for e in client.handle.history if e.message is not None]
        self.sent[command.command] = (command, messages)
        client.ask(command, client.take)

    def again(self, client: MachineClient, command: AnyCommand) -> None:
        """Send a command once more, as a client does that does not know what became of it."""
        client.answer = None
        client.ask(command, client.take)
        self.rest()

    def events(self, kind: type[T]) -> list[T]:
        """All events of a kind in the run's log."""
        records = self.world.server.records(LOG)
        return [e for _, data in records for e in codec.decode_commit(data).events if isinstance(e, kind)]

    def send(self, client: MachineClient, command: AnyCommand) -> AnyMessage:
        """Send a command and let everything come to rest."""
        self.start(client, command)
        self.rest()
        assert client.answer is not None
        return client.answer

    def rest(self) -> None:
        """Let everything come to rest, then look at the answers."""
        self.world.run()
        for client in self.clients:
            assert client.asking is None, f"{client.name} still waits"
            answer = client.answer
            if isinstance(answer, StepCompiled) and not answer.stored:
                assert answer.blocks == self.told[answer.sequence], "the answer names other blocks"
                assert answer.checkpoint == self.checkpoints[answer.sequence], "the answer names another checkpoint"
                manifest = decode_json(answer.package.encode(), Package).manifest
                covered = {i for a, b in answer.stale_thinking for i in range(a, b)}
                left = self.thinking[answer.sequence] - covered
                assert not manifest.placement.tail_kept or not left, f"thinking of {left} is behind other bytes"

    def text(self) -> str:
        """A text that nobody said yet."""
        self.words += 1
        return f"text {self.words} " + "word " * (self.words % 7)

    def step_of(
        self,
        client: MachineClient,
        model: Model,
        tools: str | None,
        refresh: bool,
        sources: int,
        passes: int,
        compaction: CompactionOptions | None = None,
    ) -> CompileStep:
        """A step of a client with its history as it is."""
        options = StepOptions(
            scope=Scope(user_id="ada"),
            model=model,
            overhead_tokens=11,
            sources=SOURCES[:sources],
            refresh=RefreshOptions(min_steps=2, max_passes=passes, candidates_per_source=5),
            estimator=self.estimator,
            tools_digest=tools,
            compaction=compaction,
        )
        return CompileStep(
            **self.head(client),
            history=client.handle.new_messages(),
            user_text=client.handle.history.user_text,
            options=options,
            refresh=refresh,
        )

    # -- in the end

    def finish(self) -> None:
        """Check what must hold once all is at rest: fold, log, every instance, every answer (design: section 2)."""
        if not self.sound:
            return  # the log went another way already, and the model stopped there
        self.settle_forgets()
        log = read_log(self.world, RUN)
        check_log(self.world, log)
        check_steps(log)
        check_revisions(log)
        check_usage(log)
        check_forgotten(self.world, log, self.forgetter)
        check_compactions(self.world, log)
        for client in self.clients:
            check_acknowledged(self.world, log, client)
        check_states(self.world, log)
        self.check_fold(replay_run(log))

    def settle_forgets(self) -> None:
        """Redact what was committed meanwhile, until nothing is due."""
        for _ in range(20):
            self.forgetter.settle()
            self.world.run()
        self.forgetter.erase_spent()

    def check_fold(self, fold: RunState) -> None:
        """The fold of the log is what the model worked out."""
        model = self.model
        blocks = [(b.step, b.position, b.fact.placement, b.fact.digest, b.package) for b in fold.blocks]
        assert blocks == [(b.step, b.position, b.placement, b.digest, b.package) for b in model.blocks]
        placed = [(e.source, e.record_id, e.revision, e.digest) for e in fold.placed]
        assert placed == [(r.source, r.record_id, r.revision, r.digest) for r in model.standing()]
        owed = {(o.entry.source, o.entry.record_id): (o.entry.digest, o.package, o.waits) for o in fold.owed}
        assert owed == {k: (o.record.digest, o.record.package, o.waits) for k, o in model.owed.items()}
        assert fold.passes == model.passes
        assert fold.redaction_due == model.redaction_due
        assert fold.refresh_requested == model.requested
        assert fold.history.count == len(model.messages)
        assert fold.blocks.chain == model.blocks_chain()
        assert [*request_digests(fold)] == model.flat()
        assert (fold.checkpoint is None) == (model.checkpoint is None)
        if fold.checkpoint is not None and model.checkpoint is not None:
            assert fold.checkpoint.applies == model.checkpoint.applies
            assert fold.checkpoint.source_count == model.checkpoint.source_count
        if fold.estimator is not None:
            assert fold.estimator.factor == model.factor
        if fold.last is not None:
            assert model.last is not None
            assert (fold.last.step, fold.last.status) == (model.last.step, model.last.status)
