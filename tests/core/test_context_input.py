"""What is no input of a compile is refused by name (D.T.4)."""

from __future__ import annotations

import msgspec
import pytest

from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus_protocol.errors import InvalidTypeError


@pytest.mark.rule("D.T.4")
@pytest.mark.parametrize("name", ["step", "pass_", "input_tokens", "used_tokens"])
def test_a_count_that_is_none_is_named(name: str) -> None:
    given_ = msgspec.structs.replace(ContextInput(run_id="r", step=0, input_tokens=1, used_tokens=0), **{name: -1})
    with pytest.raises(InvalidTypeError, match=f"^{name} must be an integer"):
        compile_context(given_)
