"""A step whose prompt was changed after the fact is noticed, whatever it was counted with and however it came to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.client.scripted import CHARACTERS, SCOPE

import contextbus.client as contextbus
from contextbus.actors.flight import digest_command
from contextbus.core.package_bytes import encode_package
from contextbus.replay.checks import Check
from contextbus.replay.form import command_head
from contextbus.replay.run_log import LoggedCommit, RunLog
from contextbus.replay.verify import verify_run
from contextbus_protocol import blobs, codec, digests
from contextbus_protocol.chat import ChatMessage, assistant, system, user
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commands import CompileStep, NewMessages
from contextbus_protocol.events import PromptFact, StepCompiled
from contextbus_protocol.package import Package
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import EstimatorSpec, Model

replace = msgspec.structs.replace

HAIKU = Model("anthropic", "claude-haiku-4-5", 200_000, 8_000)
STATE = user("<dynamic_state>\n  <file>a.py</file>\n</dynamic_state>")
OTHER = user("<dynamic_state>\n  <file>b.py</file>\n</dynamic_state>")
RULE = user("Answer inside <answer>.")
PARTS = PromptParts(system=(system("You are terse."),), state=(STATE,), guardrails=(RULE,), prefill="So:")
TOKENIZER = EstimatorSpec(kind="tokenizer", name="cl100k_base")


class Recorded(msgspec.Struct):
    """A run's log up to a step with a prompt, and its blobs."""

    log: RunLog
    blobs: dict[str, bytes]

    @property
    def step(self) -> StepCompiled:
        """The last step."""
        return [e for e in self.log.commits[-1].commit.events if isinstance(e, StepCompiled)][-1]

    def told(self, changed: StepCompiled, stored: dict[str, bytes] | None = None, **commits: Any) -> list[Check]:
        """What is told of the log with another step at its end."""
        last = self.log.commits[-1]
        events = tuple(changed if isinstance(e, StepCompiled) else e for e in last.commit.events)
        data = codec.encode_commit(replace(last.commit, events=events, **commits))
        logged = LoggedCommit(last.sequence, digests.digest_bytes(data), codec.decode_commit(data))
        log = RunLog(self.log.run, (*self.log.commits[:-1], logged), self.log.memory)
        checks = verify_run(log, {**self.blobs, **(stored or {})}.get).checks
        return [c for c in checks if c.status != "same"]


async def record(kind: str) -> Recorded:
    """Two steps, of which the last has a prompt; counted and made as the kind says."""
    if kind == "tokenizer":
        pytest.importorskip("tiktoken")
    spec = TOKENIZER if kind == "tokenizer" else CHARACTERS
    tokenizers = ["cl100k_base"] if kind == "tokenizer" else []
    async with contextbus.open("memory:", memory=False, tokenizers=tokenizers) as bus:
        run = await bus.run("r", scope=SCOPE, estimator=spec, before_compile=lambda _: "a snippet")
        await run.before_model_call([user("How?")], model=HAIKU)
        await run.after_model_call(contextbus.Report(status="succeeded", messages=[assistant("So.")]))
        run.append(user("And?"))
        step = await run.before_model_call(model=HAIKU, prompt=PARTS)
        if kind == "overflow":
            await run.on_overflow(step.manifest.budget.used_tokens + 100)
        log = await bus.log("r")
        return Recorded(log, dict(await bus.blobs(log)))


def fact_of(step: StepCompiled) -> PromptFact:
    assert step.prompt is not None
    return step.prompt


FACTS: list[Callable[[PromptFact], PromptFact | None]] = [
    lambda f: None,
    lambda f: replace(f, digest="sha256:" + "0" * 64),
    lambda f: replace(f, digest=""),
    lambda f: replace(f, system=digests.EMPTY_CHAIN),
    lambda f: replace(f, layer=None),
    lambda f: replace(f, layer="sha256:" + "0" * 64),
    lambda f: replace(f, state=0),
    lambda f: replace(f, state=2),
    lambda f: replace(f, implicit=False),
    lambda f: replace(f, guardrails=0),
    lambda f: replace(f, guardrails=2),
    lambda f: replace(f, prefill=None),
    lambda f: replace(f, prefill="degraded"),
    lambda f: replace(f, system_eighteenths=f.system_eighteenths + 18),
    lambda f: replace(f, tail_eighteenths=f.tail_eighteenths + 18),
]
KINDS = ["heuristic", "tokenizer", "overflow"]


@pytest.mark.rule("P.A.6", "D.D.25", "D.M.14", "D.I.1")
@pytest.mark.parametrize("kind", KINDS)
async def test_each_changed_field_of_a_prompt_is_told(kind: str) -> None:
    recorded = await record(kind)
    step, fact = recorded.step, fact_of(recorded.step)
    assert (step.overflow is not None) == (kind == "overflow")
    assert (fact.state, fact.implicit, fact.guardrails, fact.prefill) == (1, True, 1, "sent")
    assert recorded.told(step) == []
    for number, change in enumerate(FACTS):
        changed = change(fact)
        assert changed != fact, number
        told = recorded.told(replace(step, prompt=changed))
        assert [c.status in ("different", "missing") for c in told] == [True], number


def with_tail(recorded: Recorded, old: ChatMessage, new: ChatMessage) -> tuple[StepCompiled, dict[str, bytes]]:
    """The step with another message in its package, all digests of the commit made to fit."""
    step = recorded.step
    output = blobs.decode_output(recorded.blobs[step.package])
    package = decode_json(bytes(output.package), Package)
    changed = replace(
        package,
        blocks=tuple(replace(b, messages=tuple(new if m == old else m for m in b.messages)) for b in package.blocks),
    )
    assert changed != package
    encoded = encode_package(changed)
    data = codec.encode_json(replace(output, package=msgspec.Raw(encoded.data)))
    reference = digests.digest_bytes(data)
    facts = tuple(replace(f, digest=d) for f, d in zip(step.blocks, encoded.message_digests, strict=True))
    changes: dict[str, Any] = {"package_digest": digests.digest_bytes(encoded.data), "package": reference}
    return replace(step, blocks=facts, manifest_digest=encoded.manifest_digest, **changes), {reference: data}


def command_of(recorded: Recorded, step: StepCompiled, parts: PromptParts) -> str:
    """The digest of a command that would have brought these parts."""
    command = CompileStep(
        **command_head(recorded.log.commits[-1].commit),
        history=NewMessages(base_count=0, base_chain="", keep=0, messages=(), chain=step.chain),
        user_text="And?",
        options=step.options,
        prompt=parts,
    )
    return digest_command(command)


@pytest.mark.rule("P.A.6", "D.D.25", "D.M.14", "D.I.1")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("old", "new"), [(STATE, OTHER), (RULE, user("Answer inside <verdict>."))])
async def test_a_changed_message_of_the_prompt_is_told_even_under_its_own_digests(
    kind: str, old: ChatMessage, new: ChatMessage
) -> None:
    recorded = await record(kind)
    step, stored = with_tail(recorded, old, new)
    command = recorded.log.commits[-1].commit.command_digest
    if kind != "overflow":  # whoever changes the step changes the digest of its command too
        state, rules = (tuple(new if m == old else m for m in given) for given in (PARTS.state, PARTS.guardrails))
        command = command_of(recorded, step, replace(PARTS, state=state, guardrails=rules))
    assert [c.status for c in recorded.told(step, stored, command_digest=command)] == ["different"]


@pytest.mark.rule("P.A.6", "P.D.2", "D.I.1")
async def test_what_before_compile_gave_is_the_same_in_a_step_that_is_compiled_again() -> None:
    recorded = await record("overflow")
    package = decode_json(bytes(blobs.decode_output(recorded.blobs[recorded.step.package]).package), Package)
    (implicit,) = [m for b in package.blocks for m in b.messages if "implicit_context" in str(m)]
    step, stored = with_tail(recorded, implicit, user("<implicit_context>\na snipped\n</implicit_context>"))
    assert [c.status for c in recorded.told(step, stored)] == ["different"]


@pytest.mark.rule("P.A.6", "D.D.25")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_changed_or_lost_layer_is_told(kind: str) -> None:
    recorded = await record(kind)
    step, fact = recorded.step, fact_of(recorded.step)
    assert fact.layer is not None
    beside = replace(PARTS, state=(), guardrails=())
    for parts in (replace(beside, system=(system("You are loud!"),)), replace(beside, prefill="No:")):
        layer = blobs.encode_layer(parts)
        spoiled = recorded.told(step, {fact.layer: layer})
        assert {c.status for c in spoiled} == {"different"}  # of each step that it belongs to
        reference = digests.digest_bytes(layer)
        told = recorded.told(replace(step, prompt=replace(fact, layer=reference)), {reference: layer})
        assert [c.status for c in told] == ["different"]
    del recorded.blobs[fact.layer]
    assert {c.status for c in recorded.told(step)} == {"missing"}


@pytest.mark.rule("D.M.14", "P.D.4")
async def test_what_a_hook_gave_is_counted_again_from_what_was_recorded() -> None:
    pytest.importorskip("tiktoken")
    async with contextbus.open("memory:", memory=False, tokenizers=["cl100k_base"]) as bus:
        run = await bus.run("r", scope=SCOPE, estimator=TOKENIZER, transform_context=lambda m: m[1:])
        await run.before_model_call([user("How?"), assistant("So."), user("And?")], model=HAIKU, prompt=PARTS)
        recorded = Recorded(await bus.log("r"), dict(await bus.blobs(await bus.log("r"))))
    step = recorded.step
    assert recorded.told(step) == []
    fact = step.prepared
    assert fact is not None
    assert fact.messages is not None
    for change in (
        {"count": 3},
        {"chain": digests.EMPTY_CHAIN},
        {"eighteenths": fact.messages.eighteenths + 18},
        {"system": "x"},
    ):
        changed = replace(step, prepared=replace(fact, messages=replace(fact.messages, **change)))
        assert [c.status for c in recorded.told(changed)] == ["different"], change
