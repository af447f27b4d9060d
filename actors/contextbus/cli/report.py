"""A compiled step for people: the budget as a bar, the manifest as a table, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from contextbus.cli.options import show_scope
from contextbus.client import CompiledStep, make_estimator
from contextbus_protocol.package import ContextManifest
from contextbus_protocol.values import EstimatorSpec, Scope

_KINDS: Final = (
    ("working-memory", "magenta", "█", "#"),
    ("memory", "cyan", "▓", "="),
    ("rag", "green", "▒", "+"),
    ("transcript", "yellow", "▚", "*"),
    ("skills", "blue", "▞", "%"),
)
_BAR: Final = 60
_LINE: Final = 100
_REASONS: Final = {
    "ranked": "green",
    "mandatory": "green",
    "reallocated": "green",
    "already-placed": "cyan",
    "over-budget": "yellow",
    "duplicate": "dim",
    "superseded": "dim",
}


def tokens_by_kind(manifest: ContextManifest) -> dict[str, int]:
    """Selected tokens of each kind; working memory as the budget counts it."""
    tokens = {kind: 0 for kind, *_ in _KINDS}
    for entry in manifest.entries:
        if entry.selected:
            tokens[entry.kind] += entry.tokens
    return tokens


def show_step(
    console: Console,
    step: CompiledStep,
    *,
    scope: Scope,
    estimator: EstimatorSpec,
    durability: str,
    payload: str,
    query: str | None,
    repairs: Mapping[str, int],
    documents: Sequence[str],
    notes: tuple[str, ...],
) -> None:
    """Print a step; ``query`` is what its sources were asked, ``repairs`` are counts by code."""
    manifest = step.manifest
    console.print(Text(f"run {step.run}   step {step.step}   for {step.model.provider}/{step.model.model_id}", "bold"))
    console.print(Text(f"scope {show_scope(scope)}   sources: {_sources(manifest)}"), soft_wrap=True)
    if query is not None:
        console.print(Text(f"query {_cut(query)}"), soft_wrap=True)
    console.print()
    console.print(_budget(manifest, unicode=console.encoding.lower().startswith("utf")))
    console.print()
    console.print(_entries(manifest))
    console.print()
    console.print(_blocks(step, estimator))
    console.print()
    kept = {
        "fsync": "on disk before it was acknowledged",
        "interval": "on disk within two minutes",
        "replicated": "on a majority of the servers of the cluster",
    }.get(durability)
    facts = [
        ("log", f"sequence {step.sequence}" + (", stored before and sent again" if step.stored else "")),
        ("package", step.reference),
        ("durability", durability + (f" ({kept})" if kept else "")),
        ("payload", payload),
        *(("documents", line) for line in documents),
    ]
    if repairs:
        facts.append(("repairs", ", ".join(f"{code} x{count}" for code, count in sorted(repairs.items()))))
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(Text(name, "bold"), Text(value, overflow="fold"))
    console.print(grid)
    for text in notes:
        console.print(Text(text), soft_wrap=True)
    console.print()


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE else line[: _LINE - 1] + "…"


def _sources(manifest: ContextManifest) -> str:
    words = [
        f"{s.source} {s.status.value}" + (f" ({s.error})" if s.error else f" {s.selected}/{s.selected + s.excluded}")
        for s in manifest.sources
    ]
    return ", ".join(words) or "none asked"


def _budget(manifest: ContextManifest, *, unicode: bool) -> RenderableType:
    budget = manifest.budget
    tokens = tokens_by_kind(manifest)
    whole = max(budget.context_tokens, sum(tokens.values()), 1)
    bar, legend = Text(), Text()
    for kind, colour, sign, plain in _KINDS:
        count = tokens[kind]
        if not count:
            continue
        mark = sign if unicode else plain
        bar.append(mark * max(1, round(_BAR * count / whole)), colour)
        legend.append(f"{mark} {kind} {count:,}   ", colour)
    bar.append(("░" if unicode else ".") * max(0, _BAR - len(bar)), "dim")
    legend.append(f"free {max(0, budget.context_tokens - sum(tokens.values())):,}", "dim")
    line = (
        f"{sum(tokens.values()):,} of {budget.context_tokens:,} context tokens chosen; "
        f"the history takes {budget.used_tokens:,} of {budget.input_tokens:,} "
        f"(counted by {manifest.estimator.name}, {manifest.estimator.kind})"
    )
    return Group(Text("budget", "bold"), bar, legend, Text(line, "dim"))


def _entries(manifest: ContextManifest) -> RenderableType:
    if not manifest.entries:
        return Text("manifest: no candidates", "dim")
    table = Table(title="manifest", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    table.add_column("source", no_wrap=True)
    table.add_column("record", overflow="fold", ratio=1)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("selected", no_wrap=True)
    table.add_column("reason", no_wrap=True)
    for entry in manifest.entries:
        table.add_row(
            entry.source,
            Text(entry.record_id),
            f"{entry.tokens:,}",
            "yes" if entry.selected else "no",
            Text(entry.reason, _REASONS.get(entry.reason, "")),
            style="" if entry.selected else "dim",
        )
    return table


def count_blocks(step: CompiledStep, estimator: EstimatorSpec) -> list[dict[str, object]]:
    """Placement, messages and tokens of each block of a package."""
    # A tokenizer's own counts are in the log; here the heuristic is near enough.
    count = make_estimator(estimator if estimator.kind == "heuristic" else EstimatorSpec())
    return [
        {"placement": b.placement, "messages": len(b.messages), "tokens": count.estimate(b.messages)}
        for b in step.blocks
    ]


def _blocks(step: CompiledStep, estimator: EstimatorSpec) -> RenderableType:
    placed = {"append": "behind the history; stays there", "ephemeral-tail": "at the end, for this step only"}
    text = Text("blocks placed\n", "bold")
    blocks = count_blocks(step, estimator)
    for block in blocks:
        name = str(block["placement"])
        text.append(f"  {name:<15} {block['tokens']:>6} tokens   {placed[name]}\n", "not bold")
    if not blocks:
        text.append("  none\n", "not bold")
    cause = step.manifest.cache_prefix_cause
    changed = f"changed ({cause})" if cause else "changed" if step.manifest.cache_prefix_changed else "kept"
    text.append(f"  cache prefix {changed}; refresh: {step.manifest.refresh}, pass {step.manifest.pass_}", "not bold")
    return text
