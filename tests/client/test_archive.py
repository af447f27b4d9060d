"""What a compaction replaced, read back by its address (C.X.8)."""

from __future__ import annotations

import re

import pytest
from tests.client.compacting_runs import DONE, SMALL, Writing, bus_writing, contents, talk
from tests.client.scripted import CHARACTERS, SCOPE, Scripted

import contextbus.client as contextbus
from contextbus.client import Compaction, messages_exceed
from contextbus.sources.interface import check_source
from contextbus_protocol.errors import InvalidRequestError, NotFoundError

GIVEN = Compaction(triggers=[messages_exceed(6)], target_tokens=900, summariser="writing")


def address(step: contextbus.CompiledStep) -> str:
    """The last line of the summary."""
    line = contents(step)[0].splitlines()[-1]
    found = re.fullmatch(r"Archived: (context://archive/[0-9a-f]{64})", line)
    assert found is not None
    return found[1]


@pytest.mark.rule("C.X.8", "C.E.9", "C.K.6")
async def test_the_address_in_a_summary_leads_to_the_messages_without_blocks_and_the_earlier_summary_among_them() -> (
    None
):
    rag = check_source(Scripted([contextbus.candidate("0", "Deploys need CI.", 0.9)]))
    async with bus_writing(Writing(), sources=[rag]) as bus:
        run = await bus.run("r", scope=SCOPE, estimator=CHARACTERS, sources=["rag"], compaction=GIVEN)
        run.append(*talk(1))
        await run.before_model_call(model=SMALL)
        await run.after_model_call(DONE)
        run.append(*talk(2))
        step = await run.before_model_call(model=SMALL)
        span = await run.resolve(address(step))
        assert list(span[:3]) == talk(1)
        assert "Deploys need CI." not in str(span)
        assert await bus.resolve(address(step), run="r") == span
        await run.after_model_call(DONE)
        run.append(*talk(1))
        later = await run.before_model_call(model=SMALL)
        assert address(later) != address(step)
        again = await (await bus.run("r", scope=SCOPE)).resolve(address(later))
        assert "Short." in str(again[0])


@pytest.mark.rule("C.X.8", "P.F.5")
async def test_what_is_no_address_or_none_of_the_run_is_a_clear_error() -> None:
    async with bus_writing(Writing()) as bus:
        run = await bus.run("r", scope=SCOPE, estimator=CHARACTERS, compaction=GIVEN)
        run.append(*talk(4))
        step = await run.before_model_call(model=SMALL)
        good = address(step)
        digest = good.rpartition("/")[2]
        for bad in (
            "",
            digest,
            f"context://vfs/{digest}",
            f"context://archive/{digest[:-1]}",
            f"context://archive/{digest.upper()}",
            f"context://archive/../{digest}",
            f"{good}\n",
            f"{good}/x",
        ):
            with pytest.raises(InvalidRequestError, match="64 hex digits"):
                await run.resolve(bad)
        with pytest.raises(NotFoundError, match="no archived span"):
            await run.resolve(f"context://archive/{'0' * 64}")
        other = await bus.run("other", scope=SCOPE, compaction=GIVEN)
        with pytest.raises(NotFoundError, match="no archived span"):
            await other.resolve(good)
        reference = step.reference.removeprefix("sha256:")  # a blob of the run that is none
        with pytest.raises(NotFoundError, match="no archived span"):
            await run.resolve(f"context://archive/{reference}")
        await bus.host.packages.erase("r", f"sha256:{digest}")
        with pytest.raises(NotFoundError, match="no longer stored"):
            await run.resolve(good)
