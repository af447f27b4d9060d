"""Replay of a log against reading the same messages raw: ``python -m benchmarks.replay``."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.msg import Msg

import contextbus.client as contextbus
from benchmarks.bare import BareClient, connect_bare
from benchmarks.loops import loop_factory
from benchmarks.ratios import Ratio, Report, count_cores, show, summarise
from benchmarks.workload import MODEL, begin_run, make_sources, write_message
from contextbus.replay.run_log import replay_run
from contextbus.runtime.connection import connect
from contextbus.runtime.embedded import serve
from contextbus.runtime.journal import Appended
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.streams import name_stream
from contextbus_protocol import codec, subjects

COMMITS: Final = 10_000
GOAL: Final = 0.5
TENANT: Final = "replayed"
RUN: Final = "long"
PAGE: Final = 256


async def write_commits(count: int) -> list[bytes]:
    """The commits of a run that alternates steps and reports, as the log stores them."""
    async with contextbus.open("memory:", sources=make_sources(), memory=False) as bus:
        run = await begin_run(bus, RUN, "reused")
        for step in range(count // 2):
            run.append(write_message(step))
            await run.before_model_call(model=MODEL)
            answer = contextbus.assistant(f"done with step {step}")
            await run.after_model_call(contextbus.Report(status="succeeded", messages=[answer]))
        log = await bus.log(RUN)
        return [codec.encode_commit(logged.commit) for logged in log.commits[:count]]


async def store_commits(journal: JetStreamJournal, commits: Sequence[bytes]) -> None:
    """Store commits as one part of a run's log that is empty yet."""
    subject = subjects.log(TENANT, RUN, "run")
    for start in range(0, len(commits), PAGE):
        sent = [
            journal.append(subject, data, expected=start + index, message_id=f"{start + index}", command="")
            for index, data in enumerate(commits[start : start + PAGE])
        ]
        for answer in sent:
            if not isinstance(await answer, Appended):
                raise RuntimeError("the server did not take a commit")  # noqa: TRY004  # an outcome, no argument


class RawReader:
    """Reads a subject with bare nats-py, in the pages in which we read it.

    Args:
        client: The connection.
    """

    def __init__(self, client: BareClient) -> None:
        self._client = client
        self._page: list[tuple[int, bytes]] = []
        self._end = asyncio.Event()
        self._inbox = client.new_inbox()

    async def start(self) -> None:
        """Take answers."""
        await self._client.subscribe(self._inbox, cb=self._take)

    async def _take(self, message: Msg) -> None:
        headers = message.headers or {}
        sequence = headers.get("Nats-Sequence")
        if sequence is None:
            self._end.set()
        else:
            self._page.append((int(sequence), message.data))

    async def read(self, subject: str) -> int:
        """Read all messages of a subject; how many there are."""
        api = f"$JS.API.DIRECT.GET.{name_stream('log', TENANT)}"
        count = last = 0
        while True:
            self._page.clear()
            self._end.clear()
            body = msgspec.json.encode({"seq": last + 1, "batch": PAGE, "next_by_subj": subject})
            await self._client.publish(api, body, reply=self._inbox)
            await self._end.wait()
            if not self._page:
                return count
            count += len(self._page)
            last = self._page[-1][0]


async def measure(count: int, rounds: int) -> list[Ratio]:
    """The ratio of the rates, over rounds in which both read the whole log in turn."""
    commits = await write_commits(count)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="contextbus-benchmark-"))
        server = await stack.enter_async_context(serve(Path(folder), durability="interval"))
        ours = await stack.enter_async_context(
            contextbus.open(server.url, token=server.token, tenant=TENANT, memory=False)
        )
        connection = await stack.enter_async_context(connect(server.url, token=server.token, tenant=TENANT))
        journal = JetStreamJournal(connection)
        stack.callback(journal.close)
        await store_commits(journal, commits)
        client = await connect_bare(server.url, server.token)
        stack.push_async_callback(client.close)
        raw = RawReader(client)
        await raw.start()
        figures: list[float] = []
        for _ in range(rounds):
            begin = time.perf_counter()
            read = await raw.read(subjects.log(TENANT, RUN, "run"))
            middle = time.perf_counter()
            state = replay_run(await ours.log(RUN))
            figures.append((middle - begin) / (time.perf_counter() - middle))
            if read != count or state.sequence != count:
                raise RuntimeError("the log was not read whole")
    return [
        summarise(
            figures,
            where="log of one run",
            what=f"replay of {count:,} commits",
            setting="against a raw read",
            measure="rate",
            goal=GOAL,
            at_least=True,
        )
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many rounds; the median of their ratios counts")
    parser.add_argument("--quick", action="store_true", help="a few commits only, to see that it works")
    parser.add_argument("--uvloop", action="store_true", help="ours and the yardstick on uvloop")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    rounds = 1 if given.quick else given.rounds
    with asyncio.Runner(loop_factory=loop_factory(uvloop=given.uvloop)) as runner:
        ratios = runner.run(measure(100 if given.quick else COMMITS, rounds))
    report = Report(
        benchmark="replay",
        cores=count_cores(),
        loop="uvloop" if given.uvloop else "asyncio",
        rounds=rounds,
        quick=given.quick,
        ratios=tuple(ratios),
    )
    show(report, as_json=given.json)


if __name__ == "__main__":
    main()
