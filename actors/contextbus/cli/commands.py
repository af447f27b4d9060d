"""All commands together."""

from __future__ import annotations

from typing import Annotated

import typer

import contextbus
from contextbus.cli import compacting, compiling, doctor, logs, records, services, validating
from contextbus.cli.output import stdout

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 all went well; 1 something differs or failed; 2 the command line or an input cannot be used; "
        "3 no server can be reached; 4 a conversation cannot be compacted as asked; 130 ended by Ctrl-C."
    ),
)
compiling.register(app)
compacting.register(app)
validating.register(app)
services.register(app)
records.register(app)
logs.register(app)
doctor.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        stdout().print(f"contextbus {contextbus.__version__}")
        raise typer.Exit


@app.callback()
def run_contextbus(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Compile the context of LLM agents as actors over NATS, and prove afterwards what each step saw."""
