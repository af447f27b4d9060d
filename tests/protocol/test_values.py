"""Values on the wire: camelCase names, absent defaults, unknown fields, and options as keywords."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Any, cast, get_args

import msgspec
import pytest
from hypothesis import given, settings
from tests.protocol.values import values_of

import contextbus_protocol.chat
import contextbus_protocol.commands
import contextbus_protocol.commit_requests
import contextbus_protocol.compaction_events
import contextbus_protocol.envelope
import contextbus_protocol.events
import contextbus_protocol.memory_records
import contextbus_protocol.messages
import contextbus_protocol.outcomes
import contextbus_protocol.package
import contextbus_protocol.questions
import contextbus_protocol.values
import contextbus_protocol.working_memory
from contextbus.core.budget import merge_budget, require_count
from contextbus_protocol import codec
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.package import (
    BlockPlacement,
    CachePrefixCause,
    ContextEntry,
    ContextManifest,
    EntryReason,
    Fallback,
    Package,
    RefreshReason,
)
from contextbus_protocol.values import MAX_SAFE_INTEGER, ContextBudget, Model, Scope, SourceStatus, default_kind

MODULES = (
    contextbus_protocol.chat,
    contextbus_protocol.commands,
    contextbus_protocol.commit_requests,
    contextbus_protocol.compaction_events,
    contextbus_protocol.envelope,
    contextbus_protocol.events,
    contextbus_protocol.memory_records,
    contextbus_protocol.messages,
    contextbus_protocol.outcomes,
    contextbus_protocol.package,
    contextbus_protocol.questions,
    contextbus_protocol.values,
    contextbus_protocol.working_memory,
)


def structs() -> Iterator[type[msgspec.Struct]]:
    for module in MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__:
                yield value


STRUCTS = sorted(structs(), key=lambda s: (s.__module__, s.__name__))


@pytest.mark.rule("D.D.22")
@pytest.mark.parametrize("struct", STRUCTS, ids=lambda s: f"{s.__module__.rpartition('.')[2]}.{s.__name__}")
def test_values_are_frozen_and_named_in_camel_case_on_the_wire(struct: type[msgspec.Struct]) -> None:
    assert struct.__struct_config__.frozen
    assert not struct.__struct_config__.forbid_unknown_fields
    for name, sent in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        words = name.rstrip("_").split("_")
        assert sent == words[0] + "".join(word.capitalize() for word in words[1:])
        assert re.fullmatch(r"[a-z][a-zA-Z0-9]*", sent)


@pytest.mark.rule("D.D.2")
@pytest.mark.parametrize("struct", STRUCTS, ids=lambda s: f"{s.__module__.rpartition('.')[2]}.{s.__name__}")
def test_unknown_fields_are_absent_and_never_null(struct: type[msgspec.Struct]) -> None:
    assert struct.__struct_config__.omit_defaults or not struct.__struct_defaults__
    if struct.__name__ == "SetActiveTask":
        return  # there null has a meaning of its own: it clears (D.O.11)
    required = len(struct.__struct_fields__) - len(struct.__struct_defaults__)
    for field in msgspec.structs.fields(struct)[:required]:
        if field.required:
            assert type(None) not in get_args(field.type), field.name


@pytest.mark.rule("D.D.22", "D.D.2")
@settings(max_examples=30, deadline=None)
@given(values_of(Package))
def test_a_package_has_no_null_and_reads_back(package: Package) -> None:
    data = codec.encode_json(package)
    plain: dict[str, Any] = msgspec.json.decode(data)
    assert {"version", "runId", "step", "blocks", "manifest"} == set(plain) - {"prefill"}
    assert ("prefill" in plain) == (package.prefill is not None)
    assert None not in set(_leaves(plain))
    assert codec.decode_json(data, Package) == package


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for item in cast("dict[str, object]", value).values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _leaves(item)
    else:
        yield value


@pytest.mark.rule("D.W.6")
@pytest.mark.parametrize("struct", [Scope, Model, ContextBudget])
def test_an_unknown_keyword_is_a_type_error_and_an_unknown_field_is_ignored(struct: type[msgspec.Struct]) -> None:
    with pytest.raises(TypeError):
        struct(surprise=1)
    model = {"provider": "p", "modelId": "m", "contextWindow": 1, "maxOutputTokens": 1, "surprise": [1]}
    assert isinstance(msgspec.json.decode(msgspec.json.encode(model), type=struct), struct)


@pytest.mark.rule("D.W.6")
@pytest.mark.parametrize("number", [True, False, -1, 1.0, "1", None, MAX_SAFE_INTEGER + 1, float("nan")])
def test_a_count_is_a_safe_integer_and_no_bool(number: Any) -> None:
    require_count("count", MAX_SAFE_INTEGER)
    with pytest.raises(InvalidTypeError):
        require_count("count", number)
    with pytest.raises(InvalidTypeError):
        merge_budget({"max_tokens": number})


@pytest.mark.rule("D.W.6", "D.B.7")
def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(TypeError, match="maxTokenz"):
        merge_budget({"maxTokenz": 5})


@pytest.mark.rule("D.Y.1", "D.Y.2", "D.Y.3", "D.Y.5", "D.Y.6", "D.Y.7")
def test_recorded_words_are_these_to_the_letter() -> None:
    assert get_args(EntryReason) == (
        "mandatory",
        "ranked",
        "reallocated",
        "already-placed",
        "over-budget",
        "duplicate",
        "superseded",
        "restored",
    )
    assert set(get_args(RefreshReason)) == {
        "initial",
        "reused",
        "host-request",
        "redacted",
        "overflow-retry",
        "task-change",
    }
    assert get_args(Fallback) == ("pass-limit", "source-failed")
    assert get_args(BlockPlacement) == ("append", "ephemeral-tail")
    assert [s.value for s in SourceStatus] == ["ok", "failed", "skipped"]
    assert isinstance(SourceStatus, enum.EnumMeta)
    assert set(get_args(CachePrefixCause)) == {
        "model",
        "tools",
        "system",
        "core-memory",
        "redacted",
        "compaction",
        "history",
    }


@pytest.mark.rule("D.D.2", "D.A.5")
def test_an_entry_has_these_fields() -> None:
    assert ContextEntry.__struct_encode_fields__ == (
        "source",
        "kind",
        "recordId",
        "digest",
        "tokens",
        "selected",
        "reason",
        "revision",
        "query",
    )
    assert get_args(next(f for f in msgspec.structs.fields(ContextManifest) if f.name == "version").type) == (1,)


def test_well_known_sources_have_a_kind() -> None:
    assert default_kind("docs") == "rag"
    assert default_kind("memory") == "memory"
    assert default_kind("tickets") is None
