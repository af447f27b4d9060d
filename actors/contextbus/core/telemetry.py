"""What a span tells about a compile: names, codes and counts, never content (D.S.2-D.S.4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from contextbus_protocol.package import ContextManifest

SPAN_NAME: Final = "contextbus.context.compile"
PREFIX: Final = "contextbus.context."

_OTHER: Final = re.compile(r"[^a-z0-9_-]")

Attributes = dict[str, str | bool | int]


class Counts(msgspec.Struct, frozen=True):
    """How many entries were selected and left out, and what the selected ones cost in tokens."""

    selected: int
    excluded: int
    tokens: int


def count_entries(manifest: ContextManifest) -> Counts:
    """Count what became of all candidates and working-memory items.

    ``excluded`` includes what was cut beyond a source's limit, as the summaries of the sources do (D.C.16); ``tokens``
    is the budget's ``selected_tokens``, so the fixed text of the blocks is in it (D.D.10).
    """
    selected = sum(entry.selected for entry in manifest.entries)
    truncated = sum(summary.truncated for summary in manifest.sources)
    return Counts(selected, len(manifest.entries) - selected + truncated, manifest.budget.selected_tokens)


def span_attributes(manifest: ContextManifest, manifest_digest: str) -> Attributes:
    """The attributes of the span of one compile, and no others (D.S.2).

    Sources whose ids are written alike are counted together: no count of one hides that of another.  ``fallback`` is
    absent where there was none.

    Args:
        manifest: The account of the compile.
        manifest_digest: The digest of the manifest's bytes, without the reference of its package (D.D.22).
    """
    counts = count_entries(manifest)
    attributes: Attributes = {
        "manifest_digest": manifest_digest,
        "refresh_reason": manifest.refresh,
        "estimator": manifest.estimator.kind,
        "cache_prefix_changed": manifest.cache_prefix_changed,
        "selected": counts.selected,
        "excluded": counts.excluded,
        "tokens": counts.tokens,
    }
    if manifest.fallback is not None:
        attributes["fallback"] = manifest.fallback
    attributes.update(_source_counts(manifest))
    return {PREFIX + name: value for name, value in attributes.items()}


def attribute_id(source: str) -> str:
    """A source id as attribute names hold it: lower case, ``_`` for all but ``[a-z0-9_-]`` (D.S.3)."""
    return _OTHER.sub("_", source.lower())


def _source_counts(manifest: ContextManifest) -> Mapping[str, int]:
    """The counts of each source that was asked, summed where ids are written alike."""
    counts: dict[str, int] = {}
    for summary in manifest.sources:
        name = f"source.{attribute_id(summary.source)}"
        for field, count in (
            ("selected", summary.selected),
            ("excluded", summary.excluded),
            ("tokens", summary.tokens),
        ):
            counts[f"{name}.{field}"] = counts.get(f"{name}.{field}", 0) + count
    return counts
