"""The state of a compiler that is used without a run: plain data version 1, no text (D.H.1, D.H.4, D.H.13)."""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus_protocol.package import BlockPlacement
from contextbus_protocol.values import PlacedEntry, Value


class SentBlock(Value, frozen=True):
    """One block that a compiler gave out: the digest of its message, with its step and pass (D.H.13)."""

    placement: BlockPlacement
    digest: str
    step: int
    pass_: int = msgspec.field(name="pass")


class RequestPrefix(Value, frozen=True, kw_only=True):
    """What a request began with, by part, each as a digest (D.F.22).

    ``history`` is the chain digest of its first ``count`` messages, the blocks that stay in the history included;
    ``system`` is that of its leading system messages, ``layer`` that of the system messages of a prompt, absent without
    any.
    """

    model: str
    tools: str | None = None
    system: str
    history: str
    count: int
    layer: str | None = None


class ContextCompilerState(Value, frozen=True, kw_only=True):
    """What a compiler knows of its steps (D.H.1, D.H.13).

    ``placed`` are the entries of every block that may still stand in the history, and the newest placement of each
    record; ``blocks`` tells them from the user's messages.  ``last_package`` is the digest of the last package's JSON:
    the host keeps packages (D.H.12).  The next request is compared with ``prefix``, a step compiled again with
    ``prefix_before``.  The thinking of the request's first ``stale_thinking`` messages is left out (D.F.20).
    ``refresh_requested`` is a host's request that no retrieval has served; a task change that waits
    shows in ``last_active_task``.  ``refused_task`` is the active task for which a pass limit was reported (D.G.11).
    ``absent`` are bodies of loaded skills that every source answered without, ``absent_loads`` for each the chain
    digest of the messages up to the load: a later load asks again (D.H.8, D.K.26).  ``warned`` are warnings that come
    once.
    """

    version: Literal[1]
    passes: int = 0
    last_step: int | None = None
    last_refresh_step: int | None = None
    last_active_task: str | None = None
    placed: tuple[PlacedEntry, ...] = ()
    blocks: tuple[SentBlock, ...] = ()
    last_package: str | None = None
    prefix: RequestPrefix | None = None
    prefix_before: RequestPrefix | None = None
    refresh_requested: bool = False
    refused_task: tuple[str | None, ...] = ()
    absent: tuple[str, ...] = ()
    absent_loads: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    stale_thinking: int = 0
