"""A history that the host gave in place of the run's (P.J.8, P.D.4, D.F.20)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.scripted import text_in
from tests.core.compaction.test_linear_time import work

from contextbus.core.checkpoints import first_change
from contextbus.core.compaction.host_history import replace_history
from contextbus.core.compaction.items import Item
from contextbus.core.compaction.request_items import RequestItems
from contextbus.core.estimate import make_estimator
from contextbus.core.history import SourceHistory, digest_message
from contextbus.core.projection import request_digests
from contextbus.core.run_state import Checkpoint, RunState
from contextbus_protocol.chat import ChatMessage, user
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import ReplacementFact

ESTIMATOR = make_estimator()


def request_of(texts: str, blocks: tuple[int, ...] = (), replaced: str = "", covered: int = 0) -> RequestItems:
    """A request history of one-letter messages behind what stands in place of the first ``covered`` ones."""
    items: list[Item] = []
    facts: list[ReplacementFact | None] = []
    covers: list[int] = []
    for letter in replaced:
        message = user(letter)
        items.append(Item(message, "summary"))
        facts.append(ReplacementFact(digest=digest_message(message), eighteenths=1, own="summary"))
        covers.append(covered)
    for index, letter in enumerate(texts, covered):
        message = user(letter)
        items.append(Item(message))
        facts.append(ReplacementFact(digest=digest_message(message), eighteenths=1, source=index))
        covers.append(index + 1)
        if index + 1 in blocks:
            items.append(Item(None, "block"))
            facts.append(None)
            covers.append(index + 1)
    return RequestItems(tuple(items), tuple(facts), tuple(covers))


def messages(texts: str) -> list[ChatMessage]:
    return [user(letter) for letter in texts]


def replaced(texts: str, given_: str, **more: object) -> tuple[int, list[tuple[str, int | None]]]:
    """How many source messages are replaced, and by what."""
    found = replace_history(request_of(texts, **more), messages(given_), ESTIMATOR)  # type: ignore[arg-type]  # of mixed options
    texts_of = [text_in(message) for message in found.messages]
    return found.source_count, [(text, fact.source) for text, fact in zip(texts_of, found.facts, strict=True)]


@pytest.mark.rule("P.J.8", "D.W.3", "C.L.2")
@pytest.mark.parametrize(
    ("texts", "given_", "count", "pairs"),
    [
        ("abcde", "ade", 3, [("a", 0)]),
        ("abcde", "de", 3, []),
        ("abcde", "aXde", 3, [("a", 0), ("X", None)]),
        ("abcde", "abcdeX", 5, [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4), ("X", None)]),
        ("abcde", "XbYdZ", 5, [("X", None), ("b", 1), ("Y", None), ("d", 3), ("Z", None)]),
        ("abcde", "X", 5, [("X", None)]),
        ("abcde", "edcba", 5, [("e", 4), ("d", None), ("c", None), ("b", None), ("a", None)]),
        ("ab", "Xab", 1, [("X", None), ("a", 0)]),  # at least one message is replaced
        ("aaa", "aa", 3, [("a", 0), ("a", 1)]),
    ],
)
def test_what_did_not_change_is_the_runs_own(
    texts: str, given_: str, count: int, pairs: list[tuple[str, int | None]]
) -> None:
    assert replaced(texts, given_) == (count, pairs)


@pytest.mark.rule("P.J.8", "C.L.7")
def test_an_earlier_checkpoint_is_gone_on_from() -> None:
    assert replaced("de", "Se", replaced="S", covered=3) == (4, [("S", None)])
    assert replaced("de", "Xde", replaced="S", covered=3) == (3, [("X", None)])
    assert replaced("de", "XSde", replaced="S", covered=3) == (3, [("X", None), ("S", None)])
    kept = replace_history(request_of("de", replaced="S", covered=3), messages("Se"), ESTIMATOR)
    assert kept.facts[0].own == "summary"


@pytest.mark.rule("P.J.8")
def test_an_empty_history_is_none() -> None:
    with pytest.raises(InvalidTypeError):
        replace_history(request_of("ab"), [], ESTIMATOR)


def other(size: int) -> str:
    return "X" * size


def reversed_(size: int) -> str:
    return "".join(map(chr, range(0x4E00 + size, 0x4E00, -1)))


def halved(size: int) -> str:
    return "X" + "".join(map(chr, range(0x4E01, 0x4E00 + size, 2))) + "Y"


@pytest.mark.rule("P.J.8")
@pytest.mark.parametrize("shape", [other, reversed_, halved])
def test_finding_what_is_the_runs_own_is_linear(shape: Callable[[int], str]) -> None:
    def lines(size: int) -> int:
        request = request_of("".join(map(chr, range(0x4E00, 0x4E00 + size))))
        given_ = messages(shape(size))
        return work(lambda: replace_history(request, given_, ESTIMATOR))

    assert lines(800) <= 8.5 * lines(100)


letters = st.text("abcX", min_size=1, max_size=12)


@pytest.mark.rule("P.J.8", "P.D.4", "C.L.2")
@given(texts=letters, given_=letters, data=st.data())
def test_replacement_and_what_stays_are_what_the_host_gave(texts: str, given_: str, data: st.DataObject) -> None:
    blocks = tuple(sorted(data.draw(st.sets(st.integers(1, len(texts)), max_size=3))))
    found = replace_history(request_of(texts, blocks), messages(given_), ESTIMATOR)
    rest = messages(texts)[found.source_count :]
    assert [*found.messages, *rest] == messages(given_)
    assert 0 < found.source_count <= len(texts)
    sources = [fact.source for fact in found.facts if fact.source is not None]
    assert sources == sorted(set(sources))
    assert all(
        messages(texts)[f.source] == m for m, f in zip(found.messages, found.facts, strict=True) if f.source is not None
    )
    assert all(fact.digest == digest_message(m) for m, fact in zip(found.messages, found.facts, strict=True))


@pytest.mark.rule("D.F.20", "C.X.6", "D.F.22")
@given(texts=letters, given_=letters, old=st.integers(0, 6))
def test_thinking_behind_the_first_change_is_stale_and_none_before_it(texts: str, given_: str, old: int) -> None:
    """The prefix before the change is as it was: byte for byte, and no later position has such a prefix."""
    history = SourceHistory().append(messages(texts), [1 for _ in texts])
    old = min(old, len(texts) - 1)
    checkpoint = None
    request = request_of(texts)
    if old:
        request = request_of(texts[old:], replaced="S", covered=old)
        facts = tuple(fact for fact in request.facts[:1] if fact is not None)
        checkpoint = Checkpoint(old, history.keep(old).chain, facts, "blob")
    state = RunState("r", history=history, checkpoint=checkpoint)
    before = list(request_digests(state))
    found = replace_history(request, messages(given_), ESTIMATOR)
    position = first_change(state, found.facts)
    after = [digest_message(m) for m in messages(given_)]
    same = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    assert 0 <= position <= found.source_count
    if checkpoint is None:
        assert position == min(same, found.source_count)
    elif same > 0:
        assert position == min(old + same - 1, found.source_count)
    else:
        assert position <= old
