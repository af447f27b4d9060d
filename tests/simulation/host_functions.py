"""What a simulated step holds is what the host of its own command gave: hooks, prompts, nothing of another's."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from contextbus.core.projection import history_state
from contextbus.core.prompt import implicit_message
from contextbus.core.run import fold_event
from contextbus.core.run_state import RunState
from contextbus.replay.run_log import RunLog
from contextbus_protocol import blobs, codec
from contextbus_protocol.callbacks import CallbackAnswered
from contextbus_protocol.chat import ChatMessage, user
from contextbus_protocol.events import PreparedFact, PromptFact, StepCompiled
from contextbus_protocol.package import Package
from contextbus_protocol.prompt import PromptParts
from tests.simulation.clients import Client
from tests.simulation.scripts import transformed_text
from tests.simulation.world import World


def check_callbacks(world: World, log: RunLog, clients: list[Client]) -> None:
    """A step is made with what the functions of its own command gave, all of it and nothing else (D.W.4)."""
    functions = {command: names for c in clients for command, names in c.functions.items()}
    given = {command: answers for c in clients for command, answers in c.given.items()}
    state = RunState(log.run)
    for logged in log.commits:
        command = logged.commit.command
        for step in logged.commit.events:
            before = state
            state = fold_event(state, step, logged.sequence, logged.digest, command, logged.commit.at)
            if not isinstance(step, StepCompiled) or step.overflow is not None:
                continue
            names = functions[command]
            answers = [a for a in given.get(command, []) if a.code is None]
            data = world.server.blobs.get((log.run, step.package))
            output = None if data is None else blobs.decode_output(data)
            if output is not None and output.prepared is not None and "transformed for" in str(output.prepared):
                wanted = (user(transformed_text(history_state(before))),)
                assert output.prepared == wanted, f"{command} sends what was made of another history"
            changed = [a for a in _changes_of(answers) if _is_prepared_by(step, output, a)]
            untouched = step.prepared is None and (output is None or output.prepared is None)
            may = "prepare-step" in names or "transform-context" in names
            assert changed if may else untouched, f"{command} is prepared by nobody of its own"
            queries = {(a.text or "")[:2000] for a in answers if a.name == "rewrite-query"}
            assert step.rewritten <= bool(queries), f"{command} has a query that nobody made"
            assert step.rewritten or not ("rewrite-query" in names and step.query_length), f"{command} asked its own"
            made = output is None or not step.rewritten or output.query in queries | {""}
            assert made, f"{command} asked something else"


def _changes_of(answers: list[CallbackAnswered]) -> Iterator[CallbackAnswered]:
    """What the answers of ``prepare_step`` and ``transform_context`` may come to together."""
    nothing = CallbackAnswered(run="", token="", name="prepare-step")
    prepared = [a for a in answers if a.name == "prepare-step"] or [nothing]
    transformed = [a for a in answers if a.name == "transform-context"] or [nothing]
    for first in prepared:
        for second in transformed:
            yield first if second.messages is None else msgspec.structs.replace(first, messages=second.messages)


def check_prompts(world: World, log: RunLog, clients: list[Client]) -> None:
    """A step's tail ends with what the prompt of its own command and ``before_compile`` gave, in order (P.A.3)."""
    prompts = {command: parts for c in clients for command, parts in c.prompts.items()}
    given = {command: answers for c in clients for command, answers in c.given.items()}
    for logged in log.commits:
        for step in logged.commit.events:
            if not isinstance(step, StepCompiled) or step.overflow is not None:
                continue
            command, parts = logged.commit.command, prompts[logged.commit.command]
            texts = [a.text for a in given.get(command, []) if a.name == "before-compile" and a.code is None]
            fact = step.prompt
            if fact is None:
                assert parts is None, f"{command} lost its prompt"
                continue
            assert parts is not None or fact.implicit, f"{command} has a prompt of nobody"
            assert not fact.implicit or any(texts), f"{command} has a text of nobody"
            data = world.server.blobs.get((log.run, step.package))
            if data is None:
                continue
            package = codec.decode_json(bytes(blobs.decode_output(data).package), Package)
            implicit = tuple(implicit_message(text) for text in texts if text)
            check_tail(parts or PromptParts(), fact, package, command, implicit)
            assert fact.layer is None or (log.run, fact.layer) in world.server.blobs, f"{command} lost its layer"


def check_tail(
    parts: PromptParts, fact: PromptFact, package: Package, command: str, implicit: tuple[ChatMessage, ...]
) -> None:
    """The tail of a package is working memory and then the prompt's messages."""
    tail = [m for block in package.blocks if block.placement == "ephemeral-tail" for m in block.messages]
    rest = tail[1:] if tail and "<working_memory" in str(tail[0]) else tail
    wanted = [*parts.state, *([None] if fact.implicit else []), *parts.guardrails]
    wanted += [None] if fact.prefill == "degraded" else []
    assert len(rest) == len(wanted), f"{command} has {len(rest)} messages of a prompt, not {len(wanted)}"
    for message, expected in zip(rest, wanted, strict=True):
        assert expected in (None, message), f"{command} has another message"
    assert not fact.implicit or rest[len(parts.state)] in implicit, f"{command} has a text of another command's"
    assert (fact.prefill is None) == (parts.prefill is None), f"{command} lost its prefill"
    assert package.prefill == (parts.prefill if fact.prefill == "sent" else None), f"{command} has another prefill"


def _is_prepared_by(step: StepCompiled, output: blobs.StepOutput | None, answer: CallbackAnswered) -> bool:
    """Whether all that a step was prepared with is what one answer gave."""
    fact = step.prepared or PreparedFact()
    changed = (fact.model, fact.overhead_tokens, fact.tools_digest)
    same = changed == (answer.model, answer.overhead_tokens, answer.tools_digest)
    count = None if fact.messages is None else fact.messages.count
    same = same and count == (None if answer.messages is None else len(answer.messages))
    return same and (output is None or output.prepared == answer.messages)
