"""The pure zones need the standard library and msgspec, and nothing of the machine (D.A.10)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import contextbus
import contextbus_protocol

ROOTS = [Path(contextbus.__file__).parents[1], Path(contextbus_protocol.__file__).parents[1]]

# Runs in an interpreter that sees nothing but the standard library, the two source roots and msgspec.
CLEAN = """
import importlib, pkgutil, sys
sys.path[:0] = sys.argv[1:]
import contextbus, contextbus_protocol

def modules():
    yield "contextbus_protocol"
    yield from (m.name for m in pkgutil.walk_packages(contextbus_protocol.__path__, "contextbus_protocol."))
    for zone in ("core", "actors"):
        package = importlib.import_module("contextbus." + zone)
        yield package.__name__
        yield from (m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + "."))

names = list(modules())
for name in names:
    importlib.import_module(name)
allowed = {"contextbus", "contextbus_protocol", "msgspec", "__main__", *sys.stdlib_module_names}
foreign = sorted({name.partition(".")[0] for name in sys.modules} - allowed)
assert not foreign, foreign
loops = sorted({"asyncio", "selectors", "socket", "ssl", "threading", "sqlite3"} & set(sys.modules))
assert not loops, loops

from contextbus.core.compile import ContextInput, compile_context
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_text
from contextbus_protocol.values import Candidate, SourceResult

TOUCHED = []
TOUCHES = ("open", "socket.", "subprocess.", "os.", "time.", "import", "sqlite3.", "ctypes.")

def watch(event, arguments):
    if event.startswith(TOUCHES):
        TOUCHED.append((event, arguments))

text = "Deploys need a green CI run."
given = ContextInput(
    run_id="run",
    step=0,
    input_tokens=1000,
    used_tokens=10,
    results=(SourceResult("docs", "rag", candidates=(Candidate("0", text, 0.5, digest_text(text)),)),),
)
first = encode_json(compile_context(given))
sys.addaudithook(watch)
again = encode_json(compile_context(given))
assert not TOUCHED, TOUCHED
assert first == again
print(len(names), again.decode())
"""


@pytest.mark.rule("D.A.10", "D.A.6")
def test_protocol_core_and_actors_run_with_nothing_else_installed(tmp_path: Path) -> None:
    (tmp_path / "msgspec").symlink_to(Path(msgspec.__file__).parent, target_is_directory=True)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", CLEAN, str(tmp_path), *map(str, ROOTS)],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    count, _, package = done.stdout.partition(" ")
    assert int(count) > 40
    assert '"reason":"ranked"' in package


@pytest.mark.rule("D.A.10")
def test_the_clean_environment_would_notice_a_foreign_import(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", "import anyio"], cwd=tmp_path, env={}, capture_output=True, check=False
    )
    assert b"ModuleNotFoundError" in done.stderr
