"""What must hold of every compaction in a log, by hand and by brute force (C.D, C.E, C.K, C.L, C.O, C.X)."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

from contextbus.core.compaction.composition import LABEL, archive_line
from contextbus.core.history import digest_message
from contextbus.core.projection import request_count, request_digests, request_eighteenths
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import RunLog, replay_states
from contextbus_protocol import blobs, subjects
from contextbus_protocol.chat import Text
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.events import (
    AnyEvent,
    CompactionCompleted,
    CompactionFailed,
    CompactionRestored,
    CompactionStarted,
    StepCompiled,
    UnknownEvent,
)
from tests.core.compaction import oracle
from tests.simulation.projected import Projected, Sent
from tests.simulation.summarisers import MARK, SECRET, SOUND
from tests.simulation.world import TENANT, World

LEGAL = (
    ("started", "completed"),
    ("started", "failed"),
    ("started",),  # interrupted (C.O.11)
    ("failed",),
    (),
)
"""The sequences of C.O.6, behind a ``restored`` or without one."""

MOST_REQUESTS = 6
"""The most requests of one evaluation without pieces: the first, and one for each conflict that changed its range."""

Evaluated = CompactionRestored | CompactionStarted | CompactionCompleted | CompactionFailed


def status_of(event: Evaluated) -> str:
    """What an event says of its evaluation (C.O.1)."""
    match event:
        case CompactionRestored():
            return "restored"
        case CompactionStarted():
            return "started"
        case CompactionCompleted():
            return "completed"
        case CompactionFailed():
            return "failed"


def check_compactions(world: World, log: RunLog) -> int:
    """Check everything of a run's compactions; gives how many completed.

    Raises:
        AssertionError: something does not hold; the message says what.
    """
    plain = Projected(lambda digest: world.server.remembered(log.run, digest))
    statuses: dict[str, list[str]] = defaultdict(list)
    paused = completed = 0
    requests = Requests(world, log.run)
    before = RunState(log.run)
    for logged, state in replay_states(log):
        for event in logged.commit.events:
            where = f"{type(event).__name__} at {logged.sequence}"
            if isinstance(event, Evaluated):
                statuses[event.evaluation].append(status_of(event))
            match event:
                case CompactionStarted():
                    requests.begin(event, paused=plain.is_paused(), where=where)
                    assert event.message_count == len(plain.request()), f"{where} counts other messages"
                case CompactionCompleted():
                    completed += 1
                    check_boundary(plain, event, where)
                    check_checkpoint(world, log.run, plain, event, where)
                    check_shrinks(plain, before, event, where)
                case CompactionFailed(reason="paused"):
                    paused += 1
                    assert not plain.told, f"{where}: the pause is told twice"
                case StepCompiled():
                    check_used(plain, before, event, where)
                case _:
                    pass
            told = plain.request() if isinstance(event, CompactionFailed) else None
            plain.fold(event)
            assert told is None or told == plain.request(), f"{where} changed the history"
        check_projection(plain, state, f"commit {logged.sequence}")
        before = state
    for evaluation, found in statuses.items():
        rest = tuple(found[1:] if found[:1] == ["restored"] else found)
        assert rest in LEGAL, f"{evaluation} has {found}"
    requests.check(log, statuses)
    check_silence(world, log.run)
    return completed


def check_projection(plain: Projected, state: RunState, where: str) -> None:
    """What the fold says is sent is what the plain model says: digests, number and cost (C.L.3, C.H.10)."""
    sent = plain.request()
    assert [*request_digests(state)] == [s.digest for s in sent], f"{where}: another request"
    assert request_count(state) == len(sent), f"{where}: {request_count(state)} messages, not {len(sent)}"
    assert request_eighteenths(state) == sum(s.weight for s in sent), f"{where}: another cost"


def check_used(plain: Projected, state: RunState, event: StepCompiled, where: str) -> None:
    """A step's budget counts what is sent (D.B.4, C.C.11)."""
    if event.prepared is not None:
        return
    spec = state.estimator if state.estimator is not None else event.options.estimator
    prompt = 0 if event.prompt is None else event.prompt.system_eighteenths + event.prompt.tail_eighteenths
    exact = Fraction((plain.weight() + prompt) * spec.factor, 18 * 10_000)
    used = -(-exact.numerator // exact.denominator) + event.options.overhead_tokens
    assert event.budget.used_tokens == used, f"{where}: {event.budget.used_tokens} tokens used, not {used}"


def check_boundary(plain: Projected, event: CompactionCompleted, where: str) -> None:
    """The range is safe by the slow form of section D: system in place, no exchange cut, nothing open (C.D)."""
    items, started = plain.items(), plain.begun[event.evaluation]
    start, end = event.replaced_range.start, event.replaced_range.end
    leading = 0
    while leading < len(items) and oracle.role(items[leading]) == "system" and items[leading].message is not None:
        leading += 1
    assert start == leading, f"{where}: the range begins at {start}, not behind {leading} system messages"
    allowed = oracle.allowed_ends(items, started.options.long_running, started.options.media)
    assert end in allowed, f"{where}: [{start}, {end}) cuts what belongs together; allowed are {allowed}"


def check_shrinks(plain: Projected, state: RunState, event: CompactionCompleted, where: str) -> None:
    """A summary takes the share off its range that the run asks for, and the target is kept (C.G.8, C.X.4)."""
    started = plain.begun[event.evaluation]
    fits = event.tokens.after <= started.target_tokens
    assert fits or event.dropped, f"{where}: {event.tokens.after} tokens, more than the target"
    if event.dropped or started.options.counts or state.estimator is None or not started.options.min_shrink:
        return
    span = plain.request()[event.replaced_range.start : event.replaced_range.end]
    size = Fraction(sum(s.weight for s in span) * state.estimator.factor, 18 * 10_000)
    least = int(size) * Fraction(started.options.min_shrink).limit_denominator(100)
    assert event.tokens.before - event.tokens.after >= least, f"{where}: the range did not shrink"


def check_checkpoint(world: World, run: str, plain: Projected, event: CompactionCompleted, where: str) -> None:
    """Boundary, replacement, blobs and source hash of a checkpoint fit the source messages (C.E.1-C.E.7, C.L.2)."""
    request, (start, end) = plain.request(), (event.replaced_range.start, event.replaced_range.end)
    assert event.source_count <= len(plain.messages)
    assert event.source_hash == plain.chain(event.source_count), f"{where}: the hash is of other messages"
    assert event.source_count == _stood_for(plain, request, end), f"{where}: it stands for other messages"
    data = world.server.remembered(run, event.replaced_by)
    messages = blobs.decode_replacement(data).messages
    assert digest_bytes(data) == event.replaced_by
    assert [digest_message(m) for m in messages] == [f.digest for f in event.replacement]
    assert [plain.weigh(m) for m in messages] == [f.eighteenths for f in event.replacement], f"{where}: costs"
    own = [place for place, fact in enumerate(event.replacement) if fact.own == "summary"]
    kept_summaries = sum(1 for s in request[end:] if s.own == "summary")
    assert len(own) == (0 if event.dropped else 1) + kept_summaries, f"{where}: {len(own)} summaries"
    for fact, message in zip(event.replacement, messages, strict=True):
        if fact.own != "summary":
            assert fact.source is not None
            assert fact.source < event.source_count
            assert message == plain.messages[fact.source], f"{where}: message {fact.source} was changed"
    expected = request[:start]
    users = [place for place, item in enumerate(plain.items()) if oracle.is_user(item)]
    replayed = [request[users[-1]]] if users and start <= users[-1] < end else []
    body = [f for place, f in enumerate(event.replacement) if event.dropped or place != start]
    assert [f.digest for f in body[: start + len(replayed)]] == [s.digest for s in (*expected, *replayed)], (
        f"{where}: the user's last message or the system messages are not in place"
    )
    archive = event.archive
    if archive is None:  # what went on from the boundary of a summary that a forget took (C.X.11)
        assert event.dropped
        assert plain.begun[event.evaluation].cause == "redacted"
        return
    span = blobs.decode_archive(world.server.remembered(run, archive)).messages
    assert list(span) == [s.message for s in request[start:end] if s.own != "block"], f"{where}: another span"
    if not event.dropped:
        part = messages[start].content[0]
        assert messages[start].role == "user"
        assert isinstance(part, Text)
        assert part.text.startswith(f"{LABEL}:\n{MARK} "), f"{where}: a summary that nobody gave"
        assert part.text.endswith(f"\n{archive_line(archive)}")
        assert SECRET not in part.text
    assert event.tokens.before >= 0
    assert event.tokens.after >= 0


def _stood_for(plain: Projected, request: list[Sent], end: int) -> int:
    """How many source messages the first messages of a request stand for (C.L.7)."""
    known = plain.checkpoint
    base = known.event.source_count if known is not None and known.applies else 0
    replaced = len(known.messages) if known is not None and known.applies else 0
    behind = [s for s in request[replaced:end] if s.own == ""]
    return base + len(behind)


class Requests:
    """What the summariser was asked, against what the log says of it."""

    def __init__(self, world: World, run: str) -> None:
        self.world = world
        self.asked = [s for s in world.summaries if s.request.run == run]
        self.started: dict[str, CompactionStarted] = {}
        self.by_evaluation = {
            evaluation: [s for s in self.asked if s.evaluation == evaluation]
            for evaluation in dict.fromkeys(s.evaluation for s in self.asked)
        }

    def begin(self, event: CompactionStarted, *, paused: bool, where: str) -> None:
        """An evaluation decides to compact (C.X.5)."""
        assert event.evaluation not in self.started, f"{where}: begun twice"
        self.started[event.evaluation] = event
        asked = self.by_evaluation.get(event.evaluation, [])
        assert not (paused and asked), f"{where}: the summariser is asked in a pause"

    def check(self, log: RunLog, statuses: dict[str, list[str]]) -> None:
        """Nobody is asked before the log tells of it, two at once, or without an end (C.F.1, C.K.9)."""
        for evaluation, asked in self.by_evaluation.items():
            event = self.started.get(evaluation)
            assert event is not None, f"{evaluation}: the summariser was asked, and the log does not tell"
            for one, next_ in pairwise(asked):
                assert next_.asked >= one.over, f"{evaluation}: two requests at once"
            pieces = event.options.summary_input_tokens is not None
            assert pieces or len(asked) <= MOST_REQUESTS, f"{evaluation}: {len(asked)} requests"
            if not pieces and len(asked) > 1:
                assert self._has_others(log, evaluation), f"{evaluation}: bought {len(asked)} summaries for one range"
        for evaluation, found in statuses.items():
            asked = self.by_evaluation.get(evaluation, [])
            sound = [s for s in asked if s.behaviour in SOUND or s.behaviour == "barely"]
            if "completed" in found and not sound:
                assert self._completed(log, evaluation).dropped, f"{evaluation}: completed without a summary"

    def _completed(self, log: RunLog, evaluation: str) -> CompactionCompleted:
        return next(
            e
            for c in log.commits
            for e in c.commit.events
            if isinstance(e, CompactionCompleted) and e.evaluation == evaluation
        )

    def _has_others(self, log: RunLog, evaluation: str) -> bool:
        """Whether others committed between the start of an evaluation and its end."""
        of = [_is_of(c.commit.events, evaluation) for c in log.commits]
        first = of.index(True)
        last = len(of) - 1 - of[::-1].index(True)
        return last == first or last > first + 1


def _is_of(events: tuple[AnyEvent | UnknownEvent, ...], evaluation: str) -> bool:
    return any(isinstance(e, Evaluated) and e.evaluation == evaluation for e in events)


def check_silence(world: World, run: str) -> None:
    """No commit holds a text of messages, summaries or errors (C.O.7, design: section 3)."""
    for sequence, data in world.server.records(subjects.log(TENANT, run, "run")):
        for word in (MARK, SECRET, " says ", "something", "and more", "INV-"):
            assert word.encode() not in data, f"{word!r} stands in commit {sequence}"


def count_compactions(log: RunLog) -> dict[str, int]:
    """How often each status and reason occurs."""
    found: dict[str, int] = defaultdict(int)
    for logged in log.commits:
        for event in logged.commit.events:
            if isinstance(event, CompactionFailed):
                found[f"failed {event.phase} {event.reason}"] += 1
            elif isinstance(event, CompactionCompleted):
                found["dropped" if event.dropped else "completed"] += 1
            elif isinstance(event, Evaluated):
                found[status_of(event)] += 1
    return dict(found)
