"""Runs that a run starts: within its scope, with a working memory of their own (D.K.5 to D.K.7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.client.scripted import MODEL, SCOPE, Scripted, bus_with, state_of

import contextbus.client as contextbus
from contextbus.client import PreparedStep
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.sources.interface import FunctionSource, check_source
from contextbus.sources.memory import memory_source
from contextbus.sources.memory_session import memory_session
from contextbus.sources.transcript import transcript_source
from contextbus_protocol.chat import assistant, user
from contextbus_protocol.errors import ScopeConflictError
from contextbus_protocol.events import RunStarted
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Candidate, ParentRun, Scope

CI = contextbus.candidate("0", "Deploys need a green CI run.", 0.9)
DONE = contextbus.Report(status="succeeded", messages=[assistant("So.")])
CHAT = Scope(user_id="ada", chat_id="1")
EVE = Scope(user_id="eve")


class PinnedSource(FunctionSource):
    """A source that reads within a scope of its own, or at one alone, as a session does."""

    def __init__(self, pinned: Scope | None, fixed: Scope | None = None) -> None:
        self.pinned_scope = pinned
        self.fixed_scope = fixed
        self.asked: list[Query] = []
        super().__init__(self.find, id="pinned", kind="memory")

    async def find(self, query: Query) -> Sequence[Candidate]:
        """Remember what was asked."""
        self.asked.append(query)
        return [CI]


@pytest.mark.rule("D.K.5", "D.K.6", "D.K.7")
@pytest.mark.parametrize("scope", [EVE, Scope(chat_id="1"), Scope(agent_id="ada")])
async def test_a_child_outside_its_parent_is_refused_before_any_query(scope: Scope) -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        parent = await bus.run("parent", scope=SCOPE)
        with pytest.raises(ScopeConflictError) as caught:
            await bus.run("child", scope=scope, sources=["rag"], parent=parent)
        assert isinstance(caught.value, TypeError)
        assert rag.asked == []
        assert (await bus.log("child")).commits == ()


@pytest.mark.rule("D.K.5", "D.K.23")
async def test_a_child_within_its_parent_reads_at_its_own_scope_and_names_the_parent() -> None:
    rag = Scripted([CI])
    async with bus_with(rag) as bus:
        parent = await bus.run("parent", scope=SCOPE)
        await parent.before_model_call([user("How?")], model=MODEL)
        child = await bus.run("child", scope=CHAT, sources=["rag"], parent=parent)
        await child.before_model_call([user("And?")], model=MODEL)
        assert [q.scope for q in rag.asked] == [CHAT]
        events = [e for c in (await bus.log("child")).commits for e in c.commit.events]
        assert [e.parent for e in events if isinstance(e, RunStarted)] == [ParentRun("parent", SCOPE)]
        grandchild = await bus.run("grandchild", scope=CHAT, parent=child)
        await grandchild.before_model_call([user("Hm?")], model=MODEL)
        assert (await state_of(bus, grandchild)).parent == ParentRun("child", CHAT)
        with pytest.raises(ScopeConflictError):
            await bus.run(scope=SCOPE, parent=child)  # as wide as the grandparent
        assert (await bus.verify("child")).is_clean


@pytest.mark.rule("D.K.5")
async def test_the_scope_that_the_parents_log_has_pinned_counts() -> None:
    async with bus_with() as bus:
        await (await bus.run("parent", scope=SCOPE)).before_model_call([user("How?")], model=MODEL)
        held = await bus.run("parent", scope=CHAT)  # asks for less than what is pinned
        child = await bus.run("child", scope=SCOPE, parent=held)
        await child.before_model_call([user("And?")], model=MODEL)
        assert (await state_of(bus, child)).parent == ParentRun("parent", SCOPE)


@pytest.mark.rule("D.K.5", "D.K.7")
@pytest.mark.parametrize(
    ("source", "within"),
    [
        (PinnedSource(None), True),
        (PinnedSource(SCOPE), True),
        (PinnedSource(Scope(chat_id="1")), True),  # narrowed by the child's scope it is within
        (PinnedSource(EVE), False),
        (PinnedSource(SCOPE, SCOPE), True),
        (PinnedSource(CHAT, CHAT), True),
        (PinnedSource(None, EVE), False),
        (PinnedSource(Scope(chat_id="1"), Scope(chat_id="1")), False),  # a session reads at its own, all users of it
    ],
)
async def test_what_a_source_of_this_process_reads_lies_within_the_parent(
    source: PinnedSource, *, within: bool
) -> None:
    async with contextbus.open("memory:", sources=[check_source(source)], memory=False) as bus:
        parent = await bus.run("parent", scope=SCOPE)
        if within:
            await bus.run("child", scope=SCOPE, sources=["pinned"], parent=parent)
            return
        with pytest.raises(ScopeConflictError):
            await bus.run("child", scope=SCOPE, sources=["pinned"], parent=parent)
        assert source.asked == []
        await bus.run("alone", scope=SCOPE, sources=["pinned"])  # a run of its own is no child


@pytest.mark.rule("D.K.5", "D.K.7")
async def test_the_built_in_sources_say_at_which_scope_they_read() -> None:
    journal = MemoryJournal()
    everybodys = Scope(chat_id="1")
    for source in (
        memory_source(session=memory_session(journal, "default", scope=everybodys)),
        memory_source(journal, "default", scope=EVE),
        transcript_source(journal, "default", scope=EVE),
    ):
        async with contextbus.open("memory:", sources=[source], memory=False) as bus:
            parent = await bus.run("parent", scope=SCOPE)
            with pytest.raises(ScopeConflictError):
                await bus.run("child", scope=SCOPE, sources=[source.id], parent=parent)
            await bus.run("other", scope=SCOPE, parent=parent)  # it asks no source
        await source.aclose()


@pytest.mark.rule("D.K.5", "D.R.13")
async def test_each_run_has_a_working_memory_and_a_history_of_its_own() -> None:
    async with bus_with() as bus:
        parent = await bus.run("parent", scope=SCOPE)
        await parent.working_memory.create(goal="The parent's goal.")
        await parent.before_model_call([user("How?")], model=MODEL)
        child = await bus.run("child", scope=SCOPE, parent=parent)
        assert (await child.working_memory.current()) is None
        await child.working_memory.create(goal="The child's goal.")
        step = await child.before_model_call([user("And?")], model=MODEL)
        assert "The child&#39;s goal." in step.text
        assert "parent&#39;s" not in step.text
        current = await parent.working_memory.current()
        assert current is not None
        assert current.goal is not None
        assert current.goal.text == "The parent's goal."
        assert parent.messages == (user("How?"),)


@pytest.mark.rule("D.K.5", "D.W.4")
async def test_options_of_a_child_are_its_own() -> None:
    asked: list[str] = []

    def prepare(step: contextbus.StepContext) -> PreparedStep | None:
        asked.append(step.run)
        return None

    async with bus_with() as bus:
        parent = await bus.run("parent", scope=SCOPE, prepare_step=prepare)
        child = await bus.run("child", scope=SCOPE, parent=parent)
        await child.before_model_call([user("And?")], model=MODEL)
        await parent.before_model_call([user("How?")], model=MODEL)
        assert asked == ["parent"]


@pytest.mark.broker
@pytest.mark.rule("D.K.5", "D.K.7", "D.R.13", "D.W.1")
async def test_the_parent_survives_a_restart_and_binds_clients_that_know_nothing_of_it(tmp_path: Path) -> None:
    rag = Scripted([CI])
    async with contextbus.open(data=tmp_path, sources=[check_source(rag)], memory=False, durability="interval") as bus:
        parent = await bus.run("parent", scope=SCOPE)
        child = await bus.run("child", scope=CHAT, sources=["rag"], parent=parent)
        await child.before_model_call([user("And?")], model=MODEL)
        await child.after_model_call(DONE)
    async with contextbus.open(data=tmp_path, sources=[check_source(rag)], memory=False, durability="interval") as bus:
        again = await bus.run("child", scope=CHAT, sources=["rag"])
        assert again.state.parent == ParentRun("parent", SCOPE)
        await again.before_model_call(model=MODEL, refresh=True)
        assert len(rag.asked) == 2
        wrong = await bus.run("child", scope=EVE, sources=["rag"])
        with pytest.raises(ScopeConflictError):
            await wrong.before_model_call([user("What?")], model=MODEL, refresh=True)
        assert len(rag.asked) == 2
        assert (await bus.verify("child")).is_clean
