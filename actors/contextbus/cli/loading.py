"""Sources of the user's own, loaded from a Python file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from contextbus.cli.failures import UsageFault
from contextbus.sources.interface import Source, check_source
from contextbus_protocol.errors import InvalidTypeError


def load_sources(path: Path) -> tuple[Source, ...]:
    """Every source of a file, in the order in which it defines them.

    The file's folder joins the import path, as when Python runs the file.

    Raises:
        UsageFault: there is no such file, it cannot be loaded, holds no source, or two with one id.
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
    found: dict[str, Source] = {}
    for value in vars(module).values():
        if isinstance(value, type) or not isinstance(value, Source):
            continue
        try:
            source = check_source(value)
        except InvalidTypeError as exc:
            raise UsageFault(f"{path}: {exc.message}") from None
        if found.setdefault(source.id, source) is not source:
            raise UsageFault(f"{path}: two sources have the id {source.id!r}; give each its own")
    if not found:
        raise UsageFault(f'{path} holds no source; decorate a function with @source(id="tickets", kind="rag")')
    return tuple(found.values())


def _line_in(path: Path, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return ""  # it names the line itself
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""
