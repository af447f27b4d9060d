"""Why messages stay, as a plan shows it: what is said agrees with what the policy keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.client.compaction.reasons import find_reasons
from contextbus.core.compaction.items import Item
from contextbus.core.compaction.ranges import Range, begin_range, find_bounds
from contextbus.core.compaction.reduction import ReductionOptions
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.values import RetentionPolicy

LETTERS = {"u": Item(user("Ask.")), "a": Item(assistant("So."))}


def reasons(letters: str, keep: RetentionPolicy) -> list[str | None]:
    items = [LETTERS[letter] for letter in letters]
    _, step = begin_range(items, find_bounds(items), keep)
    end = step.end if isinstance(step, Range) else 0
    return list(find_reasons(items, ReductionOptions(target_tokens=1, keep=keep), end))


@pytest.mark.rule("C.X.1", "C.D.3")
@pytest.mark.parametrize(
    ("keep", "stays", "why"),
    [
        (RetentionPolicy(), 4, "one of the last 4 messages"),
        (RetentionPolicy(keep_last_messages=1), 1, "the last message"),
        (RetentionPolicy(keep_last_turns=1), 3, "in the last turn"),
        (RetentionPolicy(keep_last_turns=2), 5, "within the last 2 turns"),
        (RetentionPolicy(keep_last_turns=1, keep_last_messages=2), 3, "one of the last 2 messages or in the last turn"),
        (RetentionPolicy(keep_last_turns=1, keep_last_messages=4), 4, "one of the last 4 messages or in the last turn"),
    ],
)
def test_the_policy_that_keeps_a_message_is_named(keep: RetentionPolicy, stays: int, why: str) -> None:
    assert reasons("uauauaa", keep) == [None] * (7 - stays) + [why] * stays


@pytest.mark.rule("C.X.1", "C.D.9")
@given(
    st.text("ua", min_size=1, max_size=12),
    st.builds(
        RetentionPolicy,
        keep_last_messages=st.none() | st.integers(1, 6),
        keep_last_turns=st.none() | st.integers(1, 4),
    ),
)
def test_a_message_has_a_reason_exactly_where_it_stays_and_plain_ones_belong_to_nothing(
    letters: str, keep: RetentionPolicy
) -> None:
    said = reasons(letters, keep)
    first = next((index for index, reason in enumerate(said) if reason is not None), len(said))
    assert None not in said[first:]
    assert not any("belongs together" in (reason or "") for reason in said)


@pytest.mark.rule("C.X.1")
def test_what_is_counted_is_named_too() -> None:
    items = [LETTERS[letter] for letter in "uaua"]
    keep = RetentionPolicy(keep_ratio=0.25, keep_recent_tokens=1_500)
    said = find_reasons(items, ReductionOptions(target_tokens=1, keep=keep), 2)
    assert said == (None, None, *["within 25% of the window or within the latest 1,500 tokens"] * 2)
