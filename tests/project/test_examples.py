"""The examples do what they say, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(example: str, *arguments: str) -> str:
    """What an example prints; it ends well."""
    path = os.pathsep.join(str(ROOT / folder) for folder in ("actors", "protocol"))
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example), *arguments],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.broker
@pytest.mark.rule("D.R.14")
def test_versioned_memory() -> None:
    printed = run("versioned_memory.py")
    sections = dict(re.findall(r"^== (.+?)\n(.*?)(?=^==|\Z)", printed, re.MULTILINE | re.DOTALL))
    first, again, later, forgotten, anew = sections.values()
    assert first.count("memory/m-") == 2
    assert first.count("in, ranked") == 2
    assert first == again
    assert "reused, pass 1" in later
    assert "memory/m-" not in later
    assert not forgotten.strip()
    assert "step 2: redacted, pass 2" in anew
    assert anew.count("memory/m-") == 1
    ends = re.findall(r"the request ends with: (.*)", printed)
    assert len(ends) == 4
    assert all(end.endswith("</working_memory>'}]}") for end in ends)  # the tail ends each request
    assert printed.rstrip().endswith("verify: 3 steps computed again, clean")


@pytest.mark.rule("C.X.9", "P.J.7")
def test_long_task() -> None:
    printed = run("long_task.py")
    facts = dict(re.findall(r"^(\S.*?) +((?:not )?in the request)$", printed, re.MULTILINE))
    kept = ("ledger_2019", "OPS-7311", "04:15 UTC")
    assert {fact: facts[fact] for fact in kept} == dict.fromkeys(kept, "in the request")
    assert facts["02:30 UTC"] == "not in the request"  # what the user said later stands in its place
    ends = re.findall(r"^compacted before step \d+: (\d+) -> (\d+) tokens, for \d+ messages$", printed, re.MULTILINE)
    completed = [(int(before), int(after)) for before, after in ends]
    assert completed
    assert all(after < before for before, after in completed)
    held, sent = re.findall(r"^(\d+) messages in the log, (\d+) in the request$", printed, re.MULTILINE)[0]
    assert int(held) == 80
    assert int(sent) < int(held)
    assert printed.rstrip().endswith("verify: 40 steps computed again, clean")
