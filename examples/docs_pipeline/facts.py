"""What a module says of itself: its names, signatures and docstrings. It is parsed, never imported."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["class", "function", "method", "attribute"]

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_CODE: Final = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
_WIDE: Final = 100


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """A public name, with what leads to it: `Class.method`."""

    name: str
    kind: Kind
    signature: str
    doc: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a page can say about one source file."""

    path: str
    module: str
    is_package: bool = False
    doc: str = ""
    names: tuple[Name, ...] = ()
    exports: dict[str, str] = {}
    """Names that it gives on from elsewhere, with their full names there."""
    mentions: dict[str, str] = {}
    """Other names in signatures and docstrings: as written, and the full name that this stands for."""
    error: str = ""
    """Why the file could not be read as Python."""

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, in one line."""
        return " ".join(self.doc.partition("\n\n")[0].split())

    @property
    def undocumented(self) -> list[str]:
        """The names that nobody has said anything about; an attribute may speak for itself."""
        silent = (n for n in self.names if not n.doc and n.kind != "attribute")
        return [name.name for name in silent if not name.name.endswith("__init__")]


def module_name(path: str, folder: str) -> str:
    """What a file is imported as, if imports begin in a folder."""
    inner = path.removeprefix(f"{folder}/") if folder else path
    parts = inner.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def extract(path: str, content: bytes, folder: str = "") -> Facts:
    """The facts of one file."""
    module = module_name(path, folder)
    is_package = path.endswith("/__init__.py")
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError) as error:
        # Its text is another in every version of Python; the place is not.
        where = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return Facts(path=path, module=module, is_package=is_package, error=f"No Python{where}")
    imports = _imports(tree, module if is_package else module.rpartition(".")[0])
    names = tuple(_merged(_names(tree.body, "", _listed(tree))))
    known = imports | {name.name: f"{module}.{name.name}" for name in names}
    doc = ast.get_docstring(tree) or ""
    return Facts(
        path=path,
        module=module,
        is_package=is_package,
        doc=doc,
        names=names,
        exports={name: imports[name] for name in sorted(_listed(tree) or ()) if name in imports},
        mentions=_mentions(tree, [doc, *(name.doc for name in names)], known),
    )


def _listed(tree: ast.Module) -> frozenset[str] | None:
    """What `__all__` names, if it is there to be read."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(_is(target, "__all__") for target in node.targets):
            try:
                return frozenset(map(str, ast.literal_eval(node.value)))
            except (ValueError, TypeError):
                return None
    return None


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


# Names


def _names(body: Sequence[ast.stmt], owner: str, listed: frozenset[str] | None = None) -> Iterator[Name]:
    statements = list(_flat(body))
    for node, following in zip(statements, [*statements[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and _is_public(node.name, listed):
            yield Name(
                name=owner + node.name,
                kind="class",
                signature=_class_signature(node),
                doc=ast.get_docstring(node) or "",
            )
            yield from _names(node.body, f"{owner}{node.name}.")
        elif isinstance(node, _Function) and (
            _is_public(node.name, listed) or (owner and node.name == "__init__")
        ):
            yield Name(
                name=owner + node.name,
                kind="method" if owner else "function",
                signature=_function_signature(node),
                doc=ast.get_docstring(node) or "",
            )
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if _is_public(node.target.id, listed):
                yield Name(
                    name=owner + node.target.id,
                    kind="attribute",
                    signature=_attribute_signature(node.target.id, node),
                    doc=_said(following),
                )


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those of its `if` and `try` blocks among them."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _flat([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _flat([*node.body, *node.orelse, *node.finalbody])
        else:
            yield node


def _is_public(name: str, listed: frozenset[str] | None) -> bool:
    return name in listed if listed is not None else not name.startswith("_")


def _said(node: ast.stmt | None) -> str:
    """The text under an attribute."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        value = node.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else ""
    return ""


def _attribute_signature(name: str, node: ast.AnnAssign) -> str:
    kind = f"{name}: {ast.unparse(node.annotation)}"
    whole = f"{kind} = {ast.unparse(node.value)}" if node.value else kind
    return whole if len(whole) <= _WIDE else f"{kind} = ..."


def _class_signature(node: ast.ClassDef) -> str:
    given = [*map(ast.unparse, node.bases), *(ast.unparse(keyword) for keyword in node.keywords)]
    head = f"class {node.name}({', '.join(given)})" if given else f"class {node.name}"
    return "\n".join([*_decorators(node.decorator_list), head])


def _function_signature(node: _Function) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    given = list(_arguments(node.args))
    head = f"{kind} {node.name}({', '.join(given)}){result}"
    if len(head) > _WIDE:
        lines = "".join(f"    {argument},\n" for argument in given)
        head = f"{kind} {node.name}(\n{lines}){result}"
    return "\n".join([*_decorators(node.decorator_list), head])


def _arguments(given: ast.arguments) -> Iterator[str]:
    """Each argument as it is declared, with the marks between them."""
    positional = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults]
    for number, (argument, default) in enumerate(zip(positional, defaults, strict=True), start=1):
        yield _argument(argument, default)
        if number == len(given.posonlyargs):
            yield "/"
    if given.vararg or given.kwonlyargs:
        yield f"*{_argument(given.vararg)}" if given.vararg else "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _argument(argument, default)
    if given.kwarg:
        yield f"**{_argument(given.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None = None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    if default is None:
        return f"{argument.arg}{kind}"
    return f"{argument.arg}{kind}{' = ' if kind else '='}{ast.unparse(default)}"


def _decorators(nodes: Iterable[ast.expr]) -> list[str]:
    return [f"@{ast.unparse(node)}" for node in nodes]


def _merged(names: Iterable[Name]) -> Iterator[Name]:
    """A name that is there several times, overloaded or by version, is one name with several signatures."""
    found: dict[str, Name] = {}
    for name in names:
        before = found.get(name.name)
        found[name.name] = (
            name
            if before is None
            else Name(
                name=name.name,
                kind=before.kind,
                signature=f"{before.signature}\n{name.signature}",
                doc=before.doc or name.doc,
            )
        )
    yield from found.values()


# What it mentions


def _imports(tree: ast.Module, package: str) -> dict[str, str]:
    """Every imported name, with what it stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                found[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            found |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
    return found


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    above = ".".join(parents[: len(parents) - node.level + 1])
    return f"{above}.{node.module}" if node.module else above


def _mentions(tree: ast.Module, docs: Iterable[str], known: dict[str, str]) -> dict[str, str]:
    written = {text for doc in docs for text in _CODE.findall(doc)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            written |= {text for base in node.bases for text in _chains(base)}
        elif isinstance(node, _Function):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            notes = [argument.annotation for argument in arguments if argument.annotation]
            written |= {text for note in [*notes, node.returns] if note for text in _chains(note)}
    full = {text: _full(text, known) for text in sorted(written)}
    return {text: name for text, name in full.items() if "." in name}


def _chains(node: ast.AST) -> Iterator[str]:
    """The names in an annotation, dotted ones whole."""
    if isinstance(node, ast.Attribute) and re.fullmatch(r"[\w.]+", text := ast.unparse(node)):
        yield text
    elif isinstance(node, ast.Name):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _chains(child)


def _full(text: str, known: dict[str, str]) -> str:
    """A name as the whole program knows it."""
    first, dot, rest = text.partition(".")
    return known[text] if text in known else f"{known.get(first, first)}{dot}{rest}"
