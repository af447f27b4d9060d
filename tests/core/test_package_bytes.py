"""The bytes of a package made of its parts are those of the package."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.compile import compile_context
from contextbus.core.context_input import ContextInput
from contextbus.core.history import digest_message
from contextbus.core.package_bytes import encode_package
from contextbus.core.working_memory import create_working_memory
from contextbus.sources.interface import candidate
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.package import Package
from contextbus_protocol.values import SourceResult

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def compiled(texts: list[str], goal: str | None) -> Package:
    results = (SourceResult("docs", "rag", candidates=tuple(candidate(f"r{n}", t, 1.0) for n, t in enumerate(texts))),)
    memory = None if goal is None else create_working_memory(scope="t", now=0, goal=goal)
    return compile_context(
        ContextInput(
            run_id="ünï",
            step=3,
            input_tokens=9_000,
            used_tokens=0,
            results=results,
            working_memory=memory,
            query="what?",
        )
    )


@given(st.lists(TEXTS, max_size=4, unique=True), st.none() | TEXTS)
def test_a_package_is_encoded_as_a_whole_would_be(texts: list[str], goal: str | None) -> None:
    package = compiled(texts, goal)
    encoded = encode_package(package)
    assert encoded.data == encode_json(package)
    assert encoded.manifest_digest == digest_bytes(encode_json(package.manifest))
    assert encoded.message_digests == tuple(digest_message(m) for b in package.blocks for m in b.messages)


def test_there_are_blocks_to_encode() -> None:
    assert [len(b.messages) for b in compiled(["one"], "done").blocks] == [1, 1]
