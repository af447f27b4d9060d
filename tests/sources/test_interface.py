"""What is a source and what is not."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.conftest import Ask

from contextbus.sources.interface import FunctionSource, Source, candidate, check_source, source
from contextbus_protocol.codec import encode_message
from contextbus_protocol.questions import Offered, Query
from contextbus_protocol.values import Candidate, SourceKind

Find = Callable[[Query], Awaitable[list[Candidate]]]


async def find_nothing(_query: Query) -> list[Candidate]:
    return []


@source(id="tickets", kind="rag")
async def tickets(query: Query) -> list[Candidate]:
    return [candidate("t1", f"about {query.text}", 1.5)]


@pytest.mark.rule("D.K.1", "D.K.16")
async def test_a_function_becomes_a_source(ask: Ask) -> None:
    assert isinstance(tickets, Source)
    assert (tickets.id, tickets.kind, tickets.required) == ("tickets", "rag", False)
    assert [found.text for found in await tickets.query(ask("tea"))] == ["about tea"]


async def test_a_plain_function_runs_in_a_thread_of_its_own(ask: Ask) -> None:
    @source(id="slow", kind="memory", required=True)
    def slow(query: Query) -> list[Candidate]:
        return [candidate(str(threading.get_ident()), query.text, 1)]

    (found,) = await slow.query(ask())
    assert found.record_id != str(threading.get_ident())
    assert slow.required


async def test_an_object_with_an_async_call_is_awaited(ask: Ask) -> None:
    class Finder:
        async def __call__(self, query: Query) -> list[Candidate]:
            return [candidate("x", query.text, 1)]

    assert len(await FunctionSource(Finder(), id="finder", kind="rag").query(ask())) == 1


@pytest.mark.rule("D.K.20")
@pytest.mark.parametrize(
    ("id_", "kind", "function"),
    [
        ("", "rag", find_nothing),
        (7, "rag", find_nothing),
        ("x" * 200, "rag", find_nothing),
        ("docs", "web", find_nothing),
        ("docs", None, find_nothing),
        ("docs", "rag", None),
        ("docs", "rag", "not callable"),
    ],
)
def test_an_unusable_source_is_a_type_error_at_once(id_: str, kind: SourceKind, function: Find) -> None:
    with pytest.raises(TypeError):
        FunctionSource(function, id=id_, kind=kind)


@pytest.mark.rule("D.K.20")
def test_an_object_without_an_async_query_is_none() -> None:
    class Half:
        id = "half"
        kind = "rag"
        required = False

        def query(self, _query: Query) -> list[Candidate]:
            return []

    with pytest.raises(TypeError, match="async"):
        check_source(Half())
    with pytest.raises(TypeError, match="required"):
        FunctionSource(find_nothing, id="x", kind="rag", required=cast("bool", 1))
    with pytest.raises(TypeError, match="id"):
        check_source(object())


@pytest.mark.rule("D.K.17", "D.K.18")
@given(st.text(alphabet=st.characters(codec=None), min_size=1))
def test_a_candidate_carries_the_digest_of_its_text(text: str) -> None:
    made = candidate("r", text, 2, 3, mandatory=True)
    assert made.digest == "sha256:" + hashlib.sha256(made.text.encode()).hexdigest()
    assert (made.score, made.revision, made.mandatory) == (2.0, 3, True)
    encode_message(Offered(run="r", token="t", source="s", kind="rag", candidates=(made,)))
