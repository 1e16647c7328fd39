"""Finds what a person names on the command line: something in a Python file or module."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from runstone.errors import SettingsInvalid


def load(place: str) -> ModuleType:
    """The module that a file's path or a dotted name leads to."""
    return _load_file(Path(place)) if place.endswith(".py") else _load_module(place)


def _load_file(path: Path) -> ModuleType:
    """A file of a package is loaded as part of it, so that it can import its neighbours."""
    if not path.exists():
        raise SettingsInvalid(f"There is no file {path}")
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
        raise SettingsInvalid(f"There is no module {name!r}: {error}") from error
