"""Scopes: whose data may be read.  A request narrows what is pinned and never widens it."""

from __future__ import annotations

from typing import Final

from contextbus_protocol.errors import ErrorData, InvalidTypeError, ScopeConflictError
from contextbus_protocol.values import Scope

SCOPE_FIELDS: Final[tuple[str, ...]] = ("user_id", "agent_id", "run_id", "actor_id", "chat_id")


def read_field(scope: Scope, field: str) -> str | None:
    """The value of one of ``SCOPE_FIELDS``; None if the scope leaves it open."""
    match field:
        case "user_id":
            return scope.user_id
        case "agent_id":
            return scope.agent_id
        case "run_id":
            return scope.run_id
        case "actor_id":
            return scope.actor_id
        case "chat_id":
            return scope.chat_id
        case _:
            raise InvalidTypeError(f"a scope has no field {field!r}; it has {', '.join(SCOPE_FIELDS)}")


def set_fields(scope: Scope) -> tuple[tuple[str, str], ...]:
    """The fields that are set, with their values, in the order of ``SCOPE_FIELDS``."""
    pairs = ((field, read_field(scope, field)) for field in SCOPE_FIELDS)
    return tuple((field, value) for field, value in pairs if value is not None)


def narrow(pinned: Scope, requested: Scope) -> Scope:
    """Combine two scopes field by field: set on one side, or equal on both (D.K.2, D.K.3).

    Raises:
        ScopeConflictError: a field is set on both sides to different values; also a ``TypeError``.
    """
    if requested == pinned:
        return pinned
    values: dict[str, str] = dict(set_fields(pinned))
    for field, value in set_fields(requested):
        if values.setdefault(field, value) != value:
            raise ScopeConflictError(
                f"the scope asks for another {field} than the pinned one: a request may narrow a scope, never widen it",
                ErrorData(field=field),
            )
    return Scope(**values)


def require_scope(scope: Scope) -> Scope:
    """Give back a scope that names somebody (D.K.4): an empty one never means everything (B61).

    Raises:
        ScopeConflictError: no field is set, or one is set to an empty text; also a ``TypeError``.
    """
    pairs = set_fields(scope)
    if not pairs:
        raise ScopeConflictError(f"a scope must set at least one of {', '.join(SCOPE_FIELDS)}")
    for field, value in pairs:
        if not value:
            raise ScopeConflictError(
                f"{field} of the scope is empty: leave it out, or name whose data is meant", ErrorData(field=field)
            )
    return scope


def lies_within(child: Scope, parent: Scope) -> bool:
    """Whether the child sets every field that the parent sets, to the same value (D.K.6, D.K.24)."""
    return all(read_field(child, field) == value for field, value in set_fields(parent))


def require_within(child: Scope, parent: Scope) -> Scope:
    """Give back the child if it lies within the parent (D.K.5, D.K.7).

    Raises:
        ScopeConflictError: it does not; the message names the first field, never a value.
    """
    for field, value in set_fields(parent):
        if read_field(child, field) != value:
            raise ScopeConflictError(
                f"the scope must lie within that of the parent run: its {field} differs", ErrorData(field=field)
            )
    return child
