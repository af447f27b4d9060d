"""Prompts and hooks of a compiler without a run: counted, placed and compared as in a run (P.A.3, P.A.6, P.D)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.compiling import BOUND, CHARACTERS, CI, MODEL, QUESTION, TAG, Host, appended, entries, placements
from tests.client.scripted import SCOPE, Scripted, bus_with, text_in

import contextbus.client as contextbus
from contextbus.client import CompileContext
from contextbus.core.estimate import make_estimator
from contextbus_protocol.chat import ChatMessage, assistant, system, user
from contextbus_protocol.codec import encode_json
from contextbus_protocol.errors import CallbackTimeoutError, InvalidRequestError, InvalidTypeError
from contextbus_protocol.package import ContextWarning, Package
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Candidate, Model, ModelPrefix
from contextbus_protocol.working_memory import WorkingMemorySnapshot

HAIKU = Model("anthropic", "claude-haiku-4-5", 200_000, 8_000)
STATE = user("<dynamic_state>\n  <file>a.py</file>\n</dynamic_state>")
RULE = user("Answer inside <answer>.")
TERSE = system("You are terse.")
FILE: dict[str, object] = {"type": "object", "properties": {"file": {"type": "string"}}}
PARTS = PromptParts(system=(TERSE,), state=(STATE,), guardrails=(RULE,))
IN_SYSTEM = PromptParts(system=(TERSE, system("<dynamic_state>1</dynamic_state>")), state_in_system=True)
GOLDEN = {
    "version": 1,
    "passes": 1,
    "lastStep": 0,
    "lastRefreshStep": 0,
    "placed": [
        {
            "source": "rag",
            "recordId": "0",
            "digest": "sha256:cc3add54a0f14586a23ccf1084e71eaafcfa89f4924230e93dc96350ea8c7a41",
            "step": 0,
            "pass": 1,
            "tokens": 22,
        }
    ],
    "blocks": [
        {
            "placement": "append",
            "digest": "sha256:82c3845463107f6fd360f2ae06e8fa13af1c44f1f05ef4af96d9d01976d73f5b",
            "step": 0,
            "pass": 1,
        }
    ],
    "lastPackage": "sha256:5abd4492725004057042dd43cff6127b3da0cfe4456444a40bff2f3b219295a2",
    "prefix": {
        "model": "sha256:6bacb29af5a9259de406d0ea209337767155b3549fbba949837bf89967603fe2",
        "system": "sha256:c5d97ad7073614cc844333765003ea5821831e3fe0e1a4ace5db56844b67120f",
        "history": "sha256:95e3bb5bd1b7111ad52f5bef7bcb8ed1c8d4a61be0eec673fcb0e3efc664b640",
        "count": 3,
    },
}
"""What a compiler gave after one step over a system message and the question, before there were prompts."""


def compiler(*offers: Candidate, **options: Any) -> contextbus.Compiler:
    return contextbus.Compiler(sources=[Scripted(offers)], estimator=CHARACTERS, **options)


def tail_of(package: Package) -> list[str]:
    return [text_in(m) for b in package.blocks if b.placement == "ephemeral-tail" for m in b.messages]


def sent_texts(one: contextbus.Compiler) -> list[str]:
    """The texts of the last request in their order, each message with one."""
    return [message["content"] for message in json.loads(one.payload("openai").json())["messages"]]


def texts(host: Host) -> list[str]:
    return sent_texts(host.compiler)


def costs(*messages: ChatMessage) -> int:
    return -(-sum(map(make_estimator(CHARACTERS).message, messages)) // 18)


def snapshot() -> WorkingMemorySnapshot:
    return contextbus.create_working_memory(scope="acme", now=0, goal="Ship it.")


@pytest.mark.rule("P.A.3", "P.A.6", "D.F.21", "D.B.3")
async def test_a_prompts_parts_stand_in_their_order_and_are_counted_before_the_selection() -> None:
    host = Host(compiler(CI), system("You deploy."), user(QUESTION))
    package = await host.compile(prompt=PARTS, working_memory=snapshot(), overhead_tokens=7)
    assert placements(package) == ["append", "ephemeral-tail"]
    assert tail_of(package)[0].startswith("<working_memory")
    assert tail_of(package)[1:] == [text_in(STATE), text_in(RULE)]
    (block,) = appended(package)
    assert texts(host) == ["You deploy.", "You are terse.", QUESTION, text_in(block), *tail_of(package)]
    assert package.manifest.budget.used_tokens == costs(*host.history, TERSE, STATE, RULE) + 7


@pytest.mark.rule("P.A.6", "D.B.3")
async def test_a_record_that_the_prompt_leaves_no_room_for_stays_out() -> None:
    narrow = Model("openai", "gpt-5", 2_000, 1_000)
    host = Host(compiler(CI), model=narrow)
    long = PromptParts(guardrails=(user("a" * 3_400),))
    assert entries(await host.compile(prompt=long)) == [("0", False, "over-budget")]
    assert entries(await host.compile(step=1, refresh=True)) == [("0", True, "ranked")]


@pytest.mark.rule("P.A.3", "D.F.5")
async def test_a_prompt_alone_is_a_tail_that_is_gone_with_the_next_request() -> None:
    host = Host(compiler())
    package = await host.turn(prompt=PARTS)
    assert (placements(package), package.manifest.placement.tail) == (["ephemeral-tail"], True)
    package = await host.turn()
    assert (placements(package), package.manifest.placement.tail) == ([], False)
    assert texts(host) == [QUESTION, "Turn 0."]
    assert package.manifest.cache_prefix_cause == "system"


@pytest.mark.rule("D.F.22", "P.A.4", "D.H.2")
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_changed_system_layer_is_the_cause_and_a_changed_tail_is_none(restarts: bool) -> None:
    host = Host(compiler())

    async def turn(prompt: PromptParts | None) -> str | None:
        if restarts:
            host.compiler = compiler(state=msgspec.json.decode(encode_json(host.compiler.state())))
        return (await host.turn(prompt=prompt)).manifest.cache_prefix_cause

    assert await turn(PARTS) is None
    assert await turn(PromptParts(system=(TERSE,), state=(user("other"),), prefill="So:")) is None
    assert await turn(PromptParts(system=(system("You are verbose."),))) == "system"
    assert await turn(None) == "system"
    assert await turn(None) is None


@pytest.mark.rule("D.H.2", "D.H.13", "D.F.22")
@pytest.mark.parametrize(("prompt", "cause"), [(None, None), (PromptParts(state=(STATE,)), None), (PARTS, "system")])
async def test_a_state_of_an_earlier_release_loads_and_compares_as_one_without_a_prompt(
    prompt: PromptParts | None, cause: str | None
) -> None:
    host = Host(compiler(CI), system("Sys."), user(QUESTION))
    await host.turn()
    assert msgspec.json.decode(encode_json(host.compiler.state())) == GOLDEN
    host.compiler = compiler(state=GOLDEN)
    assert msgspec.json.decode(encode_json(host.compiler.state())) == GOLDEN
    package = await host.compile(prompt=prompt)
    assert (package.manifest.refresh, package.manifest.cache_prefix_cause) == ("reused", cause)


@pytest.mark.rule("P.B.4", "D.W.1")
@pytest.mark.parametrize("restarts", [False, True])
async def test_state_in_the_system_layer_warns_once(restarts: bool) -> None:
    told: list[str] = []

    def tell(warning: ContextWarning) -> None:
        told.append(warning.code)

    def made(state: object = None) -> contextbus.Compiler:
        return compiler(on_warning=tell, state=state)

    host = Host(made())
    await host.turn(prompt=PARTS)
    assert told == []
    for _ in range(2):
        await host.turn(prompt=IN_SYSTEM)
        host.compiler.on_overflow(run_id="r", step=host.step - 1, input_tokens=50_000)
        if restarts:
            host.compiler = made(msgspec.json.decode(encode_json(host.compiler.state())))
    assert told == ["state-in-system"]


@pytest.mark.rule("P.C.2", "P.C.4", "P.C.3")
@pytest.mark.parametrize(
    ("model", "thinking", "bound", "is_sent"),
    [
        (HAIKU, False, (), True),
        (HAIKU, True, (), False),
        (HAIKU, False, (ModelPrefix("anthropic", "claude-haiku"),), False),
        (BOUND, False, (), False),
        (MODEL, False, (), False),
    ],
)
async def test_a_prefill_is_the_packages_where_the_model_takes_it_and_counted_either_way(
    model: Model, thinking: bool, bound: tuple[ModelPrefix, ...], is_sent: bool
) -> None:
    host = Host(compiler(bound_models=bound), model=model)
    prompt = PromptParts(guardrails=(RULE,), prefill="<answer>\n1. ", thinking=thinking)
    package = await host.compile(prompt=prompt)
    used = package.manifest.budget.used_tokens
    if is_sent:
        assert (package.prefill, tail_of(package)) == ("<answer>\n1. ", [text_in(RULE)])
        assert used == costs(user(QUESTION), RULE, assistant("<answer>\n1. "))
        body = json.loads(host.compiler.payload().json())
        assert body["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "<answer>\n1."}]}
    else:
        assert package.prefill is None
        assert "&lt;answer&gt;" in tail_of(package)[-1]
        assert used == costs(user(QUESTION), *map(user, tail_of(package)))
    assert await host.compile(prompt=prompt) is package


@pytest.mark.rule("D.F.11", "D.F.17", "D.F.20", "D.F.21", "D.G.18")
async def test_on_a_bound_model_all_of_the_tail_belongs_to_what_is_kept() -> None:
    rag = Scripted([CI])
    host = Host(contextbus.Compiler(sources=[rag]), model=BOUND)
    for number in range(3):
        prompt = PromptParts(system=(TERSE,), state=(user(f"state {number}"),), guardrails=(RULE,))
        package = await host.turn(prompt=prompt, working_memory=snapshot(), refresh=True)
        assert (package.manifest.placement.tail_kept, package.manifest.cache_prefix_cause) == (True, None)
    assert [q.text for q in rag.asked] == [QUESTION] * 3
    host.history = [m for m in host.history if "state 1" not in text_in(m)]
    assert (await host.compile(prompt=PARTS)).manifest.cache_prefix_cause == "history"


@pytest.mark.rule("D.R.7", "D.G.3")
async def test_a_step_is_reopened_for_the_same_prompt_alone() -> None:
    asked = Scripted([CI])
    calls: list[int] = []
    host = Host(contextbus.Compiler(sources=[asked], before_compile=lambda context: calls.append(context.step)))
    first = await host.compile(prompt=PARTS)
    assert await host.compile(prompt=msgspec.structs.replace(PARTS)) is first
    assert (len(asked.asked), calls) == (1, [0])
    other = await host.compile(prompt=PromptParts(state=(user("later"),)))
    assert tail_of(other) == ["later"]
    assert [text_in(m) for m in appended(other)] == [text_in(m) for m in appended(first)]
    assert calls == [0, 0]
    assert "You are terse." not in texts(host)


@pytest.mark.rule("D.I.1", "D.I.4", "P.D.1")
async def test_an_overflow_keeps_the_prompt_of_its_step_or_takes_another() -> None:
    calls: list[int] = []

    def before(context: CompileContext) -> str:
        calls.append(context.step)
        return "snippet"

    host = Host(compiler(CI, before_compile=before), model=HAIKU)
    prompt = PromptParts(system=(TERSE,), state=(STATE,), guardrails=(RULE,), prefill="So:")
    first = await host.compile(prompt=prompt)
    smaller = host.compiler.on_overflow(run_id="r", step=0, input_tokens=60_000)
    assert (tail_of(smaller), smaller.prefill) == (tail_of(first), "So:")
    assert smaller.manifest.budget.used_tokens == first.manifest.budget.used_tokens
    assert texts(host)[0] == "You are terse."
    other = host.compiler.on_overflow(run_id="r", step=0, input_tokens=60_000, prompt=PromptParts(state=(STATE,)))
    assert (tail_of(other)[:1], other.prefill) == ([text_in(STATE)], None)
    assert "snippet" in tail_of(other)[1]
    assert texts(host)[0] == QUESTION
    assert calls == [0]
    assert await host.compile(prompt=PromptParts(state=(STATE,))) is other
    assert await host.compile(prompt=prompt) not in (smaller, other)
    assert texts(host)[0] == "You are terse."


@pytest.mark.rule("P.A.1", "P.D.4")
async def test_a_built_prompt_brings_its_history_tools_and_state() -> None:
    seen: list[CompileContext] = []
    one = contextbus.Compiler(before_compile=cast("Any", seen.append))
    tool: dict[str, object] = {
        "name": "look",
        "description": "Look.",
        "input_schema": {"type": "object", "properties": {}},
    }
    prompt = contextbus.Prompt().system("You are terse.").history([user(QUESTION)])
    prompt = prompt.state({"file": "a"}, FILE).tools([tool])
    package = await one.before_model_call(run_id="r", step=0, model=MODEL, prompt=prompt)
    assert sent_texts(one)[:2] == ["You are terse.", QUESTION]
    assert "<file>a</file>" in tail_of(package)[0]
    (context,) = seen
    assert (context.state, context.system, context.history) == ({"file": "a"}, (TERSE,), (user(QUESTION),))
    assert context.state_xml == tail_of(package)[0]
    longer = prompt.history([user(QUESTION), assistant("So."), user("And?")])
    second = await one.before_model_call(run_id="r", step=1, model=MODEL, prompt=longer.tools(None))
    assert second.manifest.cache_prefix_cause == "tools"
    shorter = one.on_overflow(run_id="r", step=1, input_tokens=50_000, prompt=prompt)
    assert shorter.manifest.budget.used_tokens == package.manifest.budget.used_tokens
    with pytest.raises(InvalidTypeError, match="messages"):
        await one.before_model_call(run_id="r", step=2, model=MODEL)
    with pytest.raises(InvalidTypeError, match="prompt"):
        await one.before_model_call(run_id="r", step=2, model=MODEL, messages=[user("a")], prompt=cast("Any", "You"))


@pytest.mark.rule("P.D.1", "P.A.3", "P.A.6", "P.D.2", "P.D.4")
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_before_compile_gives_stands_escaped_between_state_and_guardrails(is_async: bool) -> None:
    seen: list[CompileContext] = []

    def before(context: CompileContext) -> str:
        seen.append(context)
        return 'Snippet: a < b && "c"'

    async def later(context: CompileContext) -> str:
        await asyncio.sleep(0)
        return before(context)

    host = Host(compiler(CI, before_compile=later if is_async else before), system("Sys."), user(QUESTION))
    package = await host.turn(prompt=PARTS)
    implicit = "<implicit_context>\nSnippet: a &lt; b &amp;&amp; &quot;c&quot;\n</implicit_context>"
    assert tail_of(package) == [text_in(STATE), implicit, text_in(RULE)]
    used = costs(system("Sys."), user(QUESTION), TERSE, STATE, user(implicit), RULE)
    assert package.manifest.budget.used_tokens == used
    await host.turn(prompt=PARTS)
    first, second = seen
    assert (first.run, first.step, first.model, first.state_xml) == ("r", 0, MODEL, text_in(STATE))
    assert (first.system, first.history) == ((system("Sys."), TERSE), (user(QUESTION),))
    assert second.history == (user(QUESTION), assistant("Turn 0."))  # without our blocks
    with pytest.raises(AttributeError):
        first.step = 3  # type: ignore[misc]


@pytest.mark.rule("P.D.1")
@pytest.mark.parametrize("text", [None, ""])
async def test_nothing_and_an_empty_text_add_nothing(text: str | None) -> None:
    def before(_: CompileContext) -> str | None:
        return text

    host = Host(compiler(CI, before_compile=before))
    assert await host.compile() == await Host(compiler(CI)).compile()


@pytest.mark.rule("P.D.4", "D.F.22", "D.F.15")
async def test_a_transformed_history_is_what_is_sent_and_the_hosts_list_stays_its_own() -> None:
    rag = Scripted([CI])
    shorten = False

    def transform(messages: tuple[ChatMessage, ...]) -> Sequence[ChatMessage]:
        assert all("<retrieved" not in text_in(m) for m in messages)
        return messages[2:] if shorten else messages

    made = contextbus.Compiler(sources=[rag], estimator=CHARACTERS, transform_context=transform)
    host = Host(made, user("One?"), assistant("1"), user("How?"))
    block = text_in(appended(await host.turn())[0])
    host.history.append(user("And?"))
    shorten, rag.answer = True, ()
    package = await host.turn()
    assert texts(host) == ["How?", block, "Turn 0.", "And?"]
    assert package.manifest.cache_prefix_cause == "history"
    assert package.manifest.budget.used_tokens == costs(*map(user, texts(host)))
    host.history.append(user("More?"))
    assert (await host.turn()).manifest.cache_prefix_cause is None  # shortened alike, it begins as the last one did
    shorten = False
    host.history.append(user("Then?"))
    assert (await host.turn()).manifest.cache_prefix_cause == "history"
    assert texts(host)[:4] == ["One?", "1", "How?", block]
    assert len(rag.asked) == 1  # the block stood all the time


@pytest.mark.rule("P.D.4", "D.A.9")
async def test_hooks_run_in_their_order_before_the_selection_each_on_what_the_one_before_gave() -> None:
    order: list[str] = []

    def note(name: str, gives: Callable[[Any], object]) -> Callable[..., object]:
        def function(value: object, *_: object) -> object:
            order.append(name)
            return gives(value)

        return function

    class Asked(Scripted):
        async def query(self, query: Any) -> Sequence[Candidate]:
            order.append(f"source: {query.text}")
            return [CI]

    made = contextbus.Compiler(
        sources=[Asked()],
        before_compile=cast("Any", note("before_compile", lambda context: context.history[0].content[0].text)),
        transform_context=cast("Any", note("transform_context", lambda given: [*given, user("Transformed?")])),
        rewrite_query=cast("Any", note("rewrite_query", lambda query: query.upper())),
    )
    host = Host(made, user("Asked?"))
    package = await host.turn()
    assert order == ["before_compile", "transform_context", "rewrite_query", "source: TRANSFORMED?"]
    assert texts(host)[:2] == ["Asked?", "Transformed?"]
    assert tail_of(package) == ["<implicit_context>\nAsked?\n</implicit_context>"]


@pytest.mark.rule("P.D.3", "D.W.2", "D.G.27")
@pytest.mark.parametrize("name", ["before_compile", "transform_context"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_hook_that_raises_fails_the_compile_with_its_own_exception_and_changes_nothing(
    name: str, is_async: bool
) -> None:
    raised: list[Exception] = []

    def work_or_fail(given: object) -> Any:
        if raised:
            raise raised[0]
        return given if name == "transform_context" else None

    async def later(given: object) -> Any:
        await asyncio.sleep(0)
        return work_or_fail(given)

    rag = Scripted([CI])
    options: dict[str, Any] = {name: later if is_async else work_or_fail}
    host = Host(contextbus.Compiler(sources=[rag], estimator=CHARACTERS, **options))
    await host.turn(prompt=PARTS)
    state, sent = host.compiler.state(), host.compiler.payload()
    raised.append(TimeoutError("mine"))
    with pytest.raises(TimeoutError) as caught:
        await host.compile(prompt=IN_SYSTEM)
    assert caught.value is raised[0]
    assert (host.compiler.state(), host.compiler.payload().json(), len(rag.asked)) == (state, sent.json(), 1)
    with pytest.raises(TimeoutError):
        await host.compile(refresh=True)
    raised.clear()
    assert (await host.compile()).manifest.refresh == "host-request"  # what was due stays due


@pytest.mark.rule("P.D.3", "P.D.4", "P.D.1")
@pytest.mark.parametrize(
    ("name", "gives"),
    [
        *(("transform_context", gives) for gives in ([], "text", None, [{"role": "nobody"}], 5)),
        *(("before_compile", gives) for gives in (5, b"text", ["text"])),
    ],
)
async def test_what_no_request_can_be_made_of_is_refused(name: str, gives: object) -> None:
    def give(_: object) -> object:
        return gives

    host = Host(compiler(CI, **{name: give}))
    with pytest.raises(InvalidTypeError):
        await host.compile()
    assert host.compiler.state() == compiler().state()


@pytest.mark.rule("P.D.2", "D.W.4")
@pytest.mark.parametrize("name", ["before_compile", "transform_context", "rewrite_query"])
async def test_a_hook_has_a_deadline(name: str) -> None:
    async def hang(*_: object) -> Any:
        await anyio.sleep(60)

    host = Host(compiler(CI, **{name: hang}))
    with pytest.raises(CallbackTimeoutError) as caught:
        await host.compile(seconds=0.05)
    assert caught.value.origin == name
    assert host.compiler.state() == compiler().state()


@pytest.mark.rule("D.I.1", "P.D.4")
async def test_an_overflow_keeps_what_was_transformed_and_takes_no_messages_past_the_hook() -> None:
    def drop_first(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
        return messages[1:]

    host = Host(compiler(CI, transform_context=drop_first), user("secret"), user(QUESTION))
    first = await host.compile()
    assert texts(host)[0] == QUESTION
    again = host.compiler.on_overflow(run_id="r", step=0, input_tokens=60_000, messages=host.history)
    assert texts(host)[0] == QUESTION
    assert again.manifest.budget.used_tokens == first.manifest.budget.used_tokens
    with pytest.raises(InvalidRequestError, match="transform_context"):
        host.compiler.on_overflow(run_id="r", step=0, input_tokens=60_000, messages=[user("secret"), user("Short?")])
    assert texts(host)[0] == QUESTION


@pytest.mark.rule("P.A.3", "D.J.4")
async def test_there_is_no_request_before_a_step_or_after_a_redaction_that_failed() -> None:
    broken = Scripted([CI], required=True)
    host = Host(contextbus.Compiler(sources=[broken]))
    with pytest.raises(InvalidRequestError):
        host.compiler.payload()
    await host.compile()
    assert texts(host)[0] == QUESTION
    broken.answer = RuntimeError("down")
    with pytest.raises(RuntimeError):
        await host.compile(redacted=True)
    with pytest.raises(InvalidRequestError):
        host.compiler.payload()


class Turn(msgspec.Struct, frozen=True):
    """What a host does for one model call; the hooks give ``snippet`` and leave out ``dropped`` messages."""

    offers: tuple[Candidate, ...]
    prompt: PromptParts | None
    snippet: str | None
    dropped: int
    refresh: bool
    question: str | None


LAYERS = st.sampled_from([(), (TERSE,), (TERSE, system("Speak German."))])
PROMPTS = st.builds(
    PromptParts,
    system=LAYERS,
    state=st.sampled_from([(), (STATE,), (user("other state"),)]),
    guardrails=st.sampled_from([(), (RULE,)]),
    prefill=st.sampled_from([None, "So: ", " "]),
    thinking=st.booleans(),
)
TURNS = st.lists(
    st.builds(
        Turn,
        st.lists(st.sampled_from([CI, TAG]), max_size=2, unique=True).map(tuple),
        st.none() | PROMPTS,
        st.sampled_from([None, "", "a < b"]),
        st.sampled_from([0, 0, 1, 2]),
        st.booleans(),
        st.sampled_from([None, "And back?"]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.rule("P.A.3", "P.A.6", "P.D.4", "D.F.22", "D.F.21")
@settings(max_examples=40, deadline=None)
@given(TURNS, st.sampled_from([MODEL, HAIKU, BOUND]), st.booleans())
def test_a_run_and_a_compiler_send_the_same(turns: list[Turn], model: Model, remembers: bool) -> None:
    async def compare() -> None:
        turn = turns[0]

        def before(_: CompileContext) -> str | None:
            return turn.snippet

        def transform(messages: tuple[ChatMessage, ...]) -> Sequence[ChatMessage]:
            return messages[min(turn.dropped, len(messages) - 1) :]

        one, other = Scripted(), Scripted()
        made = contextbus.Compiler(
            sources=[other], estimator=CHARACTERS, before_compile=before, transform_context=transform
        )
        host = Host(made, model=model)
        async with bus_with(one) as bus:
            run = await bus.run(
                "r",
                scope=SCOPE,
                sources=["rag"],
                estimator=CHARACTERS,
                before_compile=before,
                transform_context=transform,
            )
            memory = await run.working_memory.create(goal="Ship it.") if remembers else None
            run.append(user(QUESTION))
            for turn in turns:
                if turn.question is not None:
                    run.append(user(turn.question))
                    host.history.append(user(turn.question))
                one.answer = other.answer = turn.offers
                step = await run.before_model_call(model=model, prompt=turn.prompt, refresh=turn.refresh)
                package = await host.compile(prompt=turn.prompt, refresh=turn.refresh, working_memory=memory)
                assert package.blocks == step.blocks
                assert package.prefill == step.package.prefill
                assert package.manifest.entries == step.package.manifest.entries
                assert package.manifest.budget == step.manifest.budget
                assert package.manifest.cache_prefix_cause == step.manifest.cache_prefix_cause
                assert host.compiler.payload().json() == step.payload().json()
                host.take_turn(package)
                report = contextbus.Report(status="succeeded", messages=[host.history[-1]])
                await run.after_model_call(report)
            assert (await bus.verify("r")).is_clean

    asyncio.run(compare())
