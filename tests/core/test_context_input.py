"""What is no input of a compile is refused by name (D.T.4)."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from contextbus.core.budget import merge_budget, usable_input_tokens
from contextbus.core.candidates import is_id
from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import ContextBudget, Model, SourceResult


@pytest.mark.rule("D.T.4")
@pytest.mark.parametrize("name", ["step", "pass_", "input_tokens", "used_tokens"])
def test_a_count_that_is_none_is_named(name: str) -> None:
    given_ = msgspec.structs.replace(ContextInput(run_id="r", step=0, input_tokens=1, used_tokens=0), **{name: -1})
    with pytest.raises(InvalidTypeError, match=f"^{name} must be an integer"):
        compile_context(given_)


@pytest.mark.rule("D.T.4")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"results": [{"source": "docs"}]}, r"^results\[0\] must be a SourceResult, not dict"),
        ({"results": None}, "^results must be a tuple of SourceResult, not NoneType"),
        ({"results": "docs"}, "^results must be a tuple of SourceResult, not str"),
        ({"results": ("docs",), "candidates_per_source": 2}, r"^results\[0\] must be a SourceResult"),
        ({"restored": (SourceResult("a", "rag"), "b")}, r"^restored\[1\] must be a SourceResult, not str"),
        ({"results": (SourceResult("a", "rag", candidates=cast("Any", None)),)}, "candidates must be a tuple"),
        (
            {"results": (SourceResult("a", "rag", status=cast("Any", "fine")),)},
            "has status 'fine'; give SourceStatus.OK",
        ),
    ],
)
def test_results_of_another_type_are_named(fields: dict[str, Any], words: str) -> None:
    given_ = ContextInput(run_id="r", step=0, input_tokens=1, used_tokens=0)
    with pytest.raises(InvalidTypeError, match=words):
        compile_context(msgspec.structs.replace(given_, **fields))


@pytest.mark.rule("D.B.2", "D.T.4")
@pytest.mark.parametrize("name", ["context_window", "max_output_tokens"])
def test_a_number_of_the_model_that_is_none_is_named(name: str) -> None:
    model = msgspec.structs.replace(Model("p", "m", 10, 5), **{name: -1})
    with pytest.raises(InvalidTypeError, match=f"^model.{name} must be an integer"):
        usable_input_tokens(model)


@pytest.mark.rule("D.T.4")
def test_an_id_is_text_without_halves_of_surrogate_pairs() -> None:
    for text in ("a", "é", "\ud7ff", "\ue000", "\U0010ffff"):
        assert is_id(text)
    for half in ("\ud800", "\udbff", "\udc00", "\udfff"):
        assert not is_id(half)
        assert not is_id(f"é{half}")
    assert not is_id("")
    assert not is_id(5)


@pytest.mark.rule("D.B.7")
@pytest.mark.parametrize(("name", "value"), [("ratio", 0.5), ("max_tokens", 7), ("working_memory_tokens", 5)])
def test_each_field_of_a_budget_may_be_given_alone(name: str, value: float) -> None:
    assert merge_budget({name: value}) == msgspec.structs.replace(ContextBudget(), **{name: value})
