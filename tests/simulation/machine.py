"""A run under faults that Hypothesis draws, against the plain model: ``python -m tests.simulation.machine``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from contextbus.core.handle import RunHandle
from contextbus_protocol.commands import ClearHistory, ResetCompaction
from contextbus_protocol.values import CompactionOptions, Model, OnFailure, RetentionPolicy, Trigger
from tests.simulation.clients import read_messages
from tests.simulation.machine_clients import RUN
from tests.simulation.machine_rules import MESSAGES, MODEL, WHO, RunRules
from tests.simulation.sources import SOURCES
from tests.simulation.summarisers import BEHAVIOURS, Behaviour

PHASES = (Phase.generate, Phase.shrink)
BEHAVIOUR = st.sampled_from(("good",) * 12 + BEHAVIOURS)
FAILURE = st.sampled_from(("stop", "continue", "drop"))


class RunMachine(RunRules):
    """One run, two clients, what they and the world may do, and a summariser that behaves as it likes."""

    @rule(
        who=WHO,
        kind=MESSAGES,
        model=MODEL,
        limit=st.sampled_from((2, 4, 7)),
        most=st.sampled_from((4_000, 4_000, 900, 300, 10)),
        keep=st.integers(1, 4),
        shrink=st.sampled_from((0.0, 0.0, 0.1)),
        on_failure=FAILURE,
        behaviour=BEHAVIOUR,
        reports=st.booleans(),
    )
    def compact(
        self,
        who: int,
        kind: str,
        model: Model,
        limit: int,
        most: int,
        keep: int,
        shrink: float,
        on_failure: OnFailure,
        behaviour: Behaviour,
        reports: bool,
    ) -> None:
        """A step that compacts its history first, with a summariser that behaves in a chosen way."""
        client = self.harness.clients[who]
        client.handle = client.handle.append(self.messages(kind))
        options = CompactionOptions(
            triggers=(Trigger(kind="messages-exceed", limit=limit),),
            target_tokens=most,
            keep=RetentionPolicy(keep_last_messages=keep),
            summariser="simulated",
            min_shrink=shrink,
            on_failure=on_failure,
        )
        self.world.behaviours = [behaviour]
        self.harness.send(client, self.harness.step_of(client, model, None, False, len(SOURCES), 30, options))
        self.world.behaviours = []
        if reports:
            self.report(who, "succeeded")

    @rule(who=WHO, back=st.integers(1, 12), compiles=st.booleans(), model=MODEL)
    def rewind(self, who: int, back: int, compiles: bool, model: Model) -> None:
        """The host goes back, perhaps behind the boundary of a checkpoint, and forward again (C.L.4, C.L.5)."""
        client = self.harness.clients[who]
        known = [e.message for e in client.handle.history if e.message is not None]
        client.handle = client.handle.hand_over(known[: max(0, len(known) - back)])
        if compiles:
            self.harness.send(client, self.harness.step_of(client, model, None, False, len(SOURCES), 30))
        else:
            self.store(who)
        client.handle = client.handle.hand_over(known)
        self.store(who)

    @rule(who=WHO, topic=st.sampled_from((False, False, False, True)))
    def reset(self, who: int, topic: bool) -> None:
        """The host ends a pause (C.X.5), or begins a new topic (P.J.9): then both clients start from the log."""
        client = self.harness.clients[who]
        if not topic:
            self.harness.send(client, ResetCompaction(**self.harness.head(client)))
            return
        self.harness.send(client, ClearHistory(**self.harness.head(client)))
        for other in self.harness.clients:
            messages, sequence = read_messages(self.world, RUN)
            other.handle = RunHandle(seen_memory=other.handle.seen_memory).rebase(messages, sequence)
            other.compiled = None

    @rule(
        who=WHO,
        kinds=st.lists(MESSAGES, min_size=1, max_size=5),
        model=MODEL,
        behaviour=BEHAVIOUR,
        on_failure=FAILURE,
        limit=st.sampled_from((2, 2, 5)),
    )
    def talk(
        self, who: int, kinds: list[str], model: Model, behaviour: Behaviour, on_failure: OnFailure, limit: int
    ) -> None:
        """Several turns in a row, each with a step and its report, then one that compacts."""
        for kind in kinds:
            self.turn(who, kind, model, succeeded=True)
        self.compact(who, "user", model, limit, 4_000, 1, 0.0, on_failure, behaviour, reports=True)


def main() -> int:
    """Run the machine and print how many examples and steps were checked."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.machine", description=main.__doc__)
    parser.add_argument("--examples", type=int, default=2_000, help="examples (default: 2000)")
    parser.add_argument("--rules", type=int, default=40, help="the most rules of an example (default: 40)")
    options = parser.parse_args()
    started = time.perf_counter()
    failures = 0
    try:
        run_state_machine_as_test(RunMachine, settings=settings_of(options.examples, options.rules))
    except Exception:  # whatever fails is a finding
        failures = 1
        traceback.print_exc()
    seconds = time.perf_counter() - started
    done = f"{RunMachine.examples} examples, {RunMachine.steps} compiled steps and {RunMachine.compactions} summaries"
    done += f" checked, {seconds:.0f} s"
    sys.stdout.write(f"{done}, failures: {failures or 'none'}\n")
    return 1 if failures else 0


def settings_of(examples: int, rules: int) -> settings:
    """Settings of a run of the machine."""
    return settings(
        max_examples=examples,
        stateful_step_count=rules,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=PHASES,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
    )


if __name__ == "__main__":
    sys.exit(main())
