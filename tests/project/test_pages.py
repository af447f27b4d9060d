"""The Python of README, guide and package documentation runs as it is written there."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import contextbus.client as contextbus

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    "README": (ROOT / "README.md").read_text(encoding="utf-8"),
    "guide": (ROOT / "docs" / "guide.md").read_text(encoding="utf-8"),
    "client": contextbus.__doc__ or "",
}
WRITTEN = [(page, number, block) for page, text in PAGES.items() for number, block in enumerate(BLOCKS.findall(text))]
WHOLE = [written for written in WRITTEN if re.match(r"(?:import|from) ", written[2])]
# What calls ``main`` of the README: a model that is played, and that sees what it was compiled for.
PLAYED = """

import asyncio


async def call_model(**request):
    assert "<goal" in str(request), request
    return {"role": "assistant", "content": "Pause the jobs first."}


asyncio.run(main(call_model))
"""


def name(written: object) -> str:
    return written if isinstance(written, str) and "\n" not in written else ""


def test_every_page_has_whole_blocks() -> None:
    counted = {page: sum(page == other for other, _, _ in WHOLE) for page in PAGES}
    assert counted == {"README": 2, "guide": 8, "client": 1}


@pytest.mark.parametrize(("page", "number", "block"), WRITTEN, ids=name)
def test_every_block_is_python(page: str, number: int, block: str) -> None:
    compile(block, f"{page} {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.broker
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("page", "number", "block"), WHOLE, ids=name)
def test_every_whole_block_runs(page: str, number: int, block: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    file = tmp_path / "block.py"
    file.write_text(block + (PLAYED if "main(call_model)" in block else ""), encoding="utf-8")
    path = os.pathsep.join(str(ROOT / folder) for folder in ("actors", "protocol"))
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, f"{page}, block {number}: {done.stderr}"
