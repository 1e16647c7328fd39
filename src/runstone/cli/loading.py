"""Finds what a person names on the command line: something in a Python file or module.

What goes wrong while it is loaded is their code's: it is shown from their first line on, without ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final

from runstone.cli.output import show_traceback
from runstone.errors import SettingsInvalid

_IMPORTING: Final = ("<frozen importlib", importlib.__file__)


def load(place: str) -> ModuleType:
    """The module that a file's path or a dotted name leads to."""
    try:
        return _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except _NotThere:
        raise
    except (Exception, SystemExit) as error:
        show_traceback(error, _theirs(error.__traceback__))
        raise SettingsInvalid(f"{place} cannot be loaded: {_reason(error)}") from error


class _NotThere(SettingsInvalid):
    """There is nothing to load."""


def _theirs(frames: TracebackType | None) -> TracebackType | None:
    """The frames without those that only lead to the code that is loaded; what is no Python has none."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith((__file__, *_IMPORTING)):
        frames = frames.tb_next
    return frames


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ended the program, with exit({error.code!r}), instead of only saying what there is"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _load_file(path: Path) -> ModuleType:
    """A file of a package is loaded as part of it, so that it can import its neighbours."""
    if not path.exists():
        raise _NotThere(f"There is no file {path}")
    if (path.parent / "__init__.py").exists():
        top, name = _in_package(path.resolve())
        sys.path.insert(0, str(top))
        return importlib.import_module(name)
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _in_package(path: Path) -> tuple[Path, str]:
    """The folder that a file's outermost package is in, and the name by which it is imported from there."""
    top = path.parent
    while (top / "__init__.py").exists():
        top = top.parent
    return top, ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and misses another
        raise _NotThere(f"There is no module {name!r}: {error}") from error
