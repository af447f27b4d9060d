"""The newest commands of a run are found, older ones are dropped, and finding them costs no walk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.recent import REMEMBERED_COMMANDS, Recent
from contextbus.core.run_state import CommandFact


def fact(command: int, sequence: int) -> CommandFact:
    return CommandFact(command=f"c{command}", command_digest="", sequence=sequence, digest="")


@given(st.lists(st.integers(0, 400), max_size=700))
def test_the_newest_fact_of_a_remembered_command_is_found(commands: list[int]) -> None:
    recent: Recent[CommandFact] = Recent()
    for sequence, command in enumerate(commands):
        recent = recent.add(fact(command, sequence))
    newest = {command: sequence for sequence, command in enumerate(commands)}
    for command, sequence in newest.items():
        found = recent.find(f"c{command}")
        if sequence >= len(commands) - REMEMBERED_COMMANDS:
            assert found is not None
        if found is not None:
            assert found.sequence == sequence
    assert recent.find("never") is None


@pytest.mark.parametrize("count", [0, 1, 31, 32, 255, 256, 287, 288, 289, 1000])
def test_what_is_kept_is_bounded_and_in_order(count: int) -> None:
    recent: Recent[CommandFact] = Recent()
    for sequence in range(count):
        recent = recent.add(fact(sequence, sequence))
    kept = [f.sequence for f in recent]
    assert kept == list(range(count))[-len(kept) :]
    assert min(count, REMEMBERED_COMMANDS) <= len(kept) < REMEMBERED_COMMANDS + 32
    assert recent.forgotten == (len(kept) < count)


def test_an_earlier_value_stays_what_it_was() -> None:
    before: Recent[CommandFact] = Recent()
    for sequence in range(40):
        before = before.add(fact(sequence, sequence))
    before.add(fact(99, 99))
    assert before.find("c99") is None
    assert len(list(before)) == 40
