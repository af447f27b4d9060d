"""Sources and summarisers of the user's own, loaded from a Python file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TypeVar

import msgspec

from contextbus.cli.failures import UsageFault
from contextbus.sources.interface import Source, check_source
from contextbus.summarisers.interface import Summariser, check_summariser
from contextbus_protocol.errors import InvalidTypeError


class Loaded(msgspec.Struct, frozen=True):
    """What a file holds, in the order in which it defines it."""

    sources: tuple[Source, ...] = ()
    summarisers: tuple[Summariser, ...] = ()


def load_sources(path: Path) -> tuple[Source, ...]:
    """Every source of a file.

    Raises:
        UsageFault: as ``load_workers``, or it holds no source.
    """
    sources = load_workers(path).sources
    if not sources:
        raise UsageFault(f'{path} holds no source; decorate a function with @source(id="tickets", kind="rag")')
    return sources


def load_workers(path: Path) -> Loaded:
    """Every source and summariser of a file.

    The file's folder joins the import path, as when Python runs the file.

    Raises:
        UsageFault: there is no such file, it cannot be loaded, holds neither, or two of a kind with one id.
    """
    if not path.is_file():
        raise UsageFault(f"there is no file {path}; check the path")
    spec = importlib.util.spec_from_file_location(f"contextbus_worker_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageFault(f"{path} is no Python file; name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        raise UsageFault(f"{path} cannot be loaded: {type(exc).__name__}: {exc}{_line_in(path, exc)}") from exc
    sources: dict[str, Source] = {}
    summarisers: dict[str, Summariser] = {}
    for value in vars(module).values():
        if isinstance(value, type):
            continue
        try:
            if isinstance(value, Source):
                _keep(path, "sources", sources, check_source(value))
            if isinstance(value, Summariser):
                _keep(path, "summarisers", summarisers, check_summariser(value))
        except InvalidTypeError as exc:
            raise UsageFault(f"{path}: {exc.message}") from None
    if not sources and not summarisers:
        raise UsageFault(
            f'{path} holds no source and no summariser; decorate a function with @source(id="tickets", kind="rag") '
            'or @summariser(id="mine")'
        )
    return Loaded(tuple(sources.values()), tuple(summarisers.values()))


W = TypeVar("W", Source, Summariser)


def _keep(path: Path, kind: str, found: dict[str, W], worker: W) -> None:
    if found.setdefault(worker.id, worker) is not worker:
        raise UsageFault(f"{path}: two {kind} have the id {worker.id!r}; give each its own")


def _line_in(path: Path, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return ""  # it names the line itself
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""
