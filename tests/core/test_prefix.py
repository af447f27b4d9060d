"""What a request begins with: why that changed, and whose thinking is then left out (D.F.15-D.F.22)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.logs import OPTIONS, append, commit_to, compiled
from tests.core.test_bound_models import BOUND, tailed
from tests.core.test_rewritten_run import facts

from contextbus.core.history import digest_message
from contextbus.core.prefix import break_prefix, prefix_cause, stale_ranges, withhold_thinking
from contextbus.core.run_state import RunState
from contextbus_protocol.chat import ChatMessage, Reasoning, Text, assistant, user
from contextbus_protocol.digests import EMPTY_CHAIN, extend_chain
from contextbus_protocol.events import (
    BlockFact,
    CallFailed,
    CallSucceeded,
    HistoryReplaced,
    MessageFact,
    PackageRedacted,
    PreparedFact,
    PreparedMessages,
)
from contextbus_protocol.values import StepOptions

NEW = RunState("r")
TOOLS = msgspec.structs.replace(BOUND, tools_digest="sha256:tools")
REDACTED = PackageRedacted(
    step=0, package="sha256:package-0", replacement="sha256:less", source="docs", record_id="x", erasure=4
)


def after_step(*records: str, texts: tuple[str, ...] = ("a", "b"), succeeded: bool = True) -> RunState:
    """A run on a bound model after its first step, with the answer behind it."""
    state = commit_to(NEW, append(NEW, *texts))
    state = commit_to(state, tailed(state, 0, *records))
    if succeeded:
        return commit_to(state, append(state, "answer", role="assistant"), CallSucceeded(step=0))
    return state


def stale(state: RunState, options: StepOptions = BOUND) -> tuple[tuple[int, int], ...]:
    return stale_ranges(state, options, state.history.count)


@pytest.mark.rule("D.F.20")
def test_nothing_is_stale_while_only_more_comes() -> None:
    assert stale(NEW) == ()
    state = after_step("x")
    assert stale(state) == ()
    state = commit_to(state, append(state, "more"))
    state = commit_to(state, tailed(state, 1, "y"))
    state = commit_to(state, append(state, "answer", role="assistant"), CallSucceeded(step=1))
    assert (stale(state), prefix_cause(state, BOUND)) == ((), None)


@pytest.mark.rule("D.F.20", "D.F.22")
def test_other_tools_make_all_thinking_stale() -> None:
    state = after_step("x")
    assert stale(state, TOOLS) == ((0, 3),)
    state = commit_to(state, tailed(state, 1, options=TOOLS))
    state = commit_to(state, append(state, "later", role="assistant"), CallSucceeded(step=1))
    assert stale(state, TOOLS) == ((0, 3),)  # what was written with these tools stays
    assert stale(state) == ((0, 4),)


@pytest.mark.rule("D.F.20", "D.F.22")
def test_a_rewritten_history_makes_what_follows_the_change_stale() -> None:
    state = after_step("x", texts=("a", "b", "c"))
    state = commit_to(state, HistoryReplaced(keep=1))
    state = commit_to(state, append(state, "other", "answer"))
    assert (stale(state), prefix_cause(state, BOUND)) == (((1, 3),), "history")
    again = commit_to(state, tailed(state, 1))
    again = commit_to(again, append(again, "later", role="assistant"), CallSucceeded(step=1))
    assert stale(again) == ((1, 3),)  # thinking before the change and behind the next request stays
    behind = after_step("x")
    behind = commit_to(behind, HistoryReplaced(keep=2))
    behind = commit_to(behind, append(behind, "another answer", role="assistant"))
    assert (stale(behind), prefix_cause(behind, BOUND)) == ((), None)  # the last request is still the beginning


@pytest.mark.rule("D.F.20", "D.J.6", "D.F.22")
def test_a_block_that_a_forget_takes_makes_what_follows_it_stale() -> None:
    state = commit_to(after_step("x", "y"), REDACTED)
    assert (stale(state), prefix_cause(state, BOUND)) == (((2, 3),), "redacted")
    assert [b.fact.placement for b in state.blocks] == ["ephemeral-tail"]


@pytest.mark.rule("D.F.20", "D.F.13", "D.F.17")
@pytest.mark.parametrize("outcome", ["failed", "cancelled", "overflow", None])
@pytest.mark.parametrize("records", [("x",), ()])
def test_what_followed_a_request_whose_end_did_not_stay_is_stale(outcome: str | None, records: tuple[str, ...]) -> None:
    state = after_step(*records, succeeded=False)
    if outcome is not None:
        state = commit_to(state, msgspec.convert({"type": "call-failed", "step": 0, "status": outcome}, CallFailed))
    assert stale(state) == ()  # there is nothing behind it yet
    assert prefix_cause(state, BOUND) == "history"  # it ended with a block or a tail, and these are gone
    state = commit_to(state, append(state, "half an answer", role="assistant"))
    assert stale(state) == ((2, 3),)
    plain = commit_to(NEW, append(NEW, "a"))
    plain = commit_to(plain, compiled(plain, 0, options=BOUND))
    plain = commit_to(plain, append(plain, "answer", role="assistant"))
    assert (stale(plain), prefix_cause(plain, BOUND)) == ((), None)  # nothing but the history was sent


@pytest.mark.rule("D.F.20")
def test_thinking_behind_a_tail_that_did_not_stay_is_stale_once_a_bound_model_is_called() -> None:
    state = commit_to(NEW, append(NEW, "a"))
    state = commit_to(state, tailed(state, 0, kept=False, options=OPTIONS))
    state = commit_to(state, append(state, "answer", role="assistant"), CallSucceeded(step=0))
    assert stale(state) == ((1, 2),)
    assert prefix_cause(state, OPTIONS) is None  # tails that do not stay are not compared


@pytest.mark.rule("D.F.20", "D.W.7")
def test_what_followed_messages_of_the_hosts_hook_is_stale() -> None:
    state = commit_to(NEW, append(NEW, "a"))
    hook = PreparedFact(messages=PreparedMessages(1, "sha256:other", 90))
    state = commit_to(state, compiled(state, 0, options=BOUND, prepared=hook))
    state = commit_to(state, append(state, "answer", role="assistant"), CallSucceeded(step=0))
    assert stale(state) == ((1, 2),)


@pytest.mark.rule("D.F.20")
@given(
    spans=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted).map(tuple), max_size=3),
    broken=st.none() | st.integers(0, 12),
    tools=st.booleans(),
    count=st.integers(0, 12),
)
def test_ranges_stay_apart_and_in_order_and_nothing_that_was_stale_is_sent_again(
    spans: list[tuple[int, int]], broken: int | None, *, tools: bool, count: int
) -> None:
    before: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if start < end <= count and (not before or before[-1][1] < start):
            before.append((start, end))
    state = after_step("x")
    state = msgspec.structs.replace(state, stale_thinking=tuple(before), broken_at=broken)
    after = stale_ranges(state, TOOLS if tools else BOUND, count)
    flat = [place for span in after for place in span]
    assert flat == sorted(set(flat))
    indexes = {i for start, end in after for i in range(start, end)}
    assert indexes >= {i for start, end in before for i in range(start, end)}
    changed = 0 if tools else broken
    assert indexes >= (set() if changed is None else set(range(changed, count)))


@pytest.mark.rule("D.F.22", "D.Y.7")
def test_the_first_cause_and_the_earliest_place_count() -> None:
    state = break_prefix(break_prefix(after_step("x"), "history", 1), "redacted", 2)
    assert (state.broken_prefix, state.broken_at) == ("redacted", 1)
    state = break_prefix(break_prefix(state, "system", 0), "history", 5)
    assert (state.broken_prefix, state.broken_at) == ("system", 0)


A, BLOCK, ANSWER, MORE = user("a"), user("block"), assistant("answer"), user("more")
PLACED = (BlockFact("append", digest_message(BLOCK), 180),)


def with_messages(state: RunState, *messages: ChatMessage) -> RunState:
    return commit_to(state, facts(state, *(MessageFact(digest_message(m), 90, m.role) for m in messages)))


def with_block() -> RunState:
    """A run whose first step placed a block behind its first message."""
    state = with_messages(NEW, A)
    state = commit_to(state, compiled(state, 0, "x", blocks=PLACED))
    return commit_to(state, CallSucceeded(step=0))


@pytest.mark.rule("D.F.15", "D.F.17", "D.W.7")
@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        ((A, BLOCK, ANSWER, MORE), None),
        ((A, BLOCK), None),
        ((A, ANSWER, MORE), "history"),
        ((A, ANSWER, BLOCK), "history"),
        ((A,), "history"),
    ],
)
def test_messages_of_a_hook_begin_as_the_request_before_them_with_its_block(
    messages: tuple[ChatMessage, ...], cause: str | None
) -> None:
    state = with_messages(with_block(), ANSWER, MORE)
    assert prefix_cause(state, OPTIONS, messages) == cause


@pytest.mark.rule("D.F.15", "D.F.17", "D.W.7")
def test_messages_of_a_hook_hold_the_blocks_of_earlier_steps_in_their_places() -> None:
    state = with_messages(with_block(), ANSWER)
    state = commit_to(state, compiled(state, 1, retrieved=False))
    state = with_messages(commit_to(state, CallSucceeded(step=1)), MORE)
    assert prefix_cause(state, OPTIONS, [A, BLOCK, ANSWER, MORE]) is None
    assert prefix_cause(state, OPTIONS, [A, ANSWER, BLOCK, MORE]) == "history"
    assert prefix_cause(state, OPTIONS, [A, ANSWER, MORE]) == "history"


@pytest.mark.rule("D.F.15", "D.F.17", "D.W.7")
@pytest.mark.parametrize(("given", "cause"), [((A, BLOCK), None), ((A,), None), ((BLOCK, A), "history")])
def test_a_history_begins_as_what_a_hook_gave_also_where_a_block_ends_it(
    given: tuple[ChatMessage, ...], cause: str | None
) -> None:
    state = with_block()
    chain = EMPTY_CHAIN
    for message in given:
        chain = extend_chain(chain, digest_message(message))
    hook = PreparedFact(messages=PreparedMessages(len(given), chain, 90))
    state = commit_to(state, compiled(state, 1, retrieved=False, prepared=hook))
    assert prefix_cause(commit_to(state, CallSucceeded(step=1)), OPTIONS) == cause


@pytest.mark.rule("D.F.20")
def test_withheld_thinking_leaves_the_other_parts_and_the_number_of_parts() -> None:
    thinking = Reasoning(text="Hm.", signature="sig")
    message = ChatMessage(role="assistant", content=(thinking, Text(text="Yes."), Reasoning(redacted="data")))
    assert withhold_thinking(message).content == (Reasoning(), Text(text="Yes."), Reasoning())
    plain = assistant("Yes.")
    assert withhold_thinking(plain) is plain
