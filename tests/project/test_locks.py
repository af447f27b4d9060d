"""The locks pin, with hashes, exactly what pyproject.toml asks for."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIN = re.compile(r"^([a-z0-9][a-z0-9-]*)(?:\[[a-z0-9,-]+\])?==([^\s;]+)(.*)$")


def names(requirements: Iterable[str | dict[str, str]]) -> set[str]:
    """The normalised names of requirement strings."""
    found = (NAME.match(entry) for entry in requirements if isinstance(entry, str))
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


def group(name: str) -> set[str]:
    """The names of a dependency group and of those it includes."""
    listed: list[str | dict[str, str]] = PROJECT["dependency-groups"][name]
    included = (group(entry["include-group"]) for entry in listed if not isinstance(entry, str))
    return names(listed).union(*included)


CORE = names(PROJECT["project"]["dependencies"])
EXTRAS = {extra: names(entries) for extra, entries in PROJECT["project"]["optional-dependencies"].items()}
BUILD = names(PROJECT["build-system"]["requires"]) | {"editables"}
LOCKS = {
    "build": BUILD,
    "demo": CORE | EXTRAS["embedded"] | BUILD,
    "dev": CORE | EXTRAS["embedded"] | EXTRAS["fast"] | EXTRAS["otel"] | group("dev") | BUILD,
    "image": CORE | EXTRAS["fast"],
}


def entries(lock: str) -> list[str]:
    """The entries of a lock, each with its hashes on one line."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_is_a_pin_with_hashes(lock: str) -> None:
    for entry in entries(lock):
        match = PIN.match(entry)
        assert match, entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", match.group(3)), match.group(1)


@pytest.mark.parametrize(("lock", "direct"), LOCKS.items())
def test_direct_dependencies_are_pinned_and_nothing_was_left_behind(lock: str, direct: set[str]) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    pinned = {match.group(1) for entry in entries(lock) if (match := PIN.match(entry))}
    assert direct <= pinned
    # uv notes who asked for each pin; those that our own files asked for are the direct ones, no more and no fewer
    asked = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)
    ours = {
        match.group(1)
        for block in asked
        if (match := PIN.match(block.splitlines()[0] if block else ""))
        and re.search(r"contextbus \(pyproject\.toml|-r requirements/build\.in", block)
    }
    assert ours == direct


@pytest.mark.parametrize(("small", "large"), [("build", "demo"), ("demo", "dev"), ("image", "dev")])
def test_locks_agree_with_each_other(small: str, large: str) -> None:
    versions = {
        lock: {match.group(1): match.group(2) for entry in entries(lock) if (match := PIN.match(entry))}
        for lock in (small, large)
    }
    assert {name: versions[large].get(name) for name in versions[small]} == versions[small]


def test_what_builds_the_wheel_is_what_pyproject_says() -> None:
    lines = (ROOT / "requirements" / "build.in").read_text(encoding="utf-8").splitlines()
    wanted = {line for line in lines if line and not line.startswith("#")}
    assert set(PROJECT["build-system"]["requires"]) <= wanted
    assert names(sorted(wanted)) == BUILD
