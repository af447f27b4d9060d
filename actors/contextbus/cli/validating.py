"""``contextbus validate``: whether a payload in a file is one that its API takes."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import Annotated, Final

import anyio.to_thread
import msgspec
import typer
from rich.text import Text

from contextbus.cli import inputs, options
from contextbus.cli.failures import FAILED, OK, UsageFault
from contextbus.cli.output import print_json, stdout
from contextbus.cli.running import run
from contextbus.validation import SDKS, TARGETS, Finding, check_types, tell_target, validate

_STDIN: Final = Path("-")
_COLOURS: Final = {"error": "bold red", "warning": "yellow"}
_EPILOG: Final = """Examples:

contextbus validate payload.json --target anthropic --model claude-sonnet-4-5

contextbus compile conversation.json --target openai --output - | contextbus validate - --target openai --strict

Exit codes: 0 no error; 1 there are errors, or with --strict warnings; 2 the file cannot be used.
"""


class Api(enum.StrEnum):
    """Whose API a payload is for."""

    anthropic = "anthropic"
    openai = "openai"
    openai_responses = "openai-responses"
    gemini = "gemini"


class Result(msgspec.Struct, frozen=True):
    """What was found, and whether the SDK's types were asked too."""

    target: str
    findings: tuple[Finding, ...]
    types: bool

    def count(self, severity: str) -> int:
        """How many findings have a severity."""
        return sum(1 for finding in self.findings if finding.severity == severity)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate", epilog=_EPILOG)(validate_file)


def validate_file(
    file: Annotated[Path, typer.Argument(help="A request's body as JSON; - for standard input.")],
    target: Annotated[
        Api | None, typer.Option(help="Whose API it is for; told from its form where that is certain.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="The model, where the body does not name it; without one, the newest models' rules hold."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    as_json: options.Json = False,
) -> None:
    """Check a payload before it is sent: the API's rules of order and pairing, and the types of its SDK.

    Nothing is sent, and no content is shown.  The types are checked where the provider's SDK is installed.
    """

    async def work() -> int:
        body = await anyio.to_thread.run_sync(read_body, file)
        found = target.value if target is not None else tell_target(body, model)
        if found is None:
            raise UsageFault(f"{_name(file)} does not show whose API it is for: give --target {'|'.join(TARGETS)}")
        result = await anyio.to_thread.run_sync(_check, body, found, model)
        if as_json:
            print_json(_as_fields(result))
        else:
            _show(file, result)
        failed = result.count("error") or (strict and result.count("warning"))
        return FAILED if failed else OK

    run(work, as_json=as_json)


def read_body(path: Path) -> object:
    """The JSON value of a file, or of standard input.

    Raises:
        UsageFault: it cannot be read, or is no JSON.
    """
    data = sys.stdin.buffer.read() if path == _STDIN else inputs.read_bytes(path)
    try:
        # Not msgspec: a lone surrogate is a finding, not a file that cannot be read.
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        where = f", line {exc.lineno}" if isinstance(exc, json.JSONDecodeError) else ""
        raise UsageFault(f"{_name(path)} is no JSON{where}; it should hold the body of one request") from None


def _refuse(name: str) -> object:
    raise ValueError(name)


def _name(path: Path) -> str:
    return "standard input" if path == _STDIN else str(path)


def _check(body: object, target: str, model: str | None) -> Result:
    types = check_types(body, target)
    return Result(target, (*validate(body, target, model), *(types or ())), types is not None)


def _show(file: Path, result: Result) -> None:
    console = stdout()
    for finding in result.findings:
        line = Text.assemble(
            (f"{finding.severity}: ", _COLOURS[finding.severity]), f"{finding.rule} {finding.place}: {finding.message}"
        )
        console.print(line, soft_wrap=True)
    counts = f"{_counted(result.count('error'), 'error')}, {_counted(result.count('warning'), 'warning')}"
    console.print(Text(f"{_name(file)} for {result.target}: {counts}"), soft_wrap=True)
    sdk = SDKS[result.target]
    types = f"types of the SDK {sdk}" if result.types else f"no types, as the SDK is missing (pip install {sdk})"
    console.print(Text(f"checked: rules of {result.target}; {types}", style="dim"), soft_wrap=True)


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _as_fields(result: Result) -> dict[str, object]:
    return {
        "target": result.target,
        "errors": result.count("error"),
        "warnings": result.count("warning"),
        "layers": {"rules": True, "types": result.types},
        "findings": msgspec.to_builtins(result.findings),
    }
