"""The transcript's index against a plain model: whatever runs do, it holds what they say now and no more."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextbus.core.scope import lies_within
from contextbus.sources.database import MEMORY
from contextbus.sources.transcript_feed import words_of
from contextbus.sources.transcript_index import (
    BlocksPlaced,
    Change,
    HistoryKept,
    Mark,
    MessageSaid,
    RunBegun,
    RunCommit,
    TranscriptIndex,
)
from contextbus_protocol.chat import ChatMessage, Document, Text
from contextbus_protocol.errors import ScopeConflictError
from contextbus_protocol.values import Scope

ADA, WORK = Scope(user_id="ada"), Scope(user_id="ada", chat_id="work")
RUNS = {"a": ADA, "a/1": WORK, "b": Scope(user_id="bob")}
TEXTS = ("green tea", "black tea", "tea tea tea", "the <block> of tea")

runs = st.sampled_from(sorted(RUNS))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("say"), runs, st.sampled_from(TEXTS)),
        st.tuples(st.just("keep"), runs, st.integers(0, 4)),
        st.tuples(st.just("begin"), runs, st.none()),
        st.tuples(st.just("block"), runs, st.sampled_from(TEXTS)),
    ),
    max_size=25,
)


class Model:
    """What the index should hold."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}
        self.blocks: set[str] = set()
        self.commits: list[RunCommit] = []

    def do(self, operation: str, run: str, value: str | int | None) -> None:
        change: Change
        if operation == "begin" or run not in self.said:
            self.said[run] = []
            change = RunBegun(RUNS[run])
        elif operation == "keep":
            assert isinstance(value, int)
            del self.said[run][value:]
            change = HistoryKept(value)
        elif operation == "say":
            change = MessageSaid(len(self.said[run]), f"digest of {value}", "user", str(value))
            self.said[run].append(str(value))
        else:
            self.blocks.add(str(value))
            change = BlocksPlaced((f"digest of {value}",))
        sequence = 3 * len(self.commits) + 1
        self.commits.append(RunCommit(sequence, run, f"commit {sequence}", (change,)))

    def find(self, scope: Scope, run: str) -> set[str]:
        own = set(self.said.get(run, ()))
        return {
            f"{name}/{position}"
            for name, texts in self.said.items()
            for position, text in enumerate(texts)
            if name != run and lies_within(RUNS[name], scope) and text not in self.blocks | own
        }


@pytest.mark.rule("D.K.12", "D.K.24", "D.K.25", "D.G.33")
@settings(max_examples=150, deadline=None)
@given(done=operations, pages=st.integers(1, 7), run=st.sampled_from(["", *sorted(RUNS)]))
def test_it_holds_what_runs_say_now_within_the_scope_and_no_block(
    done: list[tuple[str, str, str | int | None]], pages: int, run: str
) -> None:
    model, index = Model(), TranscriptIndex(MEMORY)
    for operation in done:
        model.do(*operation)
    for start in range(0, len(model.commits), pages):
        page = model.commits[start : start + pages]
        index.apply(page, after=index.mark().sequence)
        index.apply(page, after=0)  # again, as another process would
    for scope in (ADA, WORK, Scope(user_id="bob"), Scope(agent_id="ada")):
        hits = index.search("tea", scope, 100, run=run)
        assert {hit.record_id for hit in hits} == model.find(scope, run)
        assert [hit.record_id for hit in hits] == [
            hit.record_id for hit in sorted(hits, key=lambda hit: (-hit.score, hit.record_id))
        ]
        assert all(hit.score > 0 for hit in hits)
    last = model.commits[-1] if model.commits else RunCommit(0, "", "")
    assert index.mark() == Mark(last.sequence, last.run, last.digest)
    index.close()


@pytest.mark.rule("D.K.4")
@pytest.mark.parametrize("scope", [Scope(), Scope(user_id="")])
def test_a_scope_that_names_nobody_finds_nothing_but_an_error(scope: Scope) -> None:
    index = TranscriptIndex(MEMORY)
    with pytest.raises(ScopeConflictError):
        index.search("tea", scope, 10)
    index.close()


@pytest.mark.rule("D.K.24")
def test_a_run_whose_beginning_is_unknown_belongs_to_nobody() -> None:
    index = TranscriptIndex(MEMORY)
    index.apply([RunCommit(5, "a", "d", (MessageSaid(3, "x", "user", "tea"),))], after=0)
    assert index.search("tea", ADA, 10) == ()
    assert index.mark().sequence == 5
    index.close()


def test_what_the_log_does_not_hold_any_more_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    index = TranscriptIndex(path)
    for sequence, word in ((1, "xylophone"), (2, "zither"), (3, "kazoo")):
        run = "old" if sequence < 3 else "new"
        changes: tuple[Change, ...] = (MessageSaid(sequence, word, "user", f"tea and {word}"),)
        index.apply([RunCommit(sequence, run, "d", (RunBegun(ADA), *changes))], after=sequence - 1)
    assert [hit.record_id for hit in index.search("tea", ADA, 10)] == ["new/3", "old/2"]
    index.drop_before(3)
    assert [hit.record_id for hit in index.search("tea", ADA, 10)] == ["new/3"]
    index.drop_runs(["new"])
    assert index.runs() == ("old",)
    held = b"".join(p.read_bytes() for p in tmp_path.iterdir())
    for stem in (b"xylophon", b"zither", b"kazoo"):
        assert stem not in held
    assert path.stat().st_mode & 0o077 == 0
    index.close()


@pytest.mark.rule("D.K.12")
def test_the_words_of_a_message_are_those_of_its_speaker() -> None:
    parts = (Text(text="one"), Document(text="a file"), Text(text="two"))
    message = ChatMessage(role="assistant", content=parts)
    assert words_of(message) == "one\ntwo"
    for role in ("system", "tool"):
        assert words_of(msgspec.structs.replace(message, role=role)) == ""
