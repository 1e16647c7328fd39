"""Who may import whom, and the purity of `core/`, read from the syntax tree.

Every import counts: inside a function, under `TYPE_CHECKING`, or by name through `import_module`. A direction
that holds only for top-level imports is a cycle in waiting.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# `A <- B`: B may import A and whatever A may import, never the reverse. Names in braces do not import each
# other; names joined by a comma may. `__init__` is the package itself: the public names.
DIAGRAM = """
errors <- core <- ports <- { stores · buses · caches · blobs · secrets } <- runtime
ports <- { security · telemetry } <- { ingest · engine · outbox · feed · pipeline · audit } <- runtime
runtime <- pipelines <- __init__
errors <- settings <- runtime <- handle <- app <- __init__ <- { server · cli · testing }
cli <- __main__
"""

CORE_MAY_IMPORT = {
    *("msgspec", "runstone", "__future__", "typing", "types", "collections", "enum", "dataclasses", "abc"),
    *("functools", "itertools", "operator", "contextlib", "re", "string", "textwrap", "unicodedata"),
    *("json", "base64", "binascii", "struct", "zlib", "hashlib", "hmac", "uuid", "datetime", "calendar"),
    *("math", "decimal", "fractions", "numbers", "bisect", "heapq", "graphlib", "copy"),
}
# Allowed modules, yet these of their names ask the machine for the time, for chance or for its identity.
CORE_MAY_NOT_USE = {
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
    *("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "uuid.uuid8", "uuid.getnode"),
}
CORE_MAY_NOT_CALL = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"}

SOURCE = Path(__file__).parents[2] / "src"


def parse_diagram(diagram: str) -> dict[str, set[str]]:
    """What each part may import, itself included."""
    allowed: dict[str, set[str]] = {}
    for line in diagram.strip().splitlines():
        groups = [re.findall(r"\w+", group) for group in line.split("<-")]
        for group, text in zip(groups, line.split("<-"), strict=True):
            for part in group:
                allowed.setdefault(part, {part}).update([part] if "{" in text else group)
        for left, right in itertools.pairwise(groups):
            for part in right:
                allowed[part].update(left)
    for via, part in itertools.product(allowed, allowed):  # Warshall's closure: `via` is the outer loop
        if via in allowed[part]:
            allowed[part] |= allowed[via]
    return allowed


ALLOWED = parse_diagram(DIAGRAM)


def imported_names(tree: ast.AST, package: str) -> Iterator[str]:
    """The full dotted name of everything imported by a module that lies in `package`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                yield from (f"{base}.{alias.name}" for alias in node.names)
            case ast.Call(
                func=ast.Attribute(attr=name) | ast.Name(id=name), args=[ast.Constant(value=str(target)), *_]
            ):
                if name in ("import_module", "__import__"):
                    yield target


def part_of(name: str) -> str:
    """`runstone.core.ids.new_id` -> `core`; a name that `runstone` itself defines -> `__init__`."""
    part = name.split(".")[1] if "." in name else "__init__"
    return part if part in ALLOWED else "__init__"


def wrong_directions(module: str, source: str) -> list[str]:
    """The imports of `module` (a dotted name, `runstone.core.__init__` for a package) that point upwards."""
    part, package = module.split(".")[1], module.rpartition(".")[0]
    if part not in ALLOWED:
        return [f"{module}: {part} is not on the diagram"]
    ours = (
        name
        for name in imported_names(ast.parse(source, module), package)
        if name.split(".")[0] == "runstone"
    )
    return [f"{module}: {part} imports {name}" for name in ours if part_of(name) not in ALLOWED[part]]


def dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
    return "?"


def bindings(tree: ast.AST) -> dict[str, str]:
    """What imported names stand for: `from datetime import datetime as dt` -> `dt: datetime.datetime`."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                bound |= {a.asname: a.name for a in node.names if a.asname}
            case ast.ImportFrom(module=str(base)):
                bound |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
    return bound


def impurities(module: str, source: str) -> list[str]:
    """Where a module of `core/` reaches for anything but its arguments."""
    tree = ast.parse(source, module)
    bound = bindings(tree)
    found = [
        f"{module}: imports {name}"
        for name in imported_names(tree, module.rpartition(".")[0])
        if name.split(".")[0] not in CORE_MAY_IMPORT
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, *rest = dotted(node).split(".")
            name = ".".join([bound.get(first, first), *rest])
            if name in CORE_MAY_NOT_USE:
                found.append(f"{module}:{node.lineno}: uses {name}")
        if isinstance(node, ast.Call) and dotted(node.func) in CORE_MAY_NOT_CALL:
            found.append(f"{module}:{node.lineno}: calls {dotted(node.func)}")
    return found


def modules() -> dict[str, str]:
    paths = sorted((SOURCE / "runstone").rglob("*.py"))
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): path.read_text("utf-8") for path in paths
    }


def test_every_import_follows_the_diagram() -> None:
    sources = modules()
    assert "runstone.__init__" in sources
    assert [wrong for module, source in sources.items() for wrong in wrong_directions(module, source)] == []


def test_core_is_pure() -> None:
    core = {module: source for module, source in modules().items() if module.startswith("runstone.core.")}
    assert core
    assert [wrong for module, source in core.items() for wrong in impurities(module, source)] == []


def test_the_diagram_is_read_as_drawn() -> None:
    assert ALLOWED["errors"] == {"errors"}
    assert ALLOWED["settings"] == {"errors", "settings"}
    assert ALLOWED["stores"] == {"errors", "core", "ports", "stores"}
    assert ALLOWED["engine"] == {"errors", "core", "ports", "security", "telemetry", "engine"}
    assert ALLOWED["app"] > ALLOWED["runtime"] >= {"stores", "settings", "engine"}
    assert ALLOWED["cli"] >= {"runtime", "__init__"}
    assert ALLOWED["cli"].isdisjoint({"server", "testing"})


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("runstone.core.fold", "import runstone.ports.store"),
        ("runstone.core.fold", "from runstone import ports"),
        ("runstone.core.fold", "from runstone import __version__"),
        ("runstone.core.fold", "import runstone"),
        ("runstone.core.fold", "from ..stores import sqlite"),
        ("runstone.core.payloads.__init__", "from ...ports import store"),
        ("runstone.core.fold", "from .. import stores"),
        ("runstone.core.__init__", "from ..ports.store import Store"),
        ("runstone.errors", "from .core import ids"),
        ("runstone.errors", "def f():\n    from runstone.core import ids"),
        ("runstone.ports.store", "if TYPE_CHECKING:\n    from runstone.stores.sqlite import SQLite"),
        ("runstone.ports.store", "importlib.import_module('runstone.stores.sqlite')"),
        ("runstone.engine.worker", "from runstone.outbox import dispatcher"),
        ("runstone.engine.worker", "from runstone.stores import sqlite"),
        ("runstone.stores.sqlite", "from runstone.settings import Settings"),
        ("runstone.settings", "from runstone.core import ids"),
        ("runstone.cli.main", "import click, runstone.testing.clock"),
        ("runstone.novelty", ""),
    ],
)
def test_a_planted_wrong_direction_is_reported(module: str, source: str) -> None:
    assert len(wrong_directions(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "runstone.core.fold",
            "from runstone.core.run import Run\nfrom .step import Step\nimport runstone.errors",
        ),
        ("runstone.core.fold", "from runstone import errors\nfrom .. import errors as e"),
        (
            "runstone.stores.sqlite.__init__",
            "import sqlite3\nfrom runstone.ports.store import Store\nfrom . import x",
        ),
        ("runstone.cli.main", "from runstone import __version__\nfrom runstone.stores import sqlite"),
        ("runstone.app", "from runstone import runtime"),
        ("runstone.__init__", "from runstone.app import App"),
    ],
)
def test_a_right_direction_is_not_reported(module: str, source: str) -> None:
    assert wrong_directions(module, source) == []


@pytest.mark.parametrize(
    "source",
    [
        *(
            f"import {name}"
            for name in ("os", "time", "random", "socket", "sqlite3", "asyncio", "threading", "pathlib")
        ),
        *(f"import {name}" for name in ("io", "secrets", "logging", "click")),
        "from os import urandom",
        "def f():\n    import time",
        "import os.path as msgspec",
        "from datetime import datetime\nat = datetime.now(UTC)",
        "import datetime as dt\nat = dt.datetime.utcnow()",
        "import datetime\nat = datetime.date.today()",
        "import uuid\nfresh = uuid.uuid4()",
        "from uuid import uuid4 as fresh\nfield(default_factory=fresh)",
        "data = open('x').read()",
        "print('x')",
    ],
)
def test_a_planted_impurity_is_reported(source: str) -> None:
    assert len(impurities("runstone.core.fold", source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import msgspec, hashlib\nfrom runstone.errors import X\nfrom collections.abc import Iterator",
        "def due(command, input):\n    return command.now + input",
        "from uuid import UUID\nimport datetime\nat = datetime.datetime.fromisoformat('2026-01-01')",
        "class Log:\n    def open(self): ...\nlog = Log()\nlog.open()",
    ],
)
def test_pure_code_is_not_reported(source: str) -> None:
    assert impurities("runstone.core.fold", source) == []
