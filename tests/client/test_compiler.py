"""A compiler by itself: refresh, sources, failures, overflow, redaction (D.G, D.I, D.J)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import anyio
import msgspec
import pytest
from tests.client.compiling import BOUND, CHARACTERS, CI, MODEL, QUESTION, TAG, Host, appended, entries, placements
from tests.client.scripted import SCOPE, Scripted, text_of

import contextbus.client as contextbus
from contextbus.sources.accounting import Charge
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, system, user
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.errors import (
    ContextBudgetExceededError,
    InvalidRequestError,
    InvalidTypeError,
    ScopeConflictError,
    SourceFailedError,
)
from contextbus_protocol.package import ContextManifest, ContextWarning, Package
from contextbus_protocol.questions import Accounting, Query
from contextbus_protocol.values import Candidate, Model, ModelPrefix, RefreshOptions, Scope, SourceStatus
from contextbus_protocol.working_memory import Task, TaskList, TasksInput, WorkingMemorySnapshot

BODY = contextbus.candidate("deploy/body", "To deploy, run the pipeline.", 1.0, mandatory=True)


def working_on(task: str) -> WorkingMemorySnapshot:
    tasks = TaskList("Ship.", tuple(Task(name, f"Title of {name}") for name in ("t1", "t2")))
    return contextbus.create_working_memory(scope="acme", now=0, tasks=TasksInput(tasks, active_task_id=task))


class BrokenError(RuntimeError):
    """A source's own."""


@pytest.mark.rule("D.G.5", "D.G.6", "D.G.8", "D.G.9", "D.G.15", "D.G.16", "D.G.19")
async def test_a_task_change_retrieves_after_min_steps() -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag], refresh=RefreshOptions(min_steps=2)))
    told = [
        (await host.turn(working_memory=working_on(task))).manifest.refresh for task in ("t1", "t2", "t2", "t2", "t1")
    ]
    assert told == ["initial", "reused", "task-change", "reused", "task-change"]
    assert [q.text for q in rag.asked] == [f"Title of {t}\n{QUESTION}" for t in ("t1", "t2", "t1")]


@pytest.mark.rule("D.G.7", "D.G.31", "D.H.13", "D.G.21", "D.G.22", "D.D.24", "D.Y.6")
async def test_a_request_waits_for_a_query() -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag]), user("  "))
    blank = await host.turn(refresh=True)
    assert (blank.manifest.refresh, blank.manifest.pass_) == ("initial", 0)
    assert [s.status for s in blank.manifest.sources] == [SourceStatus.SKIPPED]
    assert (rag.asked, host.compiler.state().passes, host.compiler.state().refresh_requested) == ([], 0, True)
    host.history.append(user(QUESTION))
    assert (await host.turn()).manifest.refresh == "initial"
    assert not host.compiler.state().refresh_requested
    assert (await host.turn()).manifest.refresh == "reused"


@pytest.mark.rule("D.A.9", "D.G.16")
async def test_a_query_is_rewritten_only_where_one_is_sent() -> None:
    asked: list[str] = []

    async def rewrite(query: str, step: Any) -> str:
        asked.append(f"{step.step} {query}")
        return "deploy " * 1000

    def measure(query: str, _: object) -> int:
        return len(query)

    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag], rewrite_query=rewrite))
    await host.turn()
    await host.turn()
    assert asked == [f"0 {QUESTION}"]
    assert [q.text for q in rag.asked] == [("deploy " * 1000)[:2000]]
    with pytest.raises(InvalidTypeError, match="rewrite_query"):
        await Host(contextbus.Compiler(sources=[rag], rewrite_query=cast("Any", measure))).compile()


@pytest.mark.rule("D.G.23", "D.G.24", "D.L.5", "D.B.20")
async def test_what_a_source_is_asked() -> None:
    rag = Scripted([CI])
    compiler = contextbus.Compiler(sources=[rag], scope=SCOPE, refresh=RefreshOptions(candidates_per_source=3))

    def account(source: str) -> Accounting:
        return Accounting("r", f"{source}-1")

    await Host(compiler).compile(accounting=account, seconds=4.0)
    (query,) = rag.asked
    assert (query.scope, query.limit, query.accounting) == (SCOPE, 3, Accounting("r", "rag-1"))
    assert 0 < query.seconds_left <= 4.0
    assert not hasattr(query, "recorded_as_of")
    with anyio.fail_after(2.0):
        await Host(contextbus.Compiler(sources=[rag])).compile()
    assert rag.asked[1].seconds_left <= 2.0
    assert rag.asked[1].accounting is None


class Meeting(Scripted):
    """A source that answers once all others were asked."""

    def __init__(self, name: str, everybody: list[Meeting]) -> None:
        super().__init__([contextbus.candidate("r", f"Text of {name}.", 0.5)], id=name)
        self.met = anyio.Event()
        self.everybody = everybody
        everybody.append(self)

    async def query(self, query: Query) -> Sequence[Candidate]:
        self.met.set()
        for other in reversed(self.everybody):
            await other.met.wait()
        return await super().query(query)


@pytest.mark.rule("D.G.25", "D.C.2")
async def test_sources_are_asked_at_once_and_merged_in_their_order() -> None:
    everybody: list[Meeting] = []
    sources = [Meeting(name, everybody) for name in ("c", "a", "b")]
    package = await Host(contextbus.Compiler(sources=sources)).compile()
    assert [e.source for e in package.manifest.entries] == ["c", "a", "b"]


@pytest.mark.rule("D.L.3", "D.L.4", "D.L.5", "D.Y.4")
async def test_unaccounted_usage_warns_once() -> None:
    @contextbus.source(id="rag", kind="rag")
    async def spend(query: Query, *, charge: Charge | None = None) -> list[Candidate]:
        if charge is not None:
            charge(model="embedder", tokens=3)
        return [CI]

    def account(source: str) -> Accounting:
        return Accounting("r", source)

    told: list[ContextWarning] = []
    host = Host(contextbus.Compiler(sources=[spend], on_warning=told.append))
    await host.turn()
    assert told == []
    for _ in range(2):
        await host.turn(refresh=True, accounting=account)
    assert told == [ContextWarning("unaccounted-usage", "rag")]


@pytest.mark.rule("D.G.26", "D.G.29", "D.D.14", "D.D.20", "D.Y.4", "D.D.8")
async def test_an_optional_source_that_fails_warns() -> None:
    told: list[ContextWarning] = []
    rag, docs = Scripted(BrokenError("secret")), Scripted([CI], id="docs")
    compiler = contextbus.Compiler(sources=[rag, docs], on_warning=told.append)
    package = await Host(compiler).compile()
    assert told == [ContextWarning("context-source-failed", "rag", "error")]
    assert tuple(told) == contextbus.context_warnings(package.manifest)
    assert package.manifest.fallback == "source-failed"
    assert entries(package) == [("0", True, "ranked")]
    assert compiler.state().passes == 1
    assert b"secret" not in encode_json(package)


@pytest.mark.rule("D.W.4", "D.S.5")
async def test_whoever_is_told_can_do_no_harm() -> None:
    manifests: list[ContextManifest] = []

    class Telling:
        def compile_finished(self, manifest: ContextManifest, seconds: float) -> None:
            assert seconds >= 0
            manifests.append(manifest)
            raise BrokenError

    async def warn(warning: ContextWarning) -> None:
        raise BrokenError(warning.code)

    rag = Scripted(BrokenError())
    quiet = await Host(contextbus.Compiler(sources=[rag])).compile()
    loud = await Host(contextbus.Compiler(sources=[rag], observer=Telling(), on_warning=warn)).compile()
    assert loud == quiet
    assert manifests == [loud.manifest]


@pytest.mark.rule("D.G.27", "D.T.3", "D.W.2", "D.G.31")
async def test_a_required_source_raises_its_own_error_and_nothing_changes() -> None:
    error = BrokenError("mine")
    first, second = Scripted(error, required=True), Scripted(BrokenError("another"), id="docs", required=True)
    host = Host(contextbus.Compiler(sources=[first, second]))
    before = host.compiler.state()
    with pytest.raises(BrokenError) as raised:
        await host.compile()
    assert raised.value is error
    assert host.compiler.state() == before
    first.answer = second.answer = [CI]
    assert (await host.turn()).manifest.refresh == "initial"
    second.answer = BrokenError("late")
    with pytest.raises(BrokenError):
        await host.compile(refresh=True)
    assert host.compiler.state().passes == 1
    second.answer = [CI]
    assert (await host.turn()).manifest.refresh == "host-request"


@pytest.mark.rule("D.G.27", "D.K.27", "D.T.3", "D.K.21")
async def test_a_required_source_that_raised_nothing_of_its_own() -> None:
    wrong = msgspec.structs.replace(CI, digest=TAG.digest)
    with pytest.raises(InvalidTypeError, match="digest"):
        await Host(contextbus.Compiler(sources=[Scripted([wrong], required=True)])).compile()

    class Hanging(Scripted):
        async def query(self, query: Query) -> Sequence[Candidate]:
            await anyio.sleep_forever()
            return await super().query(query)

    with pytest.raises(SourceFailedError, match="timeout") as late:
        await Host(contextbus.Compiler(sources=[Hanging(required=True)])).compile(seconds=0.01)
    assert (late.value.origin, late.value.origin_code) == ("rag", "timeout")


@pytest.mark.rule("D.W.5", "D.G.27")
async def test_a_cancelled_step_changes_nothing() -> None:
    class Hanging(Scripted):
        async def query(self, query: Query) -> Sequence[Candidate]:
            started.set()
            await anyio.sleep_forever()
            return await super().query(query)

    started = anyio.Event()
    compiler = contextbus.Compiler(sources=[Hanging()])
    before = compiler.state()
    async with anyio.create_task_group() as group:
        group.start_soon(Host(compiler).compile)
        await started.wait()
        with pytest.raises(InvalidRequestError):
            compiler.on_overflow(run_id="r", step=0, input_tokens=1)
        group.cancel_scope.cancel()
    assert compiler.state() == before


@pytest.mark.rule("D.G.3", "D.R.7", "D.R.8")
async def test_steps_never_go_back_and_the_same_step_is_the_same_package() -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag]))
    first = await host.compile(step=3)
    state = host.compiler.state()
    assert await host.compile(step=3) is first
    assert (len(rag.asked), host.compiler.state()) == (1, state)
    host.history[0] = user("How do I roll back?")
    anew = await host.compile(step=3)
    assert (anew.manifest.refresh, anew.manifest.cache_prefix_changed) == ("reused", False)
    assert entries(anew) == [("0", True, "restored")]
    assert host.compiler.state().placed == state.placed
    assert host.compiler.state().blocks == state.blocks
    with pytest.raises(TypeError, match="go back"):
        await host.compile(step=2)


@pytest.mark.rule("D.G.4", "D.T.4", "D.K.20", "D.H.3", "D.B.19")
@pytest.mark.parametrize(
    "options",
    [
        {"sources": [Scripted(), Scripted()]},
        {"sources": [Scripted(id="working-memory")]},
        {"sources": ["rag"]},
        {"state": {"version": 2}},
        {"state": {}},
        {"state": {"version": 1, "passes": "one"}},
        {"state": {"version": 1, "passes": -1}},
        {"state": {"version": 1, "placed": [{"source": "rag"}]}},
        {"state": {"version": True}},
        {"state": 1},
        {"state": []},
        {"budget": {"ratio": 0}},
        {"refresh": RefreshOptions(max_passes=-1)},
        {"scope": Scope()},
    ],
)
def test_malformed_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        contextbus.Compiler(**options)


@pytest.mark.rule("D.G.3", "D.T.4", "D.B.21", "D.N.11", "D.W.6")
@pytest.mark.parametrize(
    "given",
    [
        {"step": -1},
        {"step": True},
        {"overhead_tokens": -1},
        {"model": "gpt-5"},
        {"model": Model("openai", "gpt-5", 1000, cast("Any", None))},
        {"working_memory": {"goal": "x"}},
        {"messages": [1]},
        {"refresh": 1},
        {"tools": [{"nothing": 1}]},
    ],
)
async def test_malformed_input_is_refused_and_changes_nothing(given: dict[str, Any]) -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag]))
    before = host.compiler.state()
    with pytest.raises(TypeError):
        await host.compile(**given)
    assert (rag.asked, host.compiler.state()) == ([], before)
    assert (await host.compile()).manifest.refresh == "initial"


class Pinned(Scripted):
    """A source with a scope of its own."""

    def __init__(self, scope: Scope, fixed: Scope | None = None) -> None:
        super().__init__([CI])
        self.pinned_scope = scope
        self.fixed_scope = fixed


@pytest.mark.rule("D.K.5", "D.K.6", "D.K.7", "D.K.3", "D.K.4")
def test_scopes_of_a_nested_compiler_lie_within_the_parents() -> None:
    parent = Scope(user_id="ada")
    contextbus.Compiler(scope=Scope(user_id="ada", chat_id="1"), sources=[Pinned(parent)], parent_scope=parent)
    contextbus.Compiler(scope=parent, sources=[Pinned(Scope())], parent_scope=parent)
    for scope, pinned in [(None, parent), (Scope(user_id="bob"), Scope()), (Scope(chat_id="1"), parent)]:
        with pytest.raises(ScopeConflictError):
            contextbus.Compiler(scope=scope, sources=[Pinned(pinned)], parent_scope=parent)
    with pytest.raises(TypeError):
        contextbus.Compiler(scope=parent, sources=[Pinned(Scope(user_id="bob"))])
    session = Pinned(Scope(chat_id="1"), Scope(chat_id="1"))  # it reads at its session's, whatever is asked
    contextbus.Compiler(scope=parent, sources=[session])
    with pytest.raises(ScopeConflictError):
        contextbus.Compiler(scope=parent, sources=[session], parent_scope=parent)


@pytest.mark.rule("D.F.8", "D.F.9", "D.F.11", "D.F.12", "D.F.17", "D.G.33", "D.F.5")
async def test_kept_tails_are_part_of_the_prefix_and_never_user_text() -> None:
    for model, kept in ((BOUND, True), (MODEL, False)):
        rag = Scripted([CI])
        host = Host(contextbus.Compiler(sources=[rag]), model=model)
        memory = contextbus.create_working_memory(scope="acme", now=0, goal="Deploy.")
        first = await host.turn(working_memory=memory)
        assert first.manifest.placement.tail_kept is kept
        assert placements(first) == ["append", "ephemeral-tail"]
        second = await host.turn(working_memory=memory, refresh=True)
        assert not second.manifest.cache_prefix_changed
        assert [q.text for q in rag.asked] == [QUESTION, QUESTION]
        without = [m for m in host.history if m not in first.blocks[1].messages]
        changed = await host.compile(working_memory=memory, messages=without)
        assert changed.manifest.cache_prefix_changed is kept


@pytest.mark.rule("D.F.11", "D.F.17")
async def test_a_host_that_drops_a_tail_changes_the_prefix_of_such_a_model() -> None:
    memory = contextbus.create_working_memory(scope="acme", now=0, goal="Deploy.")
    for model, changed in ((BOUND, True), (MODEL, False)):
        host = Host(contextbus.Compiler(sources=[Scripted([CI])]), model=model)
        host.history += appended(await host.compile(working_memory=memory))
        host.step = 1
        assert (await host.compile(working_memory=memory)).manifest.cache_prefix_changed is changed


@pytest.mark.rule("D.F.12")
async def test_further_models_bind_thinking() -> None:
    compiler = contextbus.Compiler(bound_models=[ModelPrefix("openai", "gpt-5")])
    package = await Host(compiler).compile(
        working_memory=contextbus.create_working_memory(scope="acme", now=0, goal="Deploy.")
    )
    assert package.manifest.placement.tail_kept


@pytest.mark.rule("D.F.15", "D.F.22", "D.Y.7", "D.F.4")
async def test_why_the_cached_prefix_changed() -> None:
    tools: list[dict[str, Any]] = [
        {"name": "deploy", "description": "Deploy.", "input_schema": {"type": "object", "properties": {}}}
    ]
    host = Host(contextbus.Compiler(sources=[Scripted([CI])]), system("Be brief."), user(QUESTION))
    causes = [(await host.turn()).manifest.cache_prefix_cause]
    causes.append((await host.turn(model=BOUND, tools=tools)).manifest.cache_prefix_cause)
    causes.append((await host.turn(model=BOUND)).manifest.cache_prefix_cause)
    host.history[0] = system("Be long.")
    causes.append((await host.turn(model=BOUND)).manifest.cache_prefix_cause)
    del host.history[-2:]
    causes.append((await host.turn(model=BOUND)).manifest.cache_prefix_cause)
    causes.append((await host.turn(model=BOUND)).manifest.cache_prefix_cause)
    assert causes == [None, "model", "tools", "system", "history", None]


@pytest.mark.rule("D.I.1", "D.I.2", "D.I.4", "D.D.14")
async def test_an_overflow_compiles_the_step_again_from_what_was_retrieved() -> None:
    rag = Scripted([CI, TAG])
    host = Host(contextbus.Compiler(sources=[rag], estimator=CHARACTERS))
    first = await host.compile()
    smaller = host.compiler.on_overflow(run_id="r", step=0, input_tokens=9 + 4 * 111)
    assert (smaller.manifest.refresh, smaller.manifest.pass_) == ("overflow-retry", 1)
    assert entries(smaller) == [("0", True, "reallocated"), ("1", False, "over-budget")]
    state = host.compiler.state()
    assert [(p.record_id, p.step) for p in state.placed] == [("0", 0)]
    assert (len(state.blocks), state.passes, len(rag.asked)) == (1, 1, 1)
    assert entries(host.compiler.on_overflow(run_id="r", step=0, input_tokens=120_000)) == entries(first)
    host.compiler.on_overflow(run_id="r", step=0, input_tokens=9 + 4 * 111)
    host.take_turn(smaller)
    second = await host.turn()
    assert (second.blocks, second.manifest.cache_prefix_changed) == ((), False)


@pytest.mark.rule("D.I.4", "D.I.1", "D.H.5")
async def test_what_is_compacted_for_an_overflow_returns_with_the_next_step() -> None:
    host = Host(contextbus.Compiler(sources=[Scripted([CI])]))
    await host.turn()
    await host.compile()
    host.history = [user(QUESTION)]
    again = host.compiler.on_overflow(run_id="r", step=1, input_tokens=100_000, messages=host.history)
    assert (entries(again), again.manifest.cache_prefix_cause) == ([], "history")
    host.step = 2
    assert entries(await host.compile()) == [("0", True, "restored")]


@pytest.mark.rule("D.I.3", "D.I.6", "D.T.1")
async def test_an_overflow_that_mandatory_content_does_not_fit() -> None:
    host = Host(contextbus.Compiler(sources=[Scripted([BODY], kind="skills")]))
    with pytest.raises(TypeError):
        host.compiler.on_overflow(run_id="r", step=0, input_tokens=50)
    await host.compile()
    state = host.compiler.state()
    with pytest.raises(ContextBudgetExceededError) as raised:
        host.compiler.on_overflow(run_id="r", step=0, input_tokens=50)
    assert raised.value.phase == "overflow-retry"
    assert host.compiler.state() == state
    for run_id, step in (("other", 0), ("r", 1)):
        with pytest.raises(TypeError):
            host.compiler.on_overflow(run_id=run_id, step=step, input_tokens=5000)


@pytest.mark.rule("D.J.1", "D.J.2", "D.J.3", "D.J.4", "D.J.5", "D.D.17", "D.G.15", "D.Y.2")
async def test_a_redacted_step_asks_again_and_replaces_its_placements() -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag], refresh=RefreshOptions(max_passes=1)))
    await host.turn()
    rag.answer = [CI, TAG]
    forgotten = await host.compile(redacted=True)
    assert entries(forgotten) == [("0", False, "already-placed"), ("1", True, "ranked")]
    rag.answer = [CI]
    again = await host.compile(redacted=True)
    assert (again.manifest.refresh, again.manifest.redacted, again.manifest.pass_) == ("redacted", True, 3)
    assert (entries(again), again.manifest.fallback) == ([("0", False, "already-placed")], None)
    assert [p.record_id for p in host.compiler.state().placed] == ["0"]
    host.take_turn(again)
    host.history[1:2] = []  # and the block of the first step goes as well
    assert entries(await host.compile()) == [("0", True, "restored")]


@pytest.mark.rule("D.J.4")
async def test_after_a_redaction_no_text_from_before_comes_back() -> None:
    rag = Scripted([CI, TAG])
    host = Host(contextbus.Compiler(sources=[rag]))
    await host.turn()
    rag.answer = [CI]
    del host.history[1]
    package = await host.turn(redacted=True)
    assert entries(package) == [("0", True, "ranked")]
    assert package.manifest.cache_prefix_cause == "redacted"
    del host.history[-2:]
    assert entries(await host.compile()) == [("0", True, "restored")]


@pytest.mark.rule("D.H.8", "D.H.7", "D.H.14", "D.D.24", "D.G.14")
async def test_a_restarted_compiler_asks_for_what_is_mandatory_at_once() -> None:
    skills, rag = Scripted([BODY, TAG], id="skills", kind="skills"), Scripted([CI])
    options: dict[str, Any] = {"sources": [rag, skills], "refresh": RefreshOptions(max_passes=1)}
    host = Host(contextbus.Compiler(**options))
    await host.turn()
    del host.history[1]
    host.compiler = contextbus.Compiler(**options, state=msgspec.json.decode(encode_json(host.compiler.state())))

    skills.answer = BrokenError()
    failing = await host.turn()
    assert (failing.manifest.refresh, failing.manifest.fallback, entries(failing)) == ("reused", "source-failed", [])
    skills.answer = [BODY, TAG]
    package = await host.turn()
    assert entries(package) == [("deploy/body", True, "mandatory")]
    assert [(s.source, s.status) for s in package.manifest.sources] == [("skills", SourceStatus.OK)]
    assert (package.manifest.refresh, package.manifest.pass_) == ("reused", 1)
    assert [(q.records, q.only_records) for q in skills.asked[1:]] == [(("deploy/body",), True)] * 2
    assert len(rag.asked) == 1
    assert (await host.turn()).manifest.sources == ()


@pytest.mark.rule("D.H.8", "D.H.14")
async def test_what_its_source_no_longer_has_is_owed_no_more() -> None:
    skills = Scripted([BODY], id="skills", kind="skills")
    host = Host(contextbus.Compiler(sources=[skills]))
    await host.turn()
    del host.history[1]
    host.compiler = contextbus.Compiler(sources=[skills], state=host.compiler.state())
    skills.answer = []
    told = [(await host.turn()).manifest.sources for _ in range(2)]
    assert [[s.status for s in sources] for sources in told] == [[SourceStatus.OK], []]
    assert host.compiler.state().placed == ()


@pytest.mark.rule("D.H.8", "D.K.26")
async def test_a_skill_loaded_since_is_asked_for_once() -> None:
    skills = Scripted([contextbus.candidate("deploy", "deploy: how to deploy", 0.5)], id="skills", kind="skills")
    host = Host(contextbus.Compiler(sources=[skills]))
    await host.turn()
    host.history += load("c1")
    skills.answer = []
    assert (await host.turn()).manifest.sources[0].status is SourceStatus.OK
    assert [(q.records, q.only_records) for q in skills.asked[1:]] == [(("deploy/body",), True)]
    await host.turn()
    assert len(skills.asked) == 2
    assert host.compiler.state().absent == ("deploy/body",)

    host = Host(contextbus.Compiler(sources=[skills]), *host.history)
    skills.answer = [BODY]
    package = await host.turn()
    assert entries(package) == [("deploy/body", True, "mandatory")]
    assert (await host.turn()).manifest.sources == ()


def load(call: str) -> list[ChatMessage]:
    """A call of the tool that loads a skill, and its result."""
    return [
        ChatMessage(role="assistant", content=(ToolCall(call, "load_skill", '{"skill":"deploy"}'),)),
        ChatMessage(role="tool", content=(ToolResult(call, (Text("loaded"),), name="load_skill"),)),
    ]


@pytest.mark.rule("D.H.8", "D.K.26", "D.H.2")
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("call", ["c1", "c2"])
async def test_an_absent_body_is_asked_for_again_once_its_skill_is_loaded_again(restarts: bool, call: str) -> None:
    skills = Scripted(id="skills", kind="skills")
    host = Host(contextbus.Compiler(sources=[skills]))
    await host.turn()
    host.history += load("c1")
    await host.turn()
    await host.turn()
    assert [q.records for q in skills.asked[1:]] == [("deploy/body",)]
    if restarts:
        state = msgspec.json.decode(encode_json(host.compiler.state()))
        host.compiler = contextbus.Compiler(sources=[skills], state=state)
        await host.turn()
        assert len(skills.asked) == 2
    host.history += load(call)
    skills.answer = [BODY]
    assert entries(await host.turn()) == [("deploy/body", True, "mandatory")]
    assert host.compiler.state().absent == host.compiler.state().absent_loads == ()
    assert (await host.turn()).manifest.sources == ()
    assert len(skills.asked) == 3


@pytest.mark.rule("D.H.8", "D.K.26")
async def test_a_body_is_forgotten_to_be_absent_with_its_load() -> None:
    skills = Scripted(id="skills", kind="skills")
    host = Host(contextbus.Compiler(sources=[skills]))
    await host.turn()
    host.history += load("c1")
    await host.turn()
    assert host.compiler.state().absent == ("deploy/body",)
    del host.history[-3:]
    await host.turn()
    assert host.compiler.state().absent == ()


@pytest.mark.rule("D.G.14", "D.H.8", "D.D.25", "D.K.27")
async def test_an_entry_that_nobody_was_asked_for_with_a_query_carries_none() -> None:
    skills, rag = Scripted(id="skills", kind="skills"), Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag, skills]))
    assert [e.query for e in (await host.turn()).manifest.entries] == [QUESTION]
    host.history += load("c1")
    del host.history[1]
    skills.answer = [TAG, BODY]  # more than it was asked for
    package = await host.turn()
    assert package.manifest.refresh == "reused"
    assert entries(package) == [("deploy/body", True, "mandatory"), ("0", True, "restored")]
    assert [e.query for e in package.manifest.entries] == [None, None]
    del host.history[-2:]
    again = await host.turn()
    assert [e.query for e in again.manifest.entries] == [None, None]


@pytest.mark.rule("D.H.10", "D.H.7", "D.C.18", "D.H.5")
async def test_a_record_that_finds_no_room_waits_for_the_next_retrieval() -> None:
    old, new = (contextbus.candidate("0", f"Text {n}.", 0.9, n) for n in (1, 2))
    rag = Scripted([new])
    host = Host(contextbus.Compiler(sources=[rag], estimator=CHARACTERS))
    await host.turn()
    del host.history[1]
    small, overhead = Model("openai", "gpt-5", 2_000, 1_000), 1_000
    told = [entries(await host.turn(model=small, overhead_tokens=overhead)), entries(await host.turn())]
    assert told == [[("0", False, "over-budget")], []]
    rag.answer = [old]  # its revision counts all the same
    assert entries(await host.turn(refresh=True)) == [("0", False, "superseded")]
    rag.answer = [new]
    again = await host.turn(refresh=True, model=small, overhead_tokens=overhead)
    assert entries(again) == [("0", False, "over-budget")]
    assert entries(await host.turn()) == []  # an offer that found no room is no reason to return
    assert entries(await host.turn(refresh=True)) == [("0", True, "ranked")]
    del host.history[-2:]
    assert entries(await host.turn()) == [("0", True, "restored")]


@pytest.mark.rule("D.H.10", "D.F.13", "D.I.2")
async def test_a_record_waits_only_once_something_came_of_the_step() -> None:
    host = Host(contextbus.Compiler(sources=[Scripted([CI])], estimator=CHARACTERS))
    await host.turn()
    del host.history[1]
    given: dict[str, Any] = {"model": Model("openai", "gpt-5", 2_000, 1_000), "overhead_tokens": 1_000}
    assert entries(await host.compile(**given)) == [("0", False, "over-budget")]
    assert entries(await host.compile()) == [("0", True, "restored")]  # the same step with more room
    assert entries(await host.compile(**given)) == [("0", False, "over-budget")]
    host.step += 1  # its call failed
    assert entries(await host.compile()) == [("0", True, "restored")]
    overflown = host.compiler.on_overflow(run_id="r", step=host.step, input_tokens=40)
    assert entries(overflown) == [("0", False, "over-budget")]
    host.take_turn(overflown)
    assert entries(await host.compile()) == []


@pytest.mark.rule("D.H.10", "D.F.13", "D.I.2")
async def test_a_call_that_failed_with_compacted_messages_too_lets_a_record_compete_again() -> None:
    host = Host(contextbus.Compiler(sources=[Scripted([CI])], estimator=CHARACTERS))
    await host.turn()
    del host.history[1]
    given: dict[str, Any] = {"model": Model("openai", "gpt-5", 2_000, 1_000), "overhead_tokens": 1_000}
    assert entries(await host.compile(**given)) == [("0", False, "over-budget")]
    host.history = [user(QUESTION)]
    host.compiler.on_overflow(run_id="r", step=host.step, input_tokens=40, overhead_tokens=0, messages=host.history)
    host.step += 1
    assert entries(await host.compile()) == [("0", True, "restored")]


@pytest.mark.rule("D.C.16", "D.G.23")
async def test_what_is_owed_leaves_room_for_as_many_others_as_ever() -> None:
    skills = Scripted(id="skills", kind="skills")
    host = Host(contextbus.Compiler(sources=[skills], refresh=RefreshOptions(candidates_per_source=1)))
    await host.turn()
    host.history += load("c1")
    skills.answer = [CI, TAG, BODY]
    package = await host.turn(refresh=True)
    assert [(q.limit, q.records) for q in skills.asked] == [(1, ()), (1, ("deploy/body",))]
    assert entries(package) == [("deploy/body", True, "mandatory"), ("0", True, "ranked")]
    assert [(s.truncated, s.excluded) for s in package.manifest.sources] == [(1, 1)]


@pytest.mark.rule("D.H.9", "D.C.18", "D.F.3")
async def test_only_the_newest_placement_of_a_record_returns() -> None:
    old, new = (contextbus.candidate("0", f"Text {n}.", 0.9, n) for n in (1, 2))
    rag = Scripted([old])
    host = Host(contextbus.Compiler(sources=[rag]))
    first = await host.turn()
    rag.answer = [new]
    second = await host.turn(refresh=True)
    for gone, restored in ((appended(first), []), (appended(second), [new])):
        history = [m for m in host.history if m not in gone]
        compiler = contextbus.Compiler(sources=[rag], state=host.compiler.state())
        package = await compiler.before_model_call(run_id="r", step=2, messages=history, model=MODEL)
        assert package.blocks == ()  # nothing at hand
        package = await host.compile(messages=history, step=host.step)
        assert [c.text in text_of(b) for c in restored for b in package.blocks] == [True] * len(restored)
        host.step += 1
    rag.answer = [old]
    compiler = contextbus.Compiler(sources=[rag], state=host.compiler.state())
    package = await compiler.before_model_call(run_id="r", step=9, messages=[user("?")], model=MODEL, refresh=True)
    assert entries(package) == [("0", False, "superseded")]


@pytest.mark.rule("D.F.13", "D.H.6", "D.H.10")
async def test_a_block_that_was_never_placed_competes_again() -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag]))
    await host.compile()
    host.step = 1
    again = await host.turn()
    assert (entries(again), again.manifest.pass_, len(rag.asked)) == ([("0", True, "restored")], 1, 1)
    assert (await host.turn()).blocks == ()


@pytest.mark.rule("D.G.2", "D.G.32", "D.D.19")
async def test_the_clock_is_for_the_observer_alone() -> None:
    class Noting:
        def compile_finished(self, manifest: ContextManifest, seconds: float) -> None:
            spent.append((manifest.run_id, manifest.step, seconds))

    spent: list[tuple[str, int, float]] = []
    packages: list[Package] = []
    for tick in (1.0, 100.0):
        ticks = itertools.count(0.0, tick)
        compiler = contextbus.Compiler(
            sources=[Scripted([CI])],
            budget=contextbus.DEFAULT_CONTEXT_BUDGET,
            refresh=contextbus.DEFAULT_CONTEXT_REFRESH,
            observer=Noting(),
            clock=ticks.__next__,
        )
        packages.append(await Host(compiler).compile())
        packages.append(compiler.on_overflow(run_id="r", step=0, input_tokens=100_000))
    assert packages[:2] == packages[2:]
    assert spent == [("r", 0, 1.0)] * 2 + [("r", 0, 100.0)] * 2


@pytest.mark.rule("D.M.10", "D.M.16")
async def test_the_steps_estimator_kind_wins() -> None:
    host = Host(contextbus.Compiler(estimator_kind="ours"))
    kinds = [(await host.turn(**given)).manifest.estimator.kind for given in ({}, {"estimator_kind": "theirs"})]
    assert kinds == ["ours", "theirs"]


@pytest.mark.rule("D.R.13", "D.H.12", "D.H.1", "D.R.11")
async def test_the_state_names_the_last_package_and_the_host_keeps_it() -> None:
    host = Host(contextbus.Compiler(sources=[Scripted([CI])]))
    package = await host.compile()
    assert host.compiler.state().last_package == digest_bytes(encode_json(package))
    assert CI.text.encode() not in encode_json(host.compiler.state())


@pytest.mark.rule("D.G.5")
async def test_a_request_while_a_step_is_compiled_is_for_the_next() -> None:
    class Asking(Scripted):
        async def query(self, query: Query) -> Sequence[Candidate]:
            compiler.request_refresh()
            return await super().query(query)

    compiler = contextbus.Compiler(sources=[Asking([CI])])
    host = Host(compiler)
    assert [(await host.turn()).manifest.refresh for _ in range(2)] == ["initial", "host-request"]


@pytest.mark.rule("D.G.3", "D.R.7", "D.G.25")
async def test_calls_at_once_are_compiled_one_after_the_other() -> None:
    class Slow(Scripted):
        inside = 0

        async def query(self, query: Query) -> Sequence[Candidate]:
            self.inside += 1
            assert self.inside == 1
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            self.inside -= 1
            return await super().query(query)

    rag = Slow([CI])
    host = Host(contextbus.Compiler(sources=[rag]))
    packages: list[Package] = []

    async def compile_step(step: int) -> None:
        packages.append(await host.compile(step=step, refresh=step == 1))

    async def compile_at_once(*steps: int) -> None:
        async with anyio.create_task_group() as group:
            for step in steps:
                group.start_soon(compile_step, step)

    await compile_at_once(0, 0, 1)
    assert [p.step for p in packages] == [0, 0, 1]
    assert packages[0] is packages[1]
    assert [q.step for q in rag.asked] == [0, 1]
    assert (host.compiler.state().passes, host.compiler.state().last_step) == (2, 1)

    with pytest.raises(ExceptionGroup) as refused:
        await compile_at_once(3, 2)
    assert "go back" in str(refused.value.exceptions[0])
    assert host.compiler.state().last_step == 3


@pytest.mark.rule("D.H.3", "D.H.2")
async def test_a_state_of_a_newer_release_goes_on_as_far_as_it_is_known() -> None:
    host = Host(contextbus.Compiler(sources=[Scripted([CI])]))
    await host.turn()
    state = msgspec.json.decode(encode_json(host.compiler.state()))
    grown = state | {"novelty": 1, "blocks": [block | {"colour": "red"} for block in state["blocks"]]}
    assert contextbus.Compiler(sources=[Scripted()], state=grown).state() == host.compiler.state()
    with pytest.raises(InvalidTypeError, match="version 1"):
        contextbus.Compiler(state=grown | {"version": 2})


@pytest.mark.rule("D.K.27", "D.C.4", "D.K.21", "D.C.17", "D.C.18", "D.G.26")
@pytest.mark.parametrize(
    "found",
    [
        "deploy",
        {"0": CI},
        [None],
        [CI, {"record_id": "1", "text": "a"}],
        [msgspec.structs.replace(CI, score=float("nan"))],
        [msgspec.structs.replace(CI, score=cast("Any", "high"))],
        [msgspec.structs.replace(CI, record_id=cast("Any", ["0"]))],
        [msgspec.structs.replace(CI, record_id="\ud800")],
        [msgspec.structs.replace(CI, record_id="")],
        [msgspec.structs.replace(CI, text="Another text.")],
        [msgspec.structs.replace(CI, revision=-1)],
        [msgspec.structs.replace(CI, mandatory=cast("Any", 1))],
    ],
)
async def test_a_hostile_answer_fails_its_source_alone(found: Any) -> None:
    told: list[ContextWarning] = []
    sources = [Scripted(found), Scripted([TAG], id="docs")]
    host = Host(contextbus.Compiler(sources=sources, on_warning=told.append))
    package = await host.turn()
    assert entries(package) == [("1", True, "ranked")]
    assert told == [ContextWarning("context-source-failed", "rag", "malformed")]
    assert (await host.turn()).manifest.refresh == "reused"


@pytest.mark.rule("D.C.16", "D.K.27")
async def test_a_source_that_says_one_record_over_and_over_gets_no_more_than_its_limit() -> None:
    copies = [contextbus.candidate("deploy/body", f"Text {n}.", 0.5, n) for n in range(50)]
    skills = Scripted(copies, id="skills", kind="skills")
    options = RefreshOptions(candidates_per_source=3)
    host = Host(contextbus.Compiler(sources=[skills], refresh=options), user(QUESTION), *load("c1"))
    package = await host.compile()
    assert len(package.manifest.entries) == 4
    assert [(s.truncated, s.excluded) for s in package.manifest.sources] == [(46, 49)]
