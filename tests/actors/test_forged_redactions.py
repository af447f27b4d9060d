"""A command may say anything: what is no redaction is refused, and its words are not in the log (D.D.25, D.J.6)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.bench import Bench, candidate, head, options, sent, step

from contextbus_protocol.commands import ErrorReply, RedactedPackage, RedactPackages
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.values import SourceSpec

OLD, NEW = digest_bytes(b"old"), digest_bytes(b"new")


def redaction(**fields: Any) -> RedactPackages:
    package: dict[str, Any] = {"step": 0, "package": OLD, "replacement": NEW} | {
        name: fields.pop(name) for name in ("step", "package", "replacement") if name in fields
    }
    said: dict[str, Any] = {"source": "memory", "record_id": "m-1", "erasure": 1} | fields
    return RedactPackages(**head(command="f"), packages=(RedactedPackage(**package),), **said)


@pytest.mark.rule("D.D.25", "D.J.6")
@pytest.mark.parametrize(
    "forged",
    [
        redaction(package="dear diary"),
        redaction(replacement="../../etc"),
        redaction(replacement=OLD),
        redaction(step=1),
        redaction(step=-1),
        redaction(record_id="x" * 100_000),
        redaction(record_id=""),
        redaction(source="\ud800"),
    ],
)
def test_what_is_no_redaction_is_refused_and_changes_nothing(forged: RedactPackages) -> None:
    bench = Bench()
    docs = options(SourceSpec("docs", "rag"))
    bench.compile(step("Hello", options_=docs), candidate())
    before = len(bench.log.commits)
    effects = bench.begin(forged)
    assert sent(effects, ErrorReply).code in {"invalid_request", "invalid_type"}
    assert len(bench.log.commits) == before
    assert bench.log.fold.redacted_packages == ()
    assert bench.selection.idle
