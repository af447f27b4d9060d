"""A small actor that has messages summarised, and the ways to run it with a summariser near or far."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from tests.runtime.acting import Kind, Places

from contextbus.actors.effects import Effects, Scatter, Send
from contextbus.runtime.bus import Bus
from contextbus.runtime.embedded import Server
from contextbus.runtime.host import Host
from contextbus.runtime.worker_calls import SummariserHandler
from contextbus_protocol import subjects
from contextbus_protocol.chat import ChatMessage, user
from contextbus_protocol.commit_requests import CommitHead, HistoryFact
from contextbus_protocol.compaction import Compact, CompactionEnded, Summarise, Summarised, SummaryFailed
from contextbus_protocol.events import CompactionStarted
from contextbus_protocol.messages import AnyMessage
from contextbus_protocol.subjects import ActorName
from contextbus_protocol.values import CompactionOptions, EstimatorSpec, Model, RetentionPolicy

Answer = Summarised | SummaryFailed


def compact(
    tenant: str,
    summariser: str = "mine",
    *,
    run: str = "run",
    messages: tuple[ChatMessage, ...] = (user("hello"),),
    seconds: float = 5.0,
    reply_to: str = "",
    notify: str = "",
) -> Compact:
    """A request to compact; its instructions name the summariser, and its id is the token of the question."""
    head = CommitHead(
        tenant=tenant,
        run=run,
        command=f"command-{summariser}",
        command_digest="",
        attempt=1,
        at=0,
        expected=7,
        previous="",
        token=f"token-{summariser}",
        reply_to=reply_to,
        notify=notify or reply_to,
        seconds_left=seconds,
    )
    started = CompactionStarted(
        evaluation="e1",
        step=1,
        tokens_before=10,
        target_tokens=5,
        message_count=len(messages),
        model=Model("test", "test", 1000, 10),
        options=CompactionOptions(triggers=(), target_tokens=5),
        policy=RetentionPolicy(),
    )
    return Compact(
        run=run,
        head=head,
        history=HistoryFact(messages=messages),
        started=started,
        estimator=EstimatorSpec(),
        instructions=summariser,
    )


class Summing:
    """Asks one summariser, and answers the client with what it said; ``came`` counts the answers."""

    name: ActorName = "compaction"

    def __init__(self, tenant: str, inbox: str) -> None:
        self._tenant = tenant
        self._inbox = inbox
        self.came: list[str] = []

    def initial(self, run: str) -> tuple[Compact, ...]:
        """Give the state of a run of which nothing is known."""
        del run
        return ()

    def is_idle(self, state: tuple[Compact, ...]) -> bool:
        """Tell whether nothing is under way."""
        return not state

    def decide(self, state: tuple[Compact, ...], message: AnyMessage) -> tuple[tuple[Compact, ...], Effects]:
        """Take one message."""
        if isinstance(message, Compact):
            question = Summarise(
                run=message.run,
                tenant=self._tenant,
                command=message.head.command,
                token=message.head.token,
                reply_to=self._inbox,
                summariser=message.instructions or "",
                messages=message.history.messages,
                instructions="sum up",
                max_output_tokens=64,
                seconds_left=message.head.seconds_left,
            )
            return (*state, message), (Scatter((question,)),)
        if isinstance(message, Summarised | SummaryFailed):
            self.came.append(message.token)
            waiting = next((c for c in state if c.head.token == message.token), None)
            if waiting is not None:
                return tuple(c for c in state if c is not waiting), (Send(waiting.head.reply_to, message),)
        return state, ()


class Summary(msgspec.Struct):
    """Hosts with the actor and the summarisers, and the bus between them."""

    tenant: str
    client: Host
    actor_host: Host
    rule: Summing
    bus: Bus

    async def ask(self, command: Compact) -> Answer:
        """Have the actor ask, and wait for the answer."""
        address, answer = self.client.reply_address()
        head = msgspec.structs.replace(command.head, reply_to=address, notify=address)
        subject = subjects.command("compaction", self.tenant)
        self.client.deliver(subject, msgspec.structs.replace(command, head=head))
        came = await answer
        assert isinstance(came, Summarised | SummaryFailed), came
        return came

    async def refused(self, command: Compact) -> CompactionEnded:
        """Have the request refused, and wait for the refusal."""
        address, answer = self.client.reply_address()
        head = msgspec.structs.replace(command.head, reply_to=address, notify=address)
        subject = subjects.command("compaction", self.tenant)
        self.client.deliver(subject, msgspec.structs.replace(command, head=head))
        came = await answer
        assert isinstance(came, CompactionEnded), came
        return came


@asynccontextmanager
async def run_summing(
    kind: Kind,
    server: Server | None,
    tenant: str,
    summarisers: Mapping[str, SummariserHandler] | None = None,
    *,
    concurrency: int = 64,
) -> AsyncGenerator[Summary]:
    """Run the actor, and the summarisers, as the kind says."""
    together = kind in {"memory", "co-located"}
    async with AsyncExitStack() as stack:
        places = Places(kind, server, tenant, stack)
        place = await places.make()
        actor_name = "one" if together else "compaction"
        rule = Summing(tenant, f"{subjects.inbox(tenant, actor_name)}.compaction")
        host = Host(
            tenant, actor_name, place.bus, place.journal, (rule,), encode_local=kind == "memory", drain_seconds=0.4
        )
        worker = client = host
        if not together:
            own = await places.make()
            worker = Host(tenant, "worker", own.bus, own.journal, drain_seconds=0.4)
            theirs = await places.make()
            client = Host(tenant, "client", theirs.bus, theirs.journal, drain_seconds=0.4)
        for name, handler in (summarisers or {}).items():
            worker.add_summariser(name, handler, concurrency=concurrency, serve=not together)
        for entered in dict.fromkeys((worker, host, client)):
            await stack.enter_async_context(entered)
        yield Summary(tenant, client, host, rule, place.bus)
