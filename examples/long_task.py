"""A long task in a small window: the history is compacted three times, and its facts stay.  Needs no key and no server.

Run it: ``python examples/long_task.py``.
"""

from __future__ import annotations

import asyncio

import contextbus.client as contextbus
from contextbus.client import Model, Report, Scope, assistant, user

MODEL = Model("anthropic", "claude-opus-4-6", 3_000, 500)
"""A window so small that forty turns do not fit."""


def say(turn: int) -> str:
    """What the user says in a turn: facts at first, one of them changed later, then a lot of work."""
    facts = {
        0: "We move the invoices to the new cluster. Never touch the table ledger_2019; it is under audit.",
        1: "The ticket is OPS-7311, the database is at db-eu-4.internal:6432, and the cut-over is at 02:30 UTC.",
        9: "The cut-over is at 04:15 UTC now.",
    }
    return facts.get(turn, f"Copy batch {turn} to /srv/invoices/batch-{turn:03}.csv and tell me how many rows it has.")


def answer(turn: int) -> str:
    """What the model would answer."""
    return f"Batch {turn} is copied: {turn * 137 + 1000} rows, none refused. " + "Checksums agree on both sides. " * 8


async def main() -> None:
    """Forty turns, with a compaction whenever the window is full."""
    window = contextbus.Window(keep_ratio=0.6)
    async with contextbus.open("memory:") as bus:
        run = await bus.run("move-invoices", scope=Scope(user_id="ada"), compaction=window)
        step = None
        for turn in range(40):
            run.append(user(say(turn)))
            step = await run.before_model_call(model=MODEL)
            await run.after_model_call(Report(status="succeeded", messages=[assistant(answer(turn))]))
        assert step is not None

        payload = step.payload("anthropic")
        sent = payload.json().decode()
        print(f"{len(run.messages)} messages in the log, {len(payload.copy()['messages'])} in the request")
        for found in await bus.compactions(run.id):
            if found.status == "completed":
                change = f"{found.estimated_before} -> {found.estimated_after} tokens"
                print(f"compacted before step {found.step}: {change}, for {found.source_messages} messages")
        for fact in ("ledger_2019", "OPS-7311", "db-eu-4.internal:6432", "04:15 UTC", "02:30 UTC"):
            print(f"{fact:22} {'in the request' if fact in sent else 'not in the request'}")
        verdict = await bus.verify(run.id)
        print(f"verify: {verdict.steps} steps computed again, {'clean' if verdict.is_clean else 'different'}")


if __name__ == "__main__":
    asyncio.run(main())
