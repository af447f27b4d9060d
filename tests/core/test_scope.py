"""Scopes narrow and never widen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.scope import SCOPE_FIELDS, lies_within, narrow, read_field, require_scope, require_within
from contextbus_protocol.errors import InvalidTypeError, ScopeConflictError
from contextbus_protocol.values import Scope

fields = st.sampled_from([None, "a", "b"])
scopes = st.builds(Scope, fields, fields, fields, fields, fields)


@pytest.mark.rule("D.K.2", "D.K.3")
@pytest.mark.parametrize(
    ("pinned", "requested", "effective"),
    [
        (Scope(user_id="ada"), Scope(), Scope(user_id="ada")),
        (Scope(), Scope(user_id="ada"), Scope(user_id="ada")),
        (Scope(user_id="ada"), Scope(user_id="ada"), Scope(user_id="ada")),
        (Scope(user_id="ada"), Scope(chat_id="c"), Scope(user_id="ada", chat_id="c")),
    ],
)
def test_a_field_set_on_one_side_or_equal_on_both_holds(pinned: Scope, requested: Scope, effective: Scope) -> None:
    assert narrow(pinned, requested) == effective


@pytest.mark.rule("D.K.3")
@pytest.mark.parametrize("field", SCOPE_FIELDS)
def test_a_field_that_differs_is_a_type_error_which_names_it_and_no_value(field: str) -> None:
    with pytest.raises(TypeError, match=field) as caught:
        narrow(Scope(**{field: "secret-one"}), Scope(**{field: "secret-two"}))
    assert isinstance(caught.value, ScopeConflictError)
    assert caught.value.data.field == field
    assert "secret" not in str(caught.value)


@pytest.mark.rule("D.K.2", "D.K.3", "D.K.6")
@given(scopes, scopes)
def test_what_comes_out_lies_within_both_sides(pinned: Scope, requested: Scope) -> None:
    conflict = any(
        None not in (mine, theirs) and mine != theirs
        for mine, theirs in ((read_field(pinned, f), read_field(requested, f)) for f in SCOPE_FIELDS)
    )
    if conflict:
        with pytest.raises(ScopeConflictError):
            narrow(pinned, requested)
    else:
        effective = narrow(pinned, requested)
        assert lies_within(effective, pinned)
        assert lies_within(effective, requested)
        assert narrow(requested, pinned) == effective


@pytest.mark.rule("D.K.6")
def test_a_child_sets_what_its_parent_sets() -> None:
    parent = Scope(user_id="ada", chat_id="c")
    assert lies_within(Scope(user_id="ada", chat_id="c", run_id="r"), parent)
    assert not lies_within(Scope(user_id="ada"), parent)
    assert not lies_within(Scope(user_id="bob", chat_id="c"), parent)
    assert lies_within(Scope(user_id="bob"), Scope())


@pytest.mark.rule("D.K.5", "D.K.7")
def test_a_scope_outside_of_the_parent_run_is_refused() -> None:
    parent = Scope(user_id="ada")
    assert require_within(Scope(user_id="ada", run_id="r"), parent) == Scope(user_id="ada", run_id="r")
    with pytest.raises(ScopeConflictError, match="user_id") as caught:
        require_within(Scope(run_id="r"), parent)
    assert caught.value.data.field == "user_id"


@pytest.mark.rule("D.K.4")
def test_a_scope_must_name_somebody() -> None:
    with pytest.raises(ScopeConflictError, match="at least one"):
        require_scope(Scope())
    with pytest.raises(ScopeConflictError, match="user_id"):
        require_scope(Scope(user_id="", chat_id="c"))
    assert require_scope(Scope(actor_id="x")) == Scope(actor_id="x")


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(InvalidTypeError):
        read_field(Scope(), "tenant")
