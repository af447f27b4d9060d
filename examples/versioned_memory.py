"""An agent with versioned memory, in one file and without a key: ``python examples/versioned_memory.py``.

It shows what a run does for the model call: one block of retrieved memory with its manifest, a step that uses its
package again, the working memory at the end of every request, and a step that is compiled again after a record was
forgotten.  The model is played by a function; everything else is real.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import contextbus.client as contextbus
from contextbus.client import ChatMessage, CompiledStep, Model, Report, Scope, assistant, user

ADA = Scope(user_id="ada")
MODEL = Model("anthropic", "claude-opus-4-6", 200_000, 8_000)


def answer(request: dict[str, object]) -> ChatMessage:
    """What a model might say; it gets the request as a provider would."""
    assert request["messages"]
    return assistant("I look at the pipeline first.")


def show(title: str, step: CompiledStep) -> None:
    """Print a step: why it was compiled, what it took, and how its request ends."""
    manifest = step.manifest
    print(f"\n== {title}")
    print(f"step {step.step}: {manifest.refresh}, pass {manifest.pass_}, package {(manifest.package or '')[:19]}…")
    for entry in manifest.entries:
        print(f"  {entry.source}/{entry.record_id}: {'in' if entry.selected else 'out'}, {entry.reason}")
    messages = step.payload("anthropic").copy()["messages"]
    assert isinstance(messages, list)
    print(f"  the request ends with: {str(messages[-1])[-70:]}")


async def main(url: str | None) -> None:
    """Run the example on an embedded nats-server, or on the bus at a URL."""
    with tempfile.TemporaryDirectory() as folder:
        async with contextbus.open(url, data=folder) as bus:
            run = await bus.run("billing", scope=ADA, sources=["memory"])
            await run.working_memory.create(goal="Deploy the billing service.", constraints=["No deploys on Friday."])
            region = await bus.memories.remember("Every deploy of billing goes to eu-west.", scope=ADA)
            await bus.memories.remember("A deploy of billing needs a green CI run.", scope=ADA)

            run.append(user("How do I deploy billing?"))
            step = await run.before_model_call(model=MODEL)
            show("one block of memory, and its manifest", step)

            again = await run.before_model_call(model=MODEL)
            show("the same messages again: the stored package, byte for byte", again)
            assert again.stored
            assert again.text == step.text

            reply = answer(again.payload("anthropic").copy())
            await run.after_model_call(Report(status="succeeded", messages=[reply]))

            run.append(user("And then?"))
            step = await run.before_model_call(model=MODEL)
            show("between refreshes nothing is retrieved; the tail is there again", step)
            await run.after_model_call(Report(status="succeeded", messages=[assistant("Then the deploy.")]))

            run.append(user("Where to?"))
            step = await run.before_model_call(model=MODEL)
            forgotten = await bus.memories.forget(region.record_id, scope=ADA)
            print(f"\n== forgotten: {forgotten.record_id}, {forgotten.revisions} revision")
            step = await run.before_model_call(model=MODEL)
            show("the step compiled again: its block left, the other record returned", step)
            assert step.manifest.redacted
            assert "eu-west" not in step.payload("anthropic").json().decode()

            verdict = await bus.verify(run.id)
            print(f"\nverify: {verdict.steps} steps computed again, {'clean' if verdict.is_clean else 'DIFFERENT'}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
