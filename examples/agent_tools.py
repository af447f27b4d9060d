"""What agent_anthropic.py and agent_openai.py share: an operations desk's tools, its context, and what is printed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import contextbus.client as contextbus
from contextbus.client import CompiledStep, ContextBus, FolderSource, Run, Scope, ToolResult, Window
from contextbus_protocol.chat import Text

HERE = Path(__file__).parent
SCOPE = Scope(user_id="ada")

SYSTEM = (
    "You are the operations desk's assistant. Look before you conclude, note in working memory what you found, and "
    "propose commands with propose_command; you cannot run any. Answer in two sentences."
)
QUESTIONS = (
    "Billing shows doubled proration lines since 10:31 UTC. What is it, and what do you propose?",
    "How many invoices does finance have to correct, and by when must they hear of it?",
)

Arguments = Mapping[str, Any]


def define(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """A tool whose parameters are texts, all of them required; a step takes it in any provider's shape."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters), "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": schema}


class Desk:
    """Four tools over made-up facts; ``proposals`` is their one effect."""

    definitions = (
        define("service_status", "Version, error rate and probes of a service.", service="its name"),
        define("list_deploys", "The last deploys of a service, newest first.", service="its name"),
        define("count_invoices", "Invoices written today since a time.", since="a time in UTC, as HH:MM"),
        define("propose_command", "Propose a command to the operator.", command="the command", reason="why, in a line"),
    )

    def __init__(self) -> None:
        self.proposals: list[str] = []

    def answer(self, name: str, arguments: Arguments) -> str:
        """What a tool returns.

        Raises:
            KeyError: an argument is missing, or there is no such tool.
        """
        match name:
            case "service_status":
                version = "2026.11.4" if arguments["service"] == "billing" else "2026.10.9"
                return f"{arguments['service']} {version}: errors 0.3 %, probes green, billing_ledger_drift 8"
            case "list_deploys":
                return f"{arguments['service']}: 2026.11.4 at 10:31 UTC today, 2026.11.3 on 2 November, 2026.10.9"
            case "count_invoices":
                return f"since {arguments['since']} UTC: 1,204 invoices written, 412 with two proration lines"
            case "propose_command":
                self.proposals.append(f"{arguments['command']}  ({arguments['reason']})")
                return f"proposal {len(self.proposals)} waits for the operator"
            case _:
                raise KeyError(name)


class Tools:
    """The desk's tools and those of the run's working memory, for one run."""

    def __init__(self, run: Run) -> None:
        self.desk = Desk()
        self._memory = run.working_memory_tools()
        self.definitions = [*self.desk.definitions, *self._memory.definitions("anthropic")]

    async def call_all(self, calls: Iterable[tuple[str, str, str]]) -> list[ToolResult]:
        """Answer the calls of one message, given as id, name and arguments, all at the same time.

        One whose arguments are no JSON object is never made: the next payload answers it with an error, and the log
        keeps what the model wrote.
        """
        answers = await asyncio.gather(*(self._call(*call) for call in calls))
        return [answer for answer in answers if answer is not None]

    async def _call(self, call_id: str, name: str, arguments: str) -> ToolResult | None:
        try:
            given = json.loads(arguments)
        except ValueError:
            return None
        if not isinstance(given, dict):
            return None
        if self._memory.handles(name):
            return await self._memory.call(name, given, call_id=call_id)
        try:
            text, failed = self.desk.answer(name, given), False
        except KeyError as error:
            text, failed = f"there is no {error}", True
        return ToolResult(id=call_id, name=name, content=(Text(text=text),), error=failed)


@asynccontextmanager
async def open_run(options: argparse.Namespace) -> AsyncGenerator[tuple[ContextBus, Run]]:
    """A run with memory records, runbooks and working memory; all of it is gone when the block ends."""
    with tempfile.TemporaryDirectory() as data:
        runbooks = FolderSource(HERE / "runbooks", data=data, id="runbooks")
        async with contextbus.open(options.bus, data=data, sources=[runbooks]) as bus:
            for line in (HERE / "memories.jsonl").read_text(encoding="utf-8").splitlines():
                await bus.memories.remember(json.loads(line)["text"], scope=SCOPE)
            run = await bus.run(scope=SCOPE, sources=["memory", "runbooks"], compaction=Window())
            await run.working_memory.create(**json.loads((HERE / "working-memory.json").read_text(encoding="utf-8")))
            yield bus, run


def show_step(step: CompiledStep, *, sent: int, cached: int, outcome: str) -> None:
    """Print why a step was compiled, what it added, and what the provider says of its request."""
    share = round(100 * cached / sent) if sent else 0
    print(f"step {step.step}: {step.manifest.refresh}; {sent:,} tokens sent, {share} % from cache; {outcome}")
    selected: dict[str, list[str]] = {}
    for entry in step.manifest.entries:
        if entry.selected:
            selected.setdefault(entry.source, []).append(entry.record_id.rpartition("/")[2][:20])
    for source, records in selected.items():
        print(f"    {source}: {', '.join(records)}")


async def show_end(bus: ContextBus, run: Run, tools: Tools) -> None:
    """Print what was proposed, and whether every step comes out the same from the log alone."""
    for proposal in tools.desk.proposals:
        print(f"proposed: {proposal}")
    verdict = await bus.verify(run.id)
    print(f"verify: {verdict.steps} steps computed again, {'clean' if verdict.is_clean else 'different'}")


@asynccontextmanager
async def endpoint(
    provider: str, options: argparse.Namespace, *, tag: str | None = None
) -> AsyncGenerator[dict[str, Any]]:
    """``base_url`` and ``api_key`` for the SDK: what is given, or a local server with a scripted model.

    That model writes its answers in an element named ``tag``, where one is asked for.
    """
    name = f"{provider.upper()}_API_KEY"
    key = os.environ.get(name)
    if key or options.base_url:
        yield {"base_url": options.base_url, "api_key": key or "none"}
        return
    sys.path.insert(0, str(HERE.parent))
    try:
        from tests.providers.scripts import operations  # noqa: PLC0415 - not installed with the package
        from tests.providers.server import serve  # noqa: PLC0415
    except ImportError as error:
        sys.exit(f"Set {name}, or give --base-url; for the local server run it in a clone after make test ({error}).")
    async with serve("anthropic" if provider == "anthropic" else "openai", operations(tag)) as server:
        print(f"no {name}: a scripted model answers at {server.url}")
        yield {"base_url": server.url, "api_key": "none"}


def start(main: Callable[[argparse.Namespace], Coroutine[Any, Any, None]], *, model: str) -> None:
    """Read the command line and run; Ctrl-C leaves through every block that is open."""
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").partition("\n")[0])
    parser.add_argument("--base-url", help="the endpoint; without it and without a key, a local server")
    parser.add_argument("--model", default=model, help="as the endpoint calls it (default: %(default)s)")
    parser.add_argument("--bus", help="nats://… or memory: (default: an embedded nats-server)")
    parser.add_argument("--ask", action="append", metavar="TEXT", help="a question; can be given several times")
    options = parser.parse_args()
    options.ask = options.ask or QUESTIONS
    try:
        asyncio.run(main(options))
    except KeyboardInterrupt:
        print("stopped")
        sys.exit(130)
