"""The client: open a bus, hold a run, compile before each model call.

```python
import asyncio

import contextbus.client as contextbus

MODEL = contextbus.Model("anthropic", "claude-opus-4-6", 200_000, 8_000)


async def main():
    async with contextbus.open("memory:") as bus:  # open() keeps runs: it starts a nats-server on .contextbus
        run = await bus.run("run-1", scope=contextbus.Scope(user_id="ada"), sources=["memory"])
        step = await run.before_model_call([contextbus.user("Which seat do I like?")], model=MODEL)
        print(step.payload("anthropic").body)


asyncio.run(main())
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from contextbus.client.compaction.compact import compact
    from contextbus.client.compaction.counting import estimate_tokens
    from contextbus.client.compaction.planning import CompactionPlan, apply_summary, plan_compaction
    from contextbus.client.compaction.results import CannotFit, Compacted
    from contextbus.client.compaction_log import CompactionInfo
    from contextbus.client.compaction_options import Compaction
    from contextbus.client.compiled import CompiledStep
    from contextbus.client.compiler import Compiler
    from contextbus.client.context_bus import ContextBus
    from contextbus.client.opening import open_bus as open  # noqa: A004  # the word that users write
    from contextbus.client.prompt import Prompt
    from contextbus.client.report import Report
    from contextbus.client.run import Run
    from contextbus.client.snapshot_tools import SnapshotHandle, working_memory_tools
    from contextbus.client.step_hooks import CompileContext, PreparedStep, StepContext
    from contextbus.client.token_estimator import TokenEstimator, create_token_estimator
    from contextbus.client.triggers import CompactionSnapshot, cache_likely_cold, messages_exceed, tokens_exceed
    from contextbus.client.window import Window
    from contextbus.core.budget import DEFAULT_CONTEXT_BUDGET, DEFAULT_CONTEXT_REFRESH, merge_budget
    from contextbus.core.compile import compile_context
    from contextbus.core.context_input import ContextInput
    from contextbus.core.estimate import estimate_overhead, make_estimator
    from contextbus.core.manifest import context_warnings
    from contextbus.core.skill_tool import answer_load_skill, load_skill_tool
    from contextbus.core.working_memory import create_working_memory
    from contextbus.core.working_memory_patch import apply_working_memory_patch
    from contextbus.runtime.telemetry import otel_observer
    from contextbus.sources.interface import candidate, source
    from contextbus.sources.rag import FolderSource
    from contextbus.sources.skills import SkillsSource
    from contextbus.summarisers.anthropic import anthropic_summariser
    from contextbus.summarisers.built_in import extractive_summariser
    from contextbus.summarisers.interface import Summary, SummaryRequest, summariser
    from contextbus.summarisers.openai import openai_summariser
    from contextbus_protocol import errors
    from contextbus_protocol.chat import ChatMessage, ToolResult, assistant, system, user
    from contextbus_protocol.compaction import SummaryPart
    from contextbus_protocol.compiler_state import ContextCompilerState
    from contextbus_protocol.values import (
        Candidate,
        ContextBudget,
        EstimatorSpec,
        Model,
        ModelPrefix,
        RefreshOptions,
        RetentionPolicy,
        Scope,
        SourceResult,
        SourceSpec,
        SourceStatus,
        Usage,
    )

__all__ = [
    "DEFAULT_CONTEXT_BUDGET",
    "DEFAULT_CONTEXT_REFRESH",
    "Candidate",
    "CannotFit",
    "ChatMessage",
    "Compacted",
    "Compaction",
    "CompactionInfo",
    "CompactionPlan",
    "CompactionSnapshot",
    "CompileContext",
    "CompiledStep",
    "Compiler",
    "ContextBudget",
    "ContextBus",
    "ContextCompilerState",
    "ContextInput",
    "EstimatorSpec",
    "FolderSource",
    "Model",
    "ModelPrefix",
    "PreparedStep",
    "Prompt",
    "RefreshOptions",
    "Report",
    "RetentionPolicy",
    "Run",
    "Scope",
    "SkillsSource",
    "SnapshotHandle",
    "SourceResult",
    "SourceSpec",
    "SourceStatus",
    "StepContext",
    "Summary",
    "SummaryPart",
    "SummaryRequest",
    "TokenEstimator",
    "ToolResult",
    "Usage",
    "Window",
    "answer_load_skill",
    "anthropic_summariser",
    "apply_summary",
    "apply_working_memory_patch",
    "assistant",
    "cache_likely_cold",
    "candidate",
    "compact",
    "compile_context",
    "context_warnings",
    "create_token_estimator",
    "create_working_memory",
    "errors",
    "estimate_overhead",
    "estimate_tokens",
    "extractive_summariser",
    "load_skill_tool",
    "make_estimator",
    "merge_budget",
    "messages_exceed",
    "open",
    "openai_summariser",
    "otel_observer",
    "plan_compaction",
    "source",
    "summariser",
    "system",
    "tokens_exceed",
    "user",
    "working_memory_tools",
]

_MODULES: Final = {
    "contextbus.client.compaction.compact": ("compact",),
    "contextbus.client.compaction.counting": ("estimate_tokens",),
    "contextbus.client.compaction.planning": ("CompactionPlan", "apply_summary", "plan_compaction"),
    "contextbus.client.compaction.results": ("CannotFit", "Compacted"),
    "contextbus.client.compaction_log": ("CompactionInfo",),
    "contextbus.client.compaction_options": ("Compaction",),
    "contextbus.client.compiled": ("CompiledStep",),
    "contextbus.client.compiler": ("Compiler",),
    "contextbus.client.context_bus": ("ContextBus",),
    "contextbus.client.opening": ("open",),
    "contextbus.client.prompt": ("Prompt",),
    "contextbus.client.report": ("Report",),
    "contextbus.client.run": ("Run",),
    "contextbus.client.step_hooks": ("CompileContext", "PreparedStep", "StepContext"),
    "contextbus.client.token_estimator": ("TokenEstimator", "create_token_estimator"),
    "contextbus.client.triggers": ("CompactionSnapshot", "cache_likely_cold", "messages_exceed", "tokens_exceed"),
    "contextbus.client.window": ("Window",),
    "contextbus.client.snapshot_tools": ("SnapshotHandle", "working_memory_tools"),
    "contextbus.core.budget": ("DEFAULT_CONTEXT_BUDGET", "DEFAULT_CONTEXT_REFRESH", "merge_budget"),
    "contextbus.core.compile": ("compile_context",),
    "contextbus.core.context_input": ("ContextInput",),
    "contextbus.core.estimate": ("estimate_overhead", "make_estimator"),
    "contextbus.core.manifest": ("context_warnings",),
    "contextbus.core.skill_tool": ("answer_load_skill", "load_skill_tool"),
    "contextbus.core.working_memory": ("create_working_memory",),
    "contextbus.core.working_memory_patch": ("apply_working_memory_patch",),
    "contextbus.runtime.telemetry": ("otel_observer",),
    "contextbus.sources.interface": ("candidate", "source"),
    "contextbus.sources.rag": ("FolderSource",),
    "contextbus.sources.skills": ("SkillsSource",),
    "contextbus.summarisers.anthropic": ("anthropic_summariser",),
    "contextbus.summarisers.built_in": ("extractive_summariser",),
    "contextbus.summarisers.interface": ("Summary", "SummaryRequest", "summariser"),
    "contextbus.summarisers.openai": ("openai_summariser",),
    "contextbus_protocol.chat": ("ChatMessage", "ToolResult", "assistant", "system", "user"),
    "contextbus_protocol.compaction": ("SummaryPart",),
    "contextbus_protocol.compiler_state": ("ContextCompilerState",),
    "contextbus_protocol.values": (
        "Candidate",
        "ContextBudget",
        "EstimatorSpec",
        "Model",
        "ModelPrefix",
        "RefreshOptions",
        "RetentionPolicy",
        "Scope",
        "SourceResult",
        "SourceSpec",
        "SourceStatus",
        "Usage",
    ),
}
"""Where the names are defined: each is imported when it is used first, so that one part does not load the others."""

_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}
_OTHER_NAMES: Final = {"open": "open_bus"}

if not TYPE_CHECKING:  # type checkers read the imports above, and know of a name that is none

    def __getattr__(name: str) -> object:
        """A public name, from where it is defined."""
        if name == "errors":
            return import_module("contextbus_protocol.errors")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), _OTHER_NAMES.get(name, name))
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Every public name, whether it was used or not."""
        return sorted({*globals(), *__all__})
