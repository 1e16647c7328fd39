"""The page of the Python API: every public name, with signature and docstring as they stand in the source.

The source is read and not imported, so the page is the same whichever Python writes it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

SOURCE: Final = Path(__file__).resolve().parent.parent / "src"

API: Final = {
    "App": ("What a program registers, starts and runs.", "runstone", ("App", "Handler", "Callee")),
    "Run": ("What a handler holds in its hand.", "runstone", ("Run", "CurrentStep", "current_step")),
    "Handle": (
        "One run, seen from outside; `app.start`, `app.send`, `app.handle` and `app.find` give one.",
        "runstone",
        ("Handle", "Paused", "RunSnapshot", "StepSnapshot"),
    ),
    "Signals": (
        "Input of one kind each, for `@app.on` and `app.send`; see [Signals](../howto/signals.md).",
        "runstone",
        (
            *("SignalSpec", "Email", "MailHeaders", "Attachment", "Webhook", "ChatMessage"),
            *("ApiRequest", "ScheduledTask", "HumanCommand"),
        ),
    ),
    "Options and policies": ("", "runstone", ("Retry", "RetryPolicy")),
    "Durations": ("", "runstone", ("seconds", "minutes", "hours", "days")),
    "Effects": (
        "What `run.effect` asks for; see [Effects](../howto/effects.md).",
        "runstone",
        (
            *("EffectSpec", "ApiCall", "NotifyUser", "ScheduleTask", "SendChatMessage", "SendEmail"),
            *("SorUpdate", "WebhookCall", "SecretRef", "EffectCall", "Succeeded", "Failed"),
        ),
    ),
    "Entities and schedules": ("As they are read; effects change them.", "runstone", ("Entity", "Schedule")),
    "Pipelines": (
        "See [Pipelines](../howto/pipelines.md).",
        "runstone",
        (
            *("Pipeline", "Output", "Reader", "Work", "Graph", "State", "IssuesOpen"),
            *("DOCS_GRAPH", "docs_graph", "open_pipelines", "Pipelines", "Outcome"),
        ),
    ),
    "Testing": (
        "From `runstone.testing`; see [Test handlers](../howto/testing.md).",
        "runstone.testing",
        (
            *("Simulator", "RequestedEffect", "virtual_time", "run_virtual", "Stuck"),
            *("assert_replays", "HistoryDiffers"),
        ),
    ),
    "Names in signatures": (
        "",
        "runstone",
        ("DEFAULT_TENANT", "ONCE", "OnExhausted", "TIMEOUT", "START"),
    ),
}
"""The page of the Python API: groups of names, each with a word on it and the package it is imported from."""

ELSEWHERE: Final = {
    "Callee": "runstone.engine.functions",
    "DEFAULT_TENANT": "runstone.core.ids",
    "ONCE": "runstone.engine.policy",
    "OnExhausted": "runstone.engine.functions",
    "Outcome": "runstone.pipelines",
    "Pipelines": "runstone.pipelines",
    "RunSnapshot": "runstone.core.snapshot",
    "START": "runstone.testing.clock",
    "StepSnapshot": "runstone.core.snapshot",
    "TIMEOUT": "runstone.outbox.services",
}
"""What no package exports, and who has to do with one that it does meets all the same."""

GIVEN: Final = ("Run", "CurrentStep", "Handle", "Handler", "Callee", "Reader", "Work", "Pipelines")
"""Classes that nobody but Runstone makes instances of: how is its own business."""

OPAQUE: Final = (
    "Handler",
    "Graph",
    "Pipeline.of",
    "Pipeline.given",
    "Work.written",
    "App.attach",
    "App.lifespans",
    "Simulator.changed",
)
"""Classes whose methods are for Runstone, and such methods."""

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def api_page() -> str:
    """The page."""
    return (
        "# The Python API\n\n"
        + "Everything that `import runstone as rs` offers, and `runstone.testing`: signatures as they\n"
        + "stand in the source, and what their docstrings say. The how-to pages show them at work.\n\n"
        + "".join(f"- [{title}](#{_anchor(title)})\n" for title in (*API, "Errors"))
        + "".join(_group(title, *group) for title, group in API.items())
        + _errors_group()
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _group(title: str, about: str, package: str, names: Iterable[str]) -> str:
    homes = {**ELSEWHERE, **_exports(package)}
    said = f"\n## {title}\n" + (f"\n{about}\n" if about else "")
    return said + "".join(_entry(homes[name], name, ELSEWHERE.get(name, package)) for name in names)


def _entry(home: str, name: str, package: str) -> str:
    body = _tree(home).body
    place = next(at for at, node in enumerate(body) if name in _names_of(node))
    node = body[place]
    shown = f"rs.{name}" if package == "runstone" else f"{package}.{name}"
    if isinstance(node, ast.ClassDef):
        return f"\n### `{shown}`\n" + _class(home, node)
    if isinstance(node, _FUNCTIONS):
        return f"\n### `{shown}`\n" + _stub([_signature(home, node)]) + _said(node)
    about = "".join(map(_text, body[place + 1 : place + 2]))
    return f"\n### `{shown}`\n" + _stub([ast.get_source_segment(_source(home), node) or ""]) + f"\n{about}\n"


def _class(home: str, node: ast.ClassDef) -> str:
    functions = [inner for inner in node.body if isinstance(inner, _FUNCTIONS)]
    init = [one for one in functions if one.name == "__init__" and node.name not in GIVEN]
    arguments = [one for one in (*node.bases, *node.keywords) if not ast.unparse(one).startswith("_")]
    header = (
        f"class {node.name}({', '.join(map(ast.unparse, arguments))})" if arguments else f"class {node.name}"
    )
    header = "".join(f"@{ast.unparse(mark)}\n" for mark in node.decorator_list) + header
    lines = [f"{header}:", *(textwrap.indent(_signature(home, one), "    ") for one in init)]
    fields = [*_attributes(home, node.body), *_own(home, functions)]
    said = _stub(lines if init else [header]) + _said(node) + ("\n" + "".join(fields) if fields else "")
    known = dict.fromkeys(one.name for one in functions if not one.name.startswith("_"))
    for name in known if node.name not in OPAQUE else ():
        ways = [one for one in functions if one.name == name]
        overrides = ast.get_docstring(ways[-1]) is None and node.bases
        if f"{node.name}.{name}" not in OPAQUE and not overrides:
            shown = ways[:-1] or ways
            said += f"\n#### `{node.name}.{name}`\n" + _stub([_signature(home, one) for one in shown])
            said += _said(ways[-1])
    return said


def _attributes(home: str, body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """The fields of a struct, or what `__init__` sets, if it says what it is: each with its type."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and prefix:
            target = node.targets[0]
        path = ast.unparse(target) if target is not None else ""
        name, about = path.removeprefix(prefix), _text(after) if after is not None else ""
        known = isinstance(node, ast.AnnAssign) or about
        if path.startswith(prefix) and known and name.isidentifier() and not name.startswith("_"):
            yield _field(home, name, node, about)


def _field(home: str, name: str, node: ast.stmt, about: str) -> str:
    line = name
    if isinstance(node, ast.AnnAssign):
        about = about or _described(node.annotation)
        line += f": {_hint(home, node.annotation)}"
        if node.value is not None and not ast.unparse(node.value).startswith("msgspec.field(name="):
            line += f" = {_written(home, node.value)}"
    return f"- `{line}`" + (f": {' '.join(about.split())}" if about else "") + "\n"


def _described(hint: ast.expr) -> str:
    """What a field's own annotation says of it."""
    words = [word for part in ast.walk(hint) for word in getattr(part, "keywords", ())]
    return next((str(ast.literal_eval(word.value)) for word in words if word.arg == "description"), "")


def _hint(home: str, hint: ast.expr) -> str:
    """A type, without what else is to be checked."""
    if "Annotated[" not in ast.unparse(hint):
        return _written(home, hint)
    if isinstance(hint, ast.Subscript) and isinstance(hint.slice, ast.Tuple):
        return _hint(home, hint.slice.elts[0])
    assert isinstance(hint, ast.BinOp), "a union is all that one stands in"
    return f"{_hint(home, hint.left)} | {_hint(home, hint.right)}"


def _own(home: str, functions: list[_Function]) -> Iterator[str]:
    """What every instance of a class has."""
    for function in functions:
        if function.name == "__init__":
            given = {one.arg: one.annotation for one in (*function.args.args, *function.args.kwonlyargs)}
            yield from _attributes(home, [_typed(node, given) for node in function.body], "self.")


def _typed(node: ast.stmt, given: dict[str, ast.expr | None]) -> ast.stmt:
    """`self.name = name`, with the type that the argument of that name has, and without a value."""
    if isinstance(node, ast.AnnAssign):
        return ast.AnnAssign(node.target, node.annotation, None, 0)
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
        value = node.value.id if isinstance(node.value, ast.Name) else ""
        hint = given.get(target.attr) or given.get(value)
        return node if hint is None else ast.AnnAssign(target, hint, None, 0)
    return node


def _signature(home: str, function: _Function) -> str:
    """As in a stub; in one line if that is short."""
    marks = [f"@{ast.unparse(mark)}\n" for mark in function.decorator_list if ast.unparse(mark) != "overload"]
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + [*given.defaults]
    parts = [_parameter(home, one, default) for one, default in zip(plain, defaults, strict=True)]
    if given.posonlyargs:
        parts.insert(len(given.posonlyargs), "/")
    if given.vararg is not None:
        parts.append(f"*{_parameter(home, given.vararg, None)}")
    elif given.kwonlyargs:
        parts.append("*")
    parts += [_parameter(home, *one) for one in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        parts.append(f"**{_parameter(home, given.kwarg, None)}")
    verb = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    result = f" -> {_written(home, function.returns)}" if function.returns is not None else ""
    line = f"{verb} {function.name}({', '.join(parts)}){result}: ..."
    if len(line) > 96:
        line = f"{verb} {function.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}: ..."
    return "".join(marks) + line


def _parameter(home: str, argument: ast.arg, default: ast.expr | None) -> str:
    if argument.annotation is None:
        return argument.arg + ("" if default is None else f"={_written(home, default)}")
    said = f"{argument.arg}: {_written(home, argument.annotation)}"
    return said if default is None else f"{said} = {_written(home, default)}"


def _written(home: str, node: ast.expr) -> str:
    """An expression as it stands there, unless it takes several lines."""
    segment = ast.get_source_segment(_source(home), node) or ""
    return segment if segment and "\n" not in segment else ast.unparse(node)


def _stub(lines: list[str]) -> str:
    return "\n```pyi\n" + "\n".join(lines) + "\n```\n"


def _said(node: ast.ClassDef | _Function) -> str:
    text = ast.get_docstring(node)
    if text is None:
        raise SystemExit(f"{node.name} is public and has no docstring")
    return f"\n{_without_clauses(text)}\n"


def _text(node: ast.stmt) -> str:
    """The docstring that a statement is, below what it is about."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return _without_clauses(inspect.cleandoc(node.value.value))
    return ""


def _without_clauses(text: str) -> str:
    """The specs have a reader of their own."""
    return re.sub(r"\s*\(§[^)]*\)", "", text)


def _names_of(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return (node.name,)
    targets = [*getattr(node, "targets", ()), *([node.target] if isinstance(node, ast.AnnAssign) else ())]
    return tuple(ast.unparse(target) for target in targets)


def _exports(package: str) -> dict[str, str]:
    """Where each name that a package imports comes from."""
    imports = [node for node in _tree(package).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def _errors_group() -> str:
    """All of them, in one tree; those that no package exports are in `runstone.errors`."""
    home, exported = "runstone.errors", _exports("runstone")
    classes = {node.name: node for node in _tree(home).body if isinstance(node, ast.ClassDef)}
    said = (
        "\n## Errors\n\nWhat Runstone raises, and what handlers raise to it. Those without `rs.` are\n"
        + "imported from `runstone.errors`.\n\n"
    )
    for name, node in classes.items():
        shown = f"rs.{name}" if name in exported else name
        about = " ".join((ast.get_docstring(node) or "").split())
        values = [f"`{value}`" for value in _values(home, node, classes)]
        said += f"- `{shown}`, a kind of `{ast.unparse(node.bases[0])}`: {about}"
        said += f" It has {', '.join(values)}.\n" if values else "\n"
    return said


def _values(home: str, node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[str]:
    """What an error knows, by its own `__init__` or by that of what it is a kind of."""
    functions = [one for one in node.body if isinstance(one, _FUNCTIONS) and one.name == "__init__"]
    if functions:
        return [line.split("`")[1] for line in _own(home, functions)]
    base = classes.get(ast.unparse(node.bases[0]))
    return _values(home, base, classes) if base is not None else []


@functools.cache
def _source(module: str) -> str:
    path = SOURCE / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))
