"""A run of many model calls over a real conversation, with retrieval, working memory, state and compactions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from tests.core.conversations import shared_data

import contextbus.client as contextbus
from benchmarks.conversations import read_dicts, write_dicts
from benchmarks.workload import make_candidate
from contextbus.client.given import read_given
from contextbus.core.payload import Payload, Request, assemble
from contextbus.core.targets import find_target
from contextbus.sources.rag import FolderSource
from contextbus_protocol.chat import ChatMessage, ToolCall
from contextbus_protocol.package import CachePrefixCause
from contextbus_protocol.values import EstimatorSpec, Model
from contextbus_protocol.working_memory import AddObservation, RecordAttempt

CALLS: Final = 50
TARGETS: Final = ("anthropic", "openai", "openai-responses", "gemini")
PLAIN: Final = Model("anthropic", "claude-sonnet-4-5", 14_000, 1_000)
BOUND: Final = Model("anthropic", "claude-opus-5-5", 14_000, 1_000)
"""A model that binds its thinking to the prefix: the tail of each step stays in its history (D.F.8)."""

_CONTROL: Final = b',"cache_control":{"type":"ephemeral"}'
_REFRESH_EVERY: Final = 8
_PATCH_EVERY: Final = 3


class Turn(msgspec.Struct, frozen=True):
    """One model call: what is new before it, and what the model answers."""

    new: tuple[ChatMessage, ...]
    answer: ChatMessage


class Script(msgspec.Struct, frozen=True):
    """What a run is made of; ``tools`` is JSON, ``documents`` are titles and texts, ``window`` is in tokens."""

    system: str
    tools: str
    turns: tuple[Turn, ...]
    documents: tuple[tuple[str, str], ...]
    window: int


class CallState(msgspec.Struct, frozen=True):
    """The dynamic state: another one in each step."""

    call: int
    open_question: str
    tens_of_calls: int


class RunStep(msgspec.Struct, frozen=True):
    """What one step of a run sends to each target.

    ``points`` are the requests without their tail: they end at the append point, behind the append block of the step.
    ``blocks`` are the messages of that block, ``tail`` those that follow it.
    """

    cause: CachePrefixCause | None
    is_changed: bool
    requests: Mapping[str, Payload]
    points: Mapping[str, Payload]
    blocks: tuple[ChatMessage, ...]
    tail: tuple[ChatMessage, ...]


def real_script(calls: int = CALLS) -> Script | None:
    """Airline conversations one behind the other, and the documents of a bank; None where they are not at hand."""
    folder = shared_data()
    if folder is None:
        return None
    conversations = _read_lines(folder / "airline" / "conversations.jsonl", "messages")
    system = str(conversations[0][0]["content"])
    said = [message for conversation in conversations for message in conversation if message["role"] != "system"]
    with (folder / "banking" / "documents.jsonl").open(encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    return make_script(
        system, read_given(said), ((d["title"], d["text"]) for d in documents), calls=calls, window=PLAIN.context_window
    )


def made_script(calls: int = CALLS, window: int = 4_000) -> Script:
    """A conversation and documents of our own, smaller than the real ones."""
    said = read_dicts(write_dicts("tool-heavy", 0, 2 * calls))
    documents = [(f"Note {n}", "\n\n".join(_text(f"note-{n}-{m}", n * 31 + m) for m in range(4))) for n in range(24)]
    system = " ".join(_text("rule", seed) for seed in range(4))
    return make_script(system, said, documents, calls=calls, window=window)


def make_script(
    system: str,
    said: Iterable[ChatMessage],
    documents: Iterable[tuple[str, str]],
    *,
    calls: int,
    window: int,
) -> Script:
    """A script of so many model calls: each answer of the assistant is one."""
    turns: list[Turn] = []
    new: list[ChatMessage] = []
    for message in said:
        if message.role == "assistant" and new:
            turns.append(Turn(tuple(new), message))
            new = []
        else:
            new.append(message)
    assert len(turns) >= calls, "the conversation is too short"
    turns = turns[:calls]
    return Script(system, _write_tools(turn.answer for turn in turns), tuple(turns), tuple(documents), window)


def sent_bytes(payload: Payload) -> bytes:
    """A request's JSON without its breakpoints, which each request computes anew: the cache does not compare them."""
    return payload.json().replace(_CONTROL, b"")


def keeps_prefix(before: Payload, after: Payload) -> bool:
    """Whether a request begins with all bytes of an earlier one, but for the ends of its lists."""
    return sent_bytes(after).startswith(sent_bytes(before).rstrip(b"]}"))


async def take_run(
    script: Script,
    model: Model = PLAIN,
    *,
    cache: bool = False,
    tokenizer: str | None = None,
    memories: bool = False,
    name: str = "long",
) -> list[RunStep]:
    """Every step of a run over a script, on a bus in memory.

    Args:
        script: what is said.
        model: the model that the steps are compiled for; its window is the script's.
        cache: ask for a breakpoint behind the system layer and the newest message before each call.
        tokenizer: counts the tokens; without it the characters do.
        memories: write a memory record between two calls.
        name: the run's id.
    """
    model = replace(model, context_window=script.window, max_output_tokens=script.window // 12)
    estimator = None if tokenizer is None else EstimatorSpec(kind="tokenizer", name=tokenizer)
    with tempfile.TemporaryDirectory() as made:
        source = FolderSource(_write_documents(script, made), data=made, id="docs")
        await source.refresh()
        tokenizers = () if tokenizer is None else (tokenizer,)
        async with contextbus.open("memory:", sources=[source], tokenizers=tokenizers) as bus:
            scope = contextbus.Scope(user_id="bench")
            run = await bus.run(
                name,
                scope=scope,
                sources=["docs", "memory"] if memories else ["docs"],
                estimator=estimator,
                budget={"max_tokens": script.window // 10},
                compaction=contextbus.Window(keep_ratio=0.5),
            )
            await run.working_memory.create(
                goal="Answer the customer by the rules.", constraints=["Change nothing without a confirmation."]
            )
            steps: list[RunStep] = []
            for number, turn in enumerate(script.turns):
                await _write_beside(bus, run, scope, number, memories=memories)
                steps.append(await _take_step(run, script, model, number, turn, cache=cache))
            assert (await bus.verify(name)).is_clean
            return steps


async def _write_beside(
    bus: contextbus.ContextBus, run: contextbus.Run, scope: contextbus.Scope, number: int, *, memories: bool
) -> None:
    """What changes between two calls: working memory, and the memory store."""
    if number % _PATCH_EVERY == _PATCH_EVERY - 1:
        snapshot = await run.working_memory.read()
        assert snapshot is not None
        operation = (
            AddObservation(text=f"After {number} calls the customer has confirmed nothing else.")
            if number % 2
            else RecordAttempt(text=f"Looked up what call {number} asked for.", outcome="succeeded")
        )
        state = await run.working_memory.patch(operation, expected_revision=snapshot.revision)
        assert state.status == "applied"
    if memories:
        await bus.memories.remember(f"The customer was called {number} times.", scope=scope)


async def _take_step(
    run: contextbus.Run, script: Script, model: Model, number: int, turn: Turn, *, cache: bool
) -> RunStep:
    run.append(*turn.new[:-1], replace(turn.new[-1], cache=cache))
    prompt = (
        contextbus.Prompt()
        .system(script.system, cache=cache)
        .state(CallState(number, f"question {number // 4}", number // 10))
        .guardrails(output_tag="answer")
        .tools(script.tools)
    )
    step = await run.before_model_call(model=model, prompt=prompt, refresh=number % _REFRESH_EVERY == 0)
    taken = RunStep(
        cause=step.manifest.cache_prefix_cause,
        is_changed=step.manifest.cache_prefix_changed,
        requests={target: step.payload(target) for target in TARGETS},
        points={target: cut_tail(step, target) for target in TARGETS},
        blocks=step.messages_of("append"),
        tail=step.messages_of("ephemeral-tail"),
    )
    await run.after_model_call(contextbus.Report(status="succeeded", messages=[turn.answer]))
    return taken


def cut_tail(step: contextbus.CompiledStep, target: str) -> Payload:
    """The request of a step as it would be without a tail: all up to the append point."""
    return assemble(
        Request(
            history=step.histories[find_target(target, step.model)],
            system=() if step.prompt is None else step.prompt.system,
            blocks=step.messages_of("append"),
            tools=step.tools,
        )
    )


def _write_tools(answers: Iterable[ChatMessage]) -> str:
    """Definitions of the tools that answers call, by the names of the arguments that they call them with."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for answer in answers:
        for part in answer.content:
            if isinstance(part, ToolCall):
                names: dict[str, object] = json.loads(part.arguments)
                found.setdefault(part.name, {}).update({name: {"type": "string"} for name in names})
    return json.dumps(
        [
            {
                "name": name,
                "description": f"{name.replace('_', ' ').capitalize()}.",
                "input_schema": {"type": "object", "properties": properties},
            }
            for name, properties in found.items()
        ]
    )


def _write_documents(script: Script, made: str) -> Path:
    folder = Path(made, "documents")
    folder.mkdir()
    for number, (title, text) in enumerate(script.documents):
        (folder / f"{number:04}.md").write_text(f"# {title}\n\n{text}\n", encoding="utf-8")
    return folder


def _text(source: str, seed: int) -> str:
    return make_candidate(source, seed).text


def _read_lines(path: Path, member: str) -> list[Any]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)[member] for line in file]
