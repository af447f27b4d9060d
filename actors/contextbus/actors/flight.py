"""What selection has under way for one run: the command it serves and how far it is."""

from __future__ import annotations

from typing import Literal

import msgspec

from contextbus.core.run import CommandFact, RunState
from contextbus.core.step import StepPlan
from contextbus_protocol import digests
from contextbus_protocol.codec import encode_json
from contextbus_protocol.messages import (
    AppendMessages,
    CompileStep,
    HistoryFact,
    ItemsOffered,
    ReportStep,
    RequestRefresh,
)
from contextbus_protocol.values import Scope, SourceResult

RunCommand = CompileStep | ReportStep | AppendMessages | RequestRefresh


class Prepared(msgspec.Struct, frozen=True):
    """What is settled for a step at one sequence of the log; another sequence means: again."""

    sequence: int
    after: RunState
    history: HistoryFact
    plan: StepPlan
    scope: Scope


class Flight(msgspec.Struct, frozen=True):
    """One command on its way.

    ``phase`` is ``open`` until log and working memory are at hand, ``gather`` while sources are asked, ``commit``
    while placement stores, ``stored`` while a stored package is fetched.
    """

    command: RunCommand
    token: str
    phase: Literal["open", "gather", "commit", "stored"] = "open"
    loading: bool = False
    items: ItemsOffered | None = None
    prepared: Prepared | None = None
    gathered: bool = False
    results: tuple[SourceResult, ...] = ()
    asked_again: tuple[str, ...] = ()
    conflicts: int = 0
    stored: CommandFact | None = None


class SelectionState(msgspec.Struct, frozen=True):
    """Selection's state of one run: the fold, the command in flight, and those behind it."""

    fold: RunState
    loaded: bool = False
    flight: Flight | None = None
    waiting: tuple[RunCommand, ...] = ()
    serial: int = 0


def digest_command(command: RunCommand) -> str:
    """What a command asks for, as a digest: attempt, reply address, times and how it brings its messages left out."""
    key: tuple[object, ...]
    match command:
        case CompileStep():
            key = (
                "compile-step",
                command.step,
                command.history.chain,
                command.user_text,
                command.options,
                command.refresh,
            )
        case ReportStep():
            chain = None if command.history is None else command.history.chain
            key = (
                "report-step",
                command.step,
                command.status,
                chain,
                command.usage,
                command.finish_reason,
            )
        case AppendMessages():
            key = ("append-messages", command.scope, command.estimator, command.history.chain)
        case _:
            key = ("request-refresh",)
    return digests.digest_bytes(encode_json(key))
