"""When a run retrieves again, and with which query (D.G)."""

from __future__ import annotations

from typing import Protocol

import msgspec

from contextbus_protocol.package import Fallback, RefreshReason
from contextbus_protocol.values import RefreshOptions


class RefreshState(Protocol):
    """What a plan rests on: the state of a run, or of a compiler without one."""

    @property
    def last(self) -> object:
        """The newest compiled step; None before the first."""
        ...

    @property
    def passes(self) -> int:
        """How often sources were asked."""
        ...

    @property
    def last_refresh_step(self) -> int | None:
        """The step of the newest retrieval."""
        ...

    @property
    def last_active_task(self) -> str | None:
        """The active task of the newest retrieval."""
        ...

    @property
    def refused_task(self) -> tuple[str | None, ...]:
        """The active task for which a pass limit was reported (D.G.11)."""
        ...

    @property
    def refresh_requested(self) -> bool:
        """Whether the host asked and was not served yet."""
        ...


class RefreshPlan(msgspec.Struct, frozen=True):
    """What a step does about retrieval.

    ``reason`` is what the manifest says, ``retrieve`` whether sources are asked; ``skipped`` tells that the query is
    empty (D.G.21).
    """

    reason: RefreshReason
    retrieve: bool = False
    skipped: bool = False
    fallback: Fallback | None = None


def plan_refresh(
    state: RefreshState,
    options: RefreshOptions,
    *,
    step: int,
    active_task_id: str | None,
    host_request: bool,
    query: str,
    has_sources: bool,
    redacted: bool = False,
) -> RefreshPlan:
    """Decide whether a step retrieves (D.G.5-D.G.15, D.G.21, D.J.1).

    Args:
        state: the run or compiler before the step.
        options: the run's refresh options.
        step: the step's number.
        active_task_id: the active task of the working memory that the step is of.
        host_request: whether the host asks with this step.
        query: the query that would be sent.
        has_sources: whether the step has any source.
        redacted: whether a forget took a package of the run: sources are asked whatever the limits say (D.J.1).
    """
    if redacted:
        skipped = has_sources and not query.strip()
        return RefreshPlan("redacted", retrieve=has_sources and not skipped, skipped=skipped)
    reason = _due(state, options, step, active_task_id, host_request=host_request)
    if reason is None:
        return RefreshPlan("reused")
    if not has_sources:
        return RefreshPlan("initial" if state.last is None else "reused")
    if state.passes >= options.max_passes:
        return RefreshPlan("reused", fallback="pass-limit")
    if not query.strip():
        return RefreshPlan(reason, skipped=True)
    return RefreshPlan(reason, retrieve=True)


def _due(
    state: RefreshState,
    options: RefreshOptions,
    step: int,
    active_task_id: str | None,
    *,
    host_request: bool,
) -> RefreshReason | None:
    if state.passes == 0 and not state.refused_task:
        return "initial"
    if host_request or state.refresh_requested:
        return "host-request"
    if active_task_id == state.last_active_task or state.refused_task == (active_task_id,):
        return None
    if step - (state.last_refresh_step or 0) >= options.min_steps:
        return "task-change"
    return None
