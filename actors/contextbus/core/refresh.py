"""When a run retrieves again, and with which query (D.G)."""

from __future__ import annotations

import msgspec

from contextbus.core.run_state import RunState
from contextbus_protocol.package import Fallback, RefreshReason
from contextbus_protocol.values import RefreshOptions


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
    state: RunState,
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
        state: the run before the step.
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
    state: RunState,
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
