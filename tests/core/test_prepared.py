"""What the host's hook changes of a step's options (D.G.33)."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.logs import OPTIONS

from contextbus.core.prepared import digest_tools, prepared_options
from contextbus_protocol.events import PreparedFact

TOOLS = msgspec.structs.replace(OPTIONS, tools_digest="sha256:tools")


@pytest.mark.rule("D.G.33")
def test_a_hook_that_gives_no_tools_takes_them_away_and_one_that_says_nothing_leaves_them() -> None:
    assert prepared_options(TOOLS, PreparedFact(tools_digest=digest_tools("[]"))) == OPTIONS
    assert prepared_options(TOOLS, PreparedFact(overhead_tokens=5)).tools_digest == "sha256:tools"
    assert prepared_options(TOOLS, None) is TOOLS
