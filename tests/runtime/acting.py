"""A small pair of actors and the four ways to run them, for the contract of buses and hosts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Literal

import msgspec

from contextbus.actors.effects import Cancel, Effects, Fetch, Load, Scatter, Send, Store, Timer
from contextbus.runtime.bus import Bus
from contextbus.runtime.bus_memory import MemoryBroker
from contextbus.runtime.bus_nats import NatsBus
from contextbus.runtime.connection import Connection, connect
from contextbus.runtime.embedded import Server
from contextbus.runtime.host import Host
from contextbus.runtime.journal import Journal
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.streams import ensure
from contextbus.runtime.worker_calls import SourceHandler
from contextbus_protocol import codec, digests, subjects
from contextbus_protocol.commands import CompileStep, ErrorReply, NewMessages, StepCompiled
from contextbus_protocol.commit_requests import CommitHead, Record
from contextbus_protocol.events import Commit, RefreshRequested
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.outcomes import Committed, Conflicted, Elapsed, Fetched, Loaded, Unstored
from contextbus_protocol.questions import AskItems, Failed, ItemsOffered, Offered, Query
from contextbus_protocol.subjects import ActorName
from contextbus_protocol.values import Candidate, Model, Scope, SourceSpec, StepOptions

Kind = Literal["memory", "memory-apart", "co-located", "nats"]
KINDS: Final[tuple[Kind, ...]] = ("memory", "memory-apart", "co-located", "nats")
MODEL: Final = Model("test", "test", 100_000, 1_000)

_commands = itertools.count(1)


class Asked(msgspec.Struct, frozen=True):
    """A command under way: which sources are missing and what has come."""

    command: CompileStep
    missing: tuple[str, ...]
    came: tuple[str, ...] = ()


class Asking(msgspec.Struct, frozen=True):
    """The state of a run: commands under way, and how many came so far."""

    asked: tuple[Asked, ...] = ()
    count: int = 0


class Asker:
    """Asks working memory, then sources, then has the outcome stored; special texts do one thing each."""

    name: ActorName = "selection"

    def __init__(self, tenant: str, inbox: str) -> None:
        self._tenant = tenant
        self._inbox = inbox

    def initial(self, run: str) -> Asking:
        """Give the state of a run of which nothing is known."""
        del run
        return Asking()

    def is_idle(self, state: Asking) -> bool:
        """Tell whether nothing is under way."""
        return not state.asked

    def decide(self, state: Asking, message: AnyMessage) -> tuple[Asking, Effects]:
        """Take one message."""
        if isinstance(message, CompileStep):
            state = msgspec.structs.replace(state, count=state.count + 1)
            return self._take(state, message)
        token = getattr(message, "token", "")
        asked = next((a for a in state.asked if a.command.command == token), None)
        if asked is None:
            return state, ()
        return self._answer(state, asked, message)

    def _take(self, state: Asking, command: CompileStep) -> tuple[Asking, Effects]:
        text, run, token = command.user_text, command.run, command.command
        kept = msgspec.structs.replace(state, asked=(*state.asked, Asked(command, ())))
        match text.split():
            case ["raise"]:
                raise ValueError(text)
            case ["count"]:
                return state, (reply(command, str(state.count)),)
            case ["wait", seconds]:
                return kept, (Timer(run, token, float(seconds)),)
            case ["rearm"]:
                return kept, (Timer(run, token, 0.01), Timer(run, "other", 0.01), Cancel(run, "other"))
            case ["never"]:
                return kept, (Timer(run, token, 0.01), Cancel(run, token))
            case ["load"]:
                return kept, (Load(run, "run", 0, token),)
            case ["fetch", digest]:
                return kept, (Fetch(run, (digest,), token),)
            case ["garble"]:
                return state, (reply(command, "\ud800"), reply(command, "the others start"))
            case _:
                ask = AskItems(run=run, tenant=self._tenant, token=token, reply_to=self._inbox)
                return kept, (Send(subjects.command("working-memory", self._tenant), ask),)

    def _answer(self, state: Asking, asked: Asked, message: AnyMessage) -> tuple[Asking, Effects]:
        command = asked.command
        others = tuple(a for a in state.asked if a is not asked)
        done = msgspec.structs.replace(state, asked=others)
        match message:
            case Elapsed():
                return done, (reply(command, "elapsed"),)
            case Loaded(commits=commits, code=code):
                return done, (reply(command, f"{len(commits)} {code}"),)
            case Fetched(blobs=blobs):
                return done, (reply(command, " ".join(data.decode() for _, data in blobs)),)
            case ItemsOffered(code=str(code)):
                return done, (fail(command, code),)
            case ItemsOffered():
                sources = tuple(spec.id for spec in command.options.sources)
                asked = Asked(command, sources)
                queries = tuple(self._query(command, source) for source in sources)
                state = msgspec.structs.replace(state, asked=(*others, asked))
                return (state, (Scatter(queries),)) if queries else self._store(state, asked)
            case Offered() | Failed():
                return self._gather(state, others, asked, message)
            case Conflicted() | Unstored():
                return done, (fail(command, "conflict" if isinstance(message, Conflicted) else message.code),)
            case Committed():
                return done, ()
            case _:
                return state, ()

    def _gather(
        self, state: Asking, others: tuple[Asked, ...], asked: Asked, answer: Offered | Failed
    ) -> tuple[Asking, Effects]:
        command = asked.command
        if answer.source not in asked.missing:
            return state, ()
        if isinstance(answer, Offered):
            came = " ".join([answer.source, *(candidate.text for candidate in answer.candidates)])
        else:
            came = f"{answer.source} {answer.code}"
        missing = tuple(source for source in asked.missing if source != answer.source)
        asked = Asked(command, missing, (*asked.came, came))
        state = msgspec.structs.replace(state, asked=(*others, asked))
        return (state, ()) if missing else self._store(state, asked)

    def _query(self, command: CompileStep, source: str) -> Query:
        return Query(
            run=command.run,
            tenant=self._tenant,
            command=command.command,
            token=command.command,
            reply_to=self._inbox,
            source=source,
            step=1,
            text=command.user_text,
            scope=command.options.scope,
            limit=4,
            budget_tokens=100,
            seconds_left=command.seconds_left / 2,
        )

    def _store(self, state: Asking, asked: Asked) -> tuple[Asking, Effects]:
        command = asked.command
        head = CommitHead(
            tenant=self._tenant,
            run=command.run,
            command=command.command,
            command_digest="",
            attempt=command.attempt,
            at=command.now,
            expected=command.seen,
            previous="",
            token=command.command,
            reply_to=command.reply_to,
            reply_as=command.reply_as,
            notify=self._inbox,
            seconds_left=command.seconds_left,
        )
        text = "\n".join(sorted(asked.came))
        record = Record(run=command.run, head=head, count=0, chain="", events=(RefreshRequested(),), error_message=text)
        return state, (Send(subjects.command("placement", self._tenant), record),)


class Items:
    """Offers nothing, at once."""

    name: ActorName = "working-memory"

    def initial(self, run: str) -> None:
        """Give the state of a run of which nothing is known."""
        del run

    def is_idle(self, state: None) -> bool:
        """Tell whether nothing is under way."""
        return state is None

    def decide(self, state: None, message: AnyMessage) -> tuple[None, Effects]:
        """Take one message."""
        if isinstance(message, AskItems):
            return state, (Send(message.reply_to, ItemsOffered(run=message.run, token=message.token)),)
        return state, ()


class Storer:
    """Stores a text as a blob, then its commit; tells the asker, then the client."""

    name: ActorName = "placement"

    def initial(self, run: str) -> tuple[Record, ...]:
        """Give the state of a run of which nothing is known."""
        del run
        return ()

    def is_idle(self, state: tuple[Record, ...]) -> bool:
        """Tell whether nothing is under way."""
        return not state

    def decide(self, state: tuple[Record, ...], message: AnyMessage) -> tuple[tuple[Record, ...], Effects]:
        """Take one message."""
        if isinstance(message, Record):
            data = message.error_message.encode()
            store = Store(
                commit_of(message), message.head.expected, message.head.token, ((digests.digest_bytes(data), data),)
            )
            return (*state, message), (store,)
        record = next((r for r in state if r.head.token == getattr(message, "token", "")), None)
        if record is None:
            return state, ()
        rest = tuple(r for r in state if r is not record)
        if not isinstance(message, Committed):
            return rest, (Send(record.head.notify, message),)
        answer = StepCompiled(
            run=message.run,
            command=record.head.command,
            step=1,
            sequence=message.sequence,
            commit=message.digest,
            count=0,
            chain="",
            reference=digests.digest_text(record.error_message),
            package=record.error_message,
        )
        return rest, (Send(record.head.notify, message), Send(record.head.reply_to, answer, record.head.reply_as))


def commit_of(record: Record) -> Commit:
    head = record.head
    return Commit(
        version=codec.COMMIT_VERSION,
        tenant=head.tenant,
        run=head.run,
        part="run",
        command=head.command,
        command_digest=head.command_digest,
        attempt=head.attempt,
        engine="test",
        policy=1,
        previous=head.previous,
        at=head.at,
        events=record.events,
    )


def reply(command: CompileStep, text: str) -> Send:
    answer = StepCompiled(
        run=command.run,
        command=command.command,
        step=1,
        sequence=0,
        commit="",
        count=0,
        chain="",
        reference="",
        package=text,
    )
    return Send(command.reply_to, answer, command.reply_as)


def fail(command: CompileStep, code: str) -> Send:
    error = ErrorReply(run=command.run, command=command.command, code=code, message="")
    return Send(command.reply_to, error, command.reply_as)


def offered(query: Query, *texts: str) -> Offered:
    found = tuple(Candidate(f"r{i}", text, 1.0, digests.digest_text(text)) for i, text in enumerate(texts))
    return Offered(run=query.run, token=query.token, source=query.source, kind="rag", candidates=found)


def step(
    tenant: str,
    text: str,
    *,
    run: str = "run",
    sources: tuple[str, ...] = (),
    reply_to: str = "",
    seconds: float = 5.0,
    seen: int = 0,
) -> CompileStep:
    specs = tuple(SourceSpec(source, "rag") for source in sources)
    return CompileStep(
        run=run,
        tenant=tenant,
        command=f"command-{next(_commands)}",
        attempt=1,
        reply_to=reply_to,
        seconds_left=seconds,
        now=0,
        seen=seen,
        history=NewMessages(0, "", 0, (), ""),
        user_text=text,
        options=StepOptions(scope=Scope(user_id="u"), model=MODEL, sources=specs),
    )


class World(msgspec.Struct):
    """Hosts that run the actors, and one that a client uses; they may be the same."""

    tenant: str
    client: Host
    hosts: dict[str, Host]
    journal: Journal
    bus: Bus

    async def ask(self, command: CompileStep) -> AnyMessage:
        """Deliver a command and wait for its answer."""
        address, answer = self.client.reply_address()
        command = msgspec.structs.replace(command, reply_to=address)
        self.client.deliver(subjects.command("selection", self.tenant), command)
        return await answer


class Place(msgspec.Struct):
    """What one process has."""

    bus: Bus
    journal: Journal


class Places:
    """Makes the bus and the journal of one process after the other."""

    def __init__(self, kind: Kind, server: Server | None, tenant: str, stack: AsyncExitStack) -> None:
        self._kind = kind
        self._server = server
        self._tenant = tenant
        self._stack = stack
        self._broker = MemoryBroker()
        self._journal = MemoryJournal()

    async def make(self) -> Place:
        """Make what one more process has."""
        if self._kind in {"memory", "memory-apart"}:
            return Place(self._broker.bus(), self._journal)
        connection = await self.connect()
        return Place(NatsBus(connection), JetStreamJournal(connection))

    async def connect(self) -> Connection:
        """Connect once more."""
        assert self._server is not None
        made = connect(self._server.url, token=self._server.token, tenant=self._tenant)
        connection = await self._stack.enter_async_context(made)
        await ensure(connection, self._tenant)
        return connection


@asynccontextmanager
async def run_world(
    kind: Kind,
    server: Server | None,
    tenant: str,
    sources: Mapping[str, SourceHandler] | None = None,
    *,
    concurrency: int = 64,
) -> AsyncGenerator[World]:
    """Run the actors, and the sources, as the kind says."""
    async with AsyncExitStack() as stack:
        places = Places(kind, server, tenant, stack)
        place = await places.make()
        together = kind in {"memory", "co-located"}
        asker = Asker(tenant, f"{subjects.inbox(tenant, 'one' if together else 'selection')}.selection")
        if together:
            host = Host(
                tenant,
                "one",
                place.bus,
                place.journal,
                (asker, Items(), Storer()),
                encode_local=kind == "memory",
                drain_seconds=0.4,
            )
            for name, handler in (sources or {}).items():
                host.add_source(SourceSpec(name, "rag"), handler, concurrency=concurrency)
            await stack.enter_async_context(host)
            yield World(tenant, host, {"one": host}, place.journal, place.bus)
            return
        hosts: dict[str, Host] = {}
        for rule in (Storer(), Items(), asker):
            own = await places.make()
            hosts[rule.name] = Host(tenant, rule.name, own.bus, own.journal, (rule,), drain_seconds=0.4)
        own = await places.make()
        worker = hosts["worker"] = Host(tenant, "worker", own.bus, own.journal, drain_seconds=0.4)
        for name, handler in (sources or {}).items():
            worker.add_source(SourceSpec(name, "rag"), handler, concurrency=concurrency, serve=True)
        client = Host(tenant, "client", place.bus, place.journal, drain_seconds=0.4)
        for host in (*hosts.values(), client):
            await stack.enter_async_context(host)
        yield World(tenant, client, hosts, place.journal, place.bus)
