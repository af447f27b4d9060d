"""What happens where an SDK is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules["openai"] = sys.modules["anthropic"] = None
from contextbus.summarisers.anthropic import anthropic_summariser
from contextbus.summarisers.openai import openai_summariser
from contextbus_protocol.errors import InvalidRequestError
try:
    {name}_summariser(model="m")
except InvalidRequestError as error:
    print(error.message)
"""


@pytest.mark.rule("C.X.10")
@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_a_missing_sdk_is_named_with_its_extra(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name=name)], capture_output=True, text=True, check=True, timeout=60
    )
    assert f"pip install 'contextbus[{name}]'" in done.stdout


def test_importing_the_interface_needs_no_sdk() -> None:
    code = (
        "import sys, contextbus.summarisers.openai, contextbus.summarisers.anthropic, contextbus.summarisers.built_in\n"
        "sys.exit(bool({'openai', 'anthropic'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
