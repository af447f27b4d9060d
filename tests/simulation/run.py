"""One simulation from one seed."""

from __future__ import annotations

import random

import msgspec

from contextbus_protocol import codec, subjects
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.events import StepCompiled
from tests.simulation.clients import Client
from tests.simulation.compacting import CompactingClient, compaction_of
from tests.simulation.compactions import check_compactions, count_compactions
from tests.simulation.forgetting import Forgetter
from tests.simulation.invariants import check_world, read_log
from tests.simulation.sources import FORGETTING
from tests.simulation.world import TENANT, Faults, World

RUNS = ("run-0", "run-1")


class Result(msgspec.Struct, frozen=True):
    """What a simulation came to; ``log`` is a digest over the whole log."""

    steps: int
    kills: int
    conflicts: int
    events: int
    log: str
    errors: dict[str, int]
    compactions: dict[str, int] = {}
    summaries: int = 0


def erase_packages(world: World, chance: random.Random) -> None:
    """Retention takes some packages, newest ones included; messages stay."""
    for run in RUNS:
        for _, data in world.server.records(subjects.log(TENANT, run, "run")):
            for event in codec.decode_commit(data).events:
                if isinstance(event, StepCompiled) and chance.random() < 0.3:
                    world.server.erase(run, event.package)


def forget_some(world: World, chance: random.Random, forgetter: Forgetter) -> None:
    """Forget a record that was offered."""
    known = world.records.known(FORGETTING)
    if known:
        forgetter.forget(FORGETTING, chance.choice(known))


def settle_forgets(world: World, forgetter: Forgetter) -> None:
    """Redact what was committed meanwhile, until nothing is due."""
    for _ in range(20):
        forgetter.settle()
        world.run()
    forgetter.erase_spent()


def simulate(seed: int, faults: Faults | None = None, *, steps: int = 12, compacts: bool = False) -> Result:
    """Run clients on a few runs until all is at rest, then check every invariant.

    Args:
        seed: what everything is drawn from.
        faults: how often things go wrong; drawn from the seed by default.
        steps: steps of each client.
        compacts: whether the runs compact their history.

    Raises:
        AssertionError: an invariant does not hold.
    """
    chance = random.Random(seed)
    if faults is None:
        faults = Faults(
            drop=chance.choice((0, 0.01, 0.04)),
            kill=chance.choice((0, 0.004, 0.012)),
            replicated=chance.random() < 0.5,
        )
    world = World(seed, faults)
    clients: list[Client] = []
    for run in RUNS:
        numbers = range(chance.choice((1, 1, 2)))
        if compacts:
            options = compaction_of(chance)
            clients += [CompactingClient(world, f"client-{run}-{n}", run, steps, options) for n in numbers]
        else:
            clients += [Client(world, f"client-{run}-{number}", run, steps) for number in numbers]
    for client in clients:
        client.start()
    for _ in range(chance.randrange(faults.outages + 1)):
        world.at(chance.random() * 0.5, lambda: world.take_server_down(chance.random() * 3))
    if chance.random() < 0.3:
        world.at(chance.random() * 0.5, lambda: world.fill_server(chance.random() * 0.5))
    if chance.random() < 0.3:
        world.at(chance.random() * 2, lambda: erase_packages(world, chance))
    forgetter = Forgetter(world, RUNS)
    for _ in range(chance.choice((0, 0, 1, 3))):
        world.at(chance.random() * 2, lambda: forget_some(world, chance, forgetter))
    world.run()
    settle_forgets(world, forgetter)
    logged = check_world(world, clients, forgetter)
    compactions: dict[str, int] = {}
    for run in RUNS:
        run_log = read_log(world, run)
        check_compactions(world, run_log)
        for status, count in count_compactions(run_log).items():
            compactions[status] = compactions.get(status, 0) + count
    errors: dict[str, int] = {}
    for client in clients:
        for code, count in client.errors.items():
            errors[code] = errors.get(code, 0) + count
    log = digest_bytes(b"".join(data for _, data, _ in world.server.log))
    return Result(
        logged,
        world.kills,
        world.server.conflicts,
        world.events,
        log,
        errors,
        compactions,
        len(world.summaries),
    )
