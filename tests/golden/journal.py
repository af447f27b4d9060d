"""A recorded run as a file: JSON lines with the very bytes of commits and blobs, and what they once came to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from contextbus.replay.run_log import LoggedCommit, RunLog, read_commits, replay_memory, replay_run

FOLDER: Final = Path(__file__).parent


class Journal(msgspec.Struct, frozen=True):
    """The stored bytes of one run; commits as (sequence, bytes), blobs by reference."""

    run: str
    release: str
    expected: Mapping[str, Any]
    commits: tuple[tuple[int, bytes], ...]
    memory: tuple[tuple[int, bytes], ...]
    blobs: Mapping[str, bytes]

    def log(self) -> RunLog:
        """The run's log, read from the bytes."""
        return RunLog(self.run, read_commits(self.commits), read_commits(self.memory))


def list_journals() -> list[Path]:
    """Every recorded run."""
    return sorted(FOLDER.glob("*.jsonl"))


def read_journal(path: Path) -> Journal:
    """Read a recorded run."""
    head: dict[str, Any] = {}
    commits: dict[str, list[tuple[int, bytes]]] = {"run": [], "working-memory": []}
    blobs: dict[str, bytes] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        match record.pop("record"):
            case "head":
                head = record
            case "commit":
                commits[record["part"]].append((record["sequence"], record["data"].encode()))
            case _:
                blobs[record["reference"]] = record["data"].encode()
    return Journal(
        head["run"], head["release"], head["expected"], tuple(commits["run"]), tuple(commits["working-memory"]), blobs
    )


def write_journal(path: Path, journal: Journal) -> None:
    """Write a recorded run; one that exists is never overwritten.

    Raises:
        FileExistsError: the file is there: what a release wrote stays as it wrote it.
    """
    records: list[dict[str, Any]] = [
        {"record": "head", "run": journal.run, "release": journal.release, "expected": dict(journal.expected)}
    ]
    for part, commits in (("run", journal.commits), ("working-memory", journal.memory)):
        records += [
            {"record": "commit", "part": part, "sequence": sequence, "data": data.decode()}
            for sequence, data in commits
        ]
    records += [{"record": "blob", "reference": ref, "data": data.decode()} for ref, data in journal.blobs.items()]
    with path.open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def summarise(log: RunLog) -> dict[str, Any]:
    """What the log comes to, in terms that later releases keep."""
    state = replay_run(log)
    memory = replay_memory(log)
    last: LoggedCommit = log.commits[-1]
    return {
        "sequence": last.sequence,
        "digest": last.digest,
        "messages": state.history.count,
        "chain": state.history.chain,
        "eighteenths": state.history.eighteenths,
        "passes": state.passes,
        "lastStep": None if state.last is None else state.last.step,
        "package": None if state.last is None else state.last.package_digest,
        "placed": [f"{p.source}/{p.record_id}" for p in state.placed],
        "blocks": [[b.step, b.position, b.fact.digest] for b in state.blocks],
        "workingMemory": memory[-1][1].snapshot_digest if memory else None,
    }
