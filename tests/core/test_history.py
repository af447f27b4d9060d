"""Source history: running values, prefixes, comparison with a list that is handed over, the latest user text."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextbus.core.history import (
    Entry,
    SourceHistory,
    digest_message,
    latest_user_text,
    make_entry,
    make_query,
    normalise,
    text_of_user,
)
from contextbus_protocol.chat import ChatMessage, Image, Text, ToolResult, assistant, system, user
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import EMPTY_CHAIN, digest_bytes, extend_chain
from contextbus_protocol.errors import RangeError


def conversation(count: int) -> list[ChatMessage]:
    return [user(f"q{index}") if index % 2 == 0 else assistant(f"a{index}") for index in range(count)]


def history(messages: list[ChatMessage]) -> SourceHistory:
    return SourceHistory().append(messages, range(len(messages)))


def chain_of(messages: list[ChatMessage]) -> str:
    chain = EMPTY_CHAIN
    for message in messages:
        chain = extend_chain(chain, digest_bytes(encode_json(message)))
    return chain


SIZES = st.integers(0, 200)


@given(count=SIZES, cut=SIZES)
def test_a_prefix_equals_the_history_of_the_prefix(count: int, cut: int) -> None:
    messages = conversation(count)
    whole = history(messages)
    assert (whole.count, len(whole), whole.chain) == (count, count, chain_of(messages))
    assert whole.eighteenths == sum(range(count))
    if cut <= count:
        kept = whole.keep(cut)
        assert kept == history(messages[:cut])
        assert kept.chain == chain_of(messages[:cut])
        assert kept.messages() == messages[:cut]
    else:
        with pytest.raises(RangeError):
            whole.keep(cut)


@given(count=SIZES, start=SIZES, stop=SIZES)
def test_slices_are_those_of_a_list(count: int, start: int, stop: int) -> None:
    messages = conversation(count)
    whole = history(messages)
    assert [entry.message for entry in whole[start:stop]] == messages[start:stop]
    assert [entry.message for entry in whole[::3]] == messages[::3]
    assert [entry.message for entry in whole] == messages
    with pytest.raises(RangeError):
        whole.entry(count)


@given(count=SIZES)
def test_facts_without_bodies_fold_to_the_same_values(count: int) -> None:
    messages = conversation(count)
    whole = history(messages)
    facts = SourceHistory().extend(Entry(entry.digest, entry.eighteenths) for entry in whole)
    assert (facts.count, facts.chain, facts.eighteenths) == (whole.count, whole.chain, whole.eighteenths)
    assert facts.keep(count // 2).chain == whole.keep(count // 2).chain
    assert facts.messages() == [None] * count


def test_whole_chunks_are_shared_when_a_history_is_cut_or_grows() -> None:
    whole = history(conversation(200))
    assert whole.keep(150).chunks[0] is whole.chunks[0]
    assert whole.keep(150).bodies is whole.bodies
    assert whole.keep(150).messages() == conversation(150)
    assert whole.append([user("x")], [1]).chunks[2] is whole.chunks[2]


def test_versions_of_a_history_keep_their_own_messages() -> None:
    messages = conversation(10)
    base = history(messages)
    one = base.append([user("one")], [1])
    other = base.append([user("other")], [1])
    assert base.messages() == messages
    assert one.messages() == [*messages, user("one")]
    assert other.messages() == [*messages, user("other")]
    assert other.difference([*messages, user("other"), user("new")]) == (11, (user("new"),))
    assert base.difference([*messages, user("new")]) == (10, (user("new"),))
    assert base.keep(4).append([user("x")], [1]).messages() == [*messages[:4], user("x")]


def test_costs_are_as_many_as_messages() -> None:
    with pytest.raises(ValueError, match="zip"):
        SourceHistory().append([user("a"), user("b")], [1])


@pytest.mark.rule("D.F.19")
@given(
    count=SIZES,
    kept=SIZES,
    more=st.integers(0, 70),
    blocks=st.lists(st.integers(0, 200), max_size=5),
    same_objects=st.booleans(),
)
def test_the_difference_is_the_longest_common_prefix(
    count: int, kept: int, more: int, blocks: list[int], same_objects: bool
) -> None:
    messages = conversation(count)
    known = history(messages)
    kept = min(kept, count)
    new = [user(f"new{index}") for index in range(more)]
    handed = [*messages[:kept], *new]
    block = user("<context-package/>")
    for place in blocks:
        handed.insert(min(place, len(handed)), block)
    if not same_objects:
        handed = msgspec.json.decode(msgspec.json.encode(handed), type=list[ChatMessage])
    difference = known.difference(handed, frozenset({digest_message(block)}))
    assert difference.keep == kept
    assert list(difference.messages) == new
    assert known.difference(tuple(handed), {digest_message(block)}).keep == kept


@pytest.mark.rule("D.F.19")
@pytest.mark.parametrize("count", [1, 63, 64, 65, 100, 128])
def test_a_list_with_our_blocks_and_nothing_new_is_no_difference(count: int) -> None:
    messages = conversation(count)
    block = user("<context-package/>")
    for handed in ([block, *messages], [block, *messages, block]):
        assert history(messages).difference(handed, {digest_message(block)}) == (count, ())


@pytest.mark.rule("P.A.5")
def test_a_message_is_normalised_once_and_then_the_same() -> None:
    broken = ChatMessage(
        role="user",
        content=(
            Text(text=""),
            Text(text="half \ud83d"),
            ToolResult(id="\ud83d", content=(Text(text=""), Text(text="\udc00"))),
        ),
    )
    clean = normalise(broken)
    assert clean.content[0] == Text(text="half \ufffd")
    assert clean.content[1] == ToolResult(id="\ufffd", content=(Text(text="\ufffd"),))
    assert normalise(clean) is clean
    entry = make_entry(broken, 5)
    assert (entry.message, entry.digest) == (clean, digest_bytes(encode_json(clean)))
    assert SourceHistory().append([broken], [5]).difference([broken, user("x")]) == (1, (user("x"),))


@pytest.mark.rule("D.G.17", "D.G.18", "D.G.20")
def test_the_latest_user_text() -> None:
    result = ToolResult(id="a", content=(Text(text="no"),))
    block = user("<context-package/>")
    asked = ChatMessage(role="user", content=(result, Text(text="one"), Image(url="u"), Text(text="two")))
    messages = [user("old"), asked, ChatMessage(role="user", content=(result,)), assistant("said"), block]
    assert latest_user_text(messages, {digest_message(block)}) == "one\ntwo"
    assert latest_user_text([*messages, ChatMessage(role="user", content=(Image(url="u"),))]) == ""
    assert latest_user_text([system("x"), assistant("y"), ChatMessage(role="tool", content=(result,))]) == ""
    assert latest_user_text([user("x" * 3000)]) == "x" * 2000


@pytest.mark.rule("D.G.17")
@given(roles=st.lists(st.sampled_from("uatri"), max_size=150), cut=SIZES)
def test_the_running_user_text_is_that_of_a_walk(roles: list[str], cut: int) -> None:
    made: dict[str, list[ChatMessage]] = {
        "u": [user("text")],
        "a": [assistant("a")],
        "t": [ChatMessage(role="tool", content=(ToolResult(id="a"),))],
        "r": [ChatMessage(role="user", content=(ToolResult(id="a"),))],
        "i": [ChatMessage(role="user", content=(Image(url="u"),))],
    }
    messages = [
        user(f"text {index}") if role == "u" else message for index, role in enumerate(roles) for message in made[role]
    ]
    whole = history(messages)
    assert whole.user_text == latest_user_text(messages)
    cut = min(cut, len(messages))
    assert whole.keep(cut).user_text == latest_user_text(messages[:cut])


@pytest.mark.rule("D.G.16", "D.G.19")
def test_the_query() -> None:
    assert make_query("Book a flight", "to Oslo") == "Book a flight\nto Oslo"
    assert make_query(None, "to Oslo") == "to Oslo"
    assert make_query("t" * 1999, "text") == "t" * 1999 + "\n"
    assert make_query(None, "👨" * 3000) == "👨" * 2000


@pytest.mark.rule("D.G.21")
def test_a_query_of_nothing_is_empty() -> None:
    assert make_query(None, "").strip() == ""
    assert text_of_user(ChatMessage(role="user", content=())) is None


def test_an_entry_outside_is_refused_and_the_ends_are_given() -> None:
    for count in (0, 1, 3, 300):
        whole = history([user(str(index)) for index in range(count)])
        for index in (-1, count, count + 1):
            with pytest.raises(RangeError, match=f"{count} messages, none at {index}"):
                whole.entry(index)
        if count:
            assert [whole.entry(index).message for index in (0, count - 1)] == [user("0"), user(str(count - 1))]


def test_a_slice_is_that_of_a_list() -> None:
    messages = conversation(300)
    whole = history(messages)
    for place in (slice(None), slice(2, 9), slice(250, 400), slice(1, 290, 2), slice(None, None, 3), slice(9, 2, -1)):
        assert [entry.message for entry in whole[place]] == messages[place]


@given(st.integers(0, 150), st.data())
@settings(max_examples=60, deadline=None)
def test_messages_that_are_known_to_be_the_same_are_not_compared(count: int, data: st.DataObject) -> None:
    messages = [user(str(n)) for n in range(count)]
    known = history(messages)
    keep = data.draw(st.integers(0, count))
    same = data.draw(st.integers(0, keep))
    handed = [*messages[:keep], user("other")]
    assert known.difference(handed, same=same) == known.difference(handed) == (keep, (user("other"),))


def test_a_message_that_stays_behind_an_edit_keeps_its_entry() -> None:
    messages = [user(str(n)) for n in range(100)]
    changed = [*messages[:50], user("other"), *messages[51:]]
    known = SourceHistory().append(messages, [0] * 100)
    edited = known.replace(50, changed[50:])
    assert all(a is b for a, b in zip(known[51:], edited[51:], strict=True))
    assert edited == SourceHistory().append(changed, [0] * 100)
