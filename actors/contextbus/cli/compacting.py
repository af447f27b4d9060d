"""``contextbus compact``: the older part of a conversation in a file becomes a summary."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Final

import anyio.to_thread
import msgspec
import typer

from contextbus import client
from contextbus.cli import compaction_report, inputs, options
from contextbus.cli.compaction_work import Media, Settings, Work, prepare
from contextbus.cli.failures import CannotFitFault, UsageFault
from contextbus.cli.message_files import read_message_file
from contextbus.cli.models import HEURISTICS
from contextbus.cli.output import note, print_json, show_progress, stderr, stdout
from contextbus.cli.running import run
from contextbus.cli.summariser_options import FORMS, Watched, open_summariser
from contextbus.client import CannotFit, Compacted, CompactionPlan, RetentionPolicy
from contextbus.client.compaction.counting import CountGiven
from contextbus.client.compaction.reasons import find_reasons
from contextbus.core.ai_sdk import write_ai_sdk
from contextbus.runtime.tokenizers import TOKENIZER_NAMES
from contextbus.summarisers.built_in import EXTRACTIVE_ID
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.values import MAX_SAFE_INTEGER, Usage

_EPILOG: Final = """Examples:

contextbus compact conversation.json --dry-run

contextbus compact conversation.json --target-tokens 2000 --out shorter.json

contextbus compact chats.jsonl --conversation 3 --summariser openai:gpt-5-mini --instructions "Keep order numbers."

contextbus compact conversation.json --keep-recent-tokens 1500 --json
"""
_TRY: Final = {
    "no-safe-boundary": "keep less with --keep-last or --keep-recent-tokens; --dry-run shows why each message stays",
    "protected-history": "give a larger --target-tokens, or keep less with --keep-last",
    "incomplete-summary": "its output was cut off or held more than text: give a larger --target-tokens, or another "
    "--summariser",
    "empty-summary": "give a larger --target-tokens, or another --summariser",
    "summary-too-large": "give a larger --target-tokens, or another --summariser",
}
_WHY: Final = {
    "no-safe-boundary": "no message may be replaced",
    "protected-history": "what stays leaves no room for a summary",
    "incomplete-summary": "the summariser did not finish its answer",
    "empty-summary": "the summariser gave an empty answer",
    "summary-too-large": "with the summary the messages do not fit the target",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compact", epilog=_EPILOG)(compact_file)


def compact_file(
    file: Annotated[
        Path,
        typer.Argument(
            help="A conversation in a provider's form, JSON Lines of them, or a session of Claude Code or Codex; "
            "a session and Responses items are written as AI SDK messages."
        ),
    ],
    target_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_SAFE_INTEGER,
            metavar="TOKENS",
            help="The most that the messages may count afterwards; half of what they count now without it.",
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_SAFE_INTEGER, metavar="N", help="How many last messages stay at least; 4 by default."
        ),
    ] = None,
    keep_recent_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_SAFE_INTEGER, metavar="TOKENS", help="How much of the latest messages stays."),
    ] = None,
    instructions: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the summary must preserve in addition.")
    ] = None,
    summariser: Annotated[
        str,
        typer.Option(
            metavar=FORMS, help="What writes the summary; extractive needs no model, keys come from the environment."
        ),
    ] = EXTRACTIVE_ID,
    summary_input_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_SAFE_INTEGER,
            metavar="TOKENS",
            help="The most that the summariser takes at once; a larger range is summarised in pieces.",
        ),
    ] = None,
    media: Annotated[
        Media, typer.Option(help="Whether images and files stay with all behind them, or are named in the summary.")
    ] = Media.protect,
    long_running: Annotated[
        list[str] | None, typer.Option(metavar="TOOL", help="A tool whose unanswered calls stay; may be given again.")
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"What counts tokens: {', '.join((*HEURISTICS, *TOKENIZER_NAMES))}. By default a fourth of the "
            "characters of the messages' JSON, or classes where there is media.",
        ),
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID|INDEX", help="Which conversation of a file with several, from 0.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out", "--output", "-o", metavar="FILE", help="Where the shorter conversation goes; - to print it."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; nothing is summarised.")] = False,
    as_json: options.Json = False,
) -> None:
    """Replace the older part of a conversation by a summary, and show what was replaced, before and after.

    The file itself is not changed. No server is needed.
    """

    async def work() -> None:
        if str(output) == "-" and as_json:
            raise UsageFault("--out - prints the conversation, --json prints the result with it: leave one out")
        if dry_run and output is not None:
            raise UsageFault("--dry-run writes nothing: leave out --out")
        _check_output(file, output)
        read = await anyio.to_thread.run_sync(read_message_file, file, conversation)
        settings = Settings(
            target_tokens=target_tokens or 1,
            keep_last_messages=keep_last,
            keep=None if keep_recent_tokens is None else RetentionPolicy(keep_recent_tokens=keep_recent_tokens),
            instructions=instructions,
            count_tokens=None,
            long_running=tuple(long_running or ()),
            media=media,
        )
        made = await anyio.to_thread.run_sync(
            lambda: prepare(file.name, read, settings, estimator, summariser, chosen=target_tokens is not None)
        )
        async with AsyncExitStack() as stack:
            asked = await open_summariser(summariser, stack)
            if dry_run:
                _show_plan(made, as_json=as_json)
            else:
                await _compact(made, asked, summary_input_tokens, output, as_json=as_json)

    run(work, as_json=as_json)


async def _compact(
    work: Work, summariser: Watched, summary_input_tokens: int | None, output: Path | None, *, as_json: bool
) -> None:
    settings = work.settings
    count: CountGiven | None = settings.count_tokens
    with show_progress() as progress:
        task = progress.add_task(f"summarise with {summariser.name}", total=None)
        if summariser.is_remote and progress.disable:
            note(f"asking {summariser.name} for a summary")
        result = await client.compact(
            work.source.given,
            model=summariser,
            target_tokens=settings.target_tokens,
            keep_last_messages=settings.keep_last_messages,
            instructions=settings.instructions,
            count_tokens=count,
            long_running=settings.long_running,
            keep=settings.keep,
            summary_input_tokens=summary_input_tokens,
            media=settings.media.value,
        )
        progress.update(task, completed=summariser.asked)
    if isinstance(result, CannotFit):
        if as_json:
            print_json(_as_fields(work, result, None))
        raise CannotFitFault(_explain(work, result))
    data = work.file.write(result.messages)
    to_stdout = str(output) == "-"
    if to_stdout:
        sys.stdout.write(data.decode())
        sys.stdout.flush()
    elif output is not None:
        _write(output, data)
    if as_json:
        print_json(_as_fields(work, result, output))
    else:
        _show_result(work, result, output)


def _show_result(work: Work, result: Compacted, output: Path | None) -> None:
    to_stdout = str(output) == "-"
    usage = result.usage
    start, end = result.replaced_range.start, result.replaced_range.end
    compaction_report.show_result(
        stderr() if to_stdout else stdout(),
        work.facts,
        after=result.tokens.after,
        start=start,
        end=end,
        replayed=work.replayed(start, end),
        summary=result.summary,
        requests=result.requests,
        usage=f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out" if isinstance(usage, Usage) else None,
        written=None if output is None or to_stdout else str(output),
    )


def _show_plan(work: Work, *, as_json: bool) -> None:
    """Print the plan; one that cannot be carried out ends with its reason."""
    plan = work.plan()
    found = plan.replaced_range
    roles = [message.role for message in work.source.messages]
    leading = next((index for index, role in enumerate(roles) if role != "system"), len(roles))
    replayed = None if found is None else work.replayed(found.start, found.end)
    reasons = find_reasons(work.source.items, work.settings.reduction, leading if found is None else found.end)
    room = plan.room if isinstance(plan, CompactionPlan) else None
    allowed = plan.request.max_output_tokens if isinstance(plan, CompactionPlan) else None
    if as_json:
        print_json(
            {
                "status": "planned" if isinstance(plan, CompactionPlan) else plan.status,
                "reason": None if isinstance(plan, CompactionPlan) else plan.reason,
                "replacedRange": None if found is None else inputs.as_fields(found),
                "replayed": replayed,
                "tokensBefore": work.facts.before,
                "targetTokens": work.facts.target,
                "counter": work.facts.counter,
                "room": room,
                "maxOutputTokens": allowed,
                "requiredTokens": None if isinstance(plan, CompactionPlan) else plan.required_tokens,
                "stays": [{"index": n, "reason": reason} for n, reason in enumerate(reasons) if reason is not None],
            }
        )
    else:
        fates = [_fate(reason, said_again=index == replayed) for index, reason in enumerate(reasons)]
        compaction_report.show_plan(stdout(), work.facts, fates, room=room, allowed=allowed)
    if isinstance(plan, CannotFit):
        raise CannotFitFault(_explain(work, plan))


def _fate(reason: str | None, *, said_again: bool) -> str:
    if reason is not None:
        return f"stays: {reason}"
    return "replaced, and said again" if said_again else "replaced by the summary"


def _explain(work: Work, result: CannotFit) -> str:
    needs = "" if result.required_tokens is None else f" (it takes {result.required_tokens:,})"
    return (
        f"{work.facts.name} cannot be compacted to {work.facts.target:,} tokens: {result.reason}: "
        f"{_WHY[result.reason]}{needs}; {_TRY[result.reason]}"
    )


def _as_fields(work: Work, result: Compacted | CannotFit, output: Path | None) -> dict[str, object]:
    found = result.replaced_range
    fields: dict[str, object] = {
        "status": result.status,
        "reason": result.reason if isinstance(result, CannotFit) else None,
        "replacedRange": None if found is None else inputs.as_fields(found),
        "tokens": inputs.as_fields(result.tokens),
        "targetTokens": work.facts.target,
        "counter": work.facts.counter,
        "summariser": work.facts.summariser,
        "requests": result.requests,
        "usage": None if result.usage is None else msgspec.to_builtins(result.usage),
    }
    if isinstance(result, CannotFit):
        return {**fields, "requiredTokens": result.required_tokens}
    start, end = result.replaced_range.start, result.replaced_range.end
    fields |= {"summary": result.summary, "replayed": work.replayed(start, end)}
    if output is not None:
        return {**fields, "output": str(output)}
    return {**fields, "messages": [write_ai_sdk(m) if isinstance(m, ChatMessage) else m for m in result.messages]}


def _check_output(file: Path, path: Path | None) -> None:
    """Refuse what cannot be written, or is the only copy, before a model is paid for it (C.G.13)."""
    if path is None or str(path) == "-":
        return
    if path.exists() and file.exists() and path.samefile(file):
        raise UsageFault(f"{path} is the conversation itself, which should be kept; name another file with --out")
    if path.is_dir():
        raise UsageFault(f"{path} is a folder; name a file with --out, for example {path / 'shorter.json'}")
    if not path.parent.is_dir():
        raise UsageFault(f"there is no folder {path.parent}; make it first, or name another file with --out")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise UsageFault(f"{path} cannot be written: {exc.strerror}; name another file with --out") from None
