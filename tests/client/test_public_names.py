"""The names of ``contextbus.client``: each is loaded when it is used, and alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import contextbus.client as contextbus

RUNTIME = ("contextbus.runtime", "contextbus.actors", "contextbus.sources", "contextbus.replay", "nats", "structlog")


CALL = """
import asyncio
from contextbus.client import apply_summary, assistant, compact, estimate_tokens, plan_compaction, summariser, user

def write(request):
    return "They spoke."

done = asyncio.run(compact([user("a"), assistant("b")], model=write, target_tokens=100, keep_last_messages=1))
assert done.status == "compacted"
"""


def loaded(code: str) -> list[str]:
    """What of the runtime a new process has loaded after some code."""
    found = f"[m for m in sys.modules if any(m == r or m.startswith(r + '.') for r in {RUNTIME!r})]"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*{found})"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.rule("C.A.1")
@pytest.mark.parametrize(
    "code",
    [
        "import contextbus.client.compaction.compact",
        "import contextbus.client.compaction.planning",
        CALL,
    ],
)
def test_compaction_in_one_call_loads_no_runtime(code: str) -> None:
    assert loaded(code) == []


def test_a_bus_loads_it() -> None:
    """What the measure would see."""
    assert {"contextbus.runtime", "contextbus.actors", "nats"} <= set(loaded("from contextbus.client import open"))


def test_every_public_name_is_the_one_that_type_checkers_see() -> None:
    source = Path(contextbus.__file__).read_text()
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    seen: dict[str, object] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module is not None
        for alias in node.names:
            seen[alias.asname or alias.name] = getattr(import_module(node.module), alias.name)
    assert sorted(seen) == sorted(contextbus.__all__)
    assert set(contextbus.__all__) <= set(dir(contextbus))
    modules = {path.stem for path in Path(contextbus.__file__).parent.iterdir()}
    assert not modules & set(seen)  # a module that was imported would stand under its name
    for name, value in seen.items():
        assert getattr(contextbus, name) is value, name


def test_a_star_import_gives_all_of_them_and_another_name_is_none() -> None:
    names: dict[str, object] = {}
    exec("from contextbus.client import *", names)  # only a module may say so
    assert set(contextbus.__all__) <= set(names)
    name = "opne"
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        getattr(contextbus, name)
    with pytest.raises(ImportError, match="compatc"):
        exec("from contextbus.client import compatc")
