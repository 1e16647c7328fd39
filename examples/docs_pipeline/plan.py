"""Which pages there are, what is on each, and which names lead from one to another.

Each page gets an outline and a table of cross references of its own, so that a page depends on what it
shows and on nothing else: a change anywhere else leaves both as they were, to the byte.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from examples.docs_pipeline.facts import Facts

Kind: TypeAlias = Literal["index", "package", "module"]

INDEX: Final = "index"
_DEEPEST: Final = 20


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A page that another one lists."""

    title: str
    link: str
    summary: str = ""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The outline of a page. Its path has no suffix: `runstone/core/ids`."""

    path: str
    kind: Kind
    title: str
    source: str = ""
    """The source file that it is about; a folder without `__init__.py` has none."""
    source_link: str = ""
    up: str = ""
    children: tuple[Child, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All pages in their order, and each page's names that lead to another: as written, and where to."""

    pages: tuple[Page, ...]
    references: dict[str, dict[str, str]]


def plan(modules: Iterable[Facts], folder: str) -> Plan:
    """Plans the pages of some modules; `folder` is where in the repository they will be."""
    known = {facts.module: facts for facts in sorted(modules, key=lambda facts: (facts.module, facts.path))}
    parts = [module.split(".") for module in known]
    folders = {".".join(names[:depth]) for names in parts for depth in range(1, len(names))}
    paths = _paths({*known, *folders}, known)
    pages = [_index(paths, known), *(_page(m, path, paths, known, folder) for m, path in paths.items())]
    targets = _targets(known, paths)
    return Plan(
        pages=tuple(sorted(pages, key=lambda page: page.path)),
        references={
            INDEX: {},
            **{path: _references(known.get(module), path, targets) for module, path in paths.items()},
        },
    )


def _paths(modules: set[str], known: Mapping[str, Facts]) -> dict[str, str]:
    """Where each module's page is. A package's is inside of its folder, and gives way to nothing."""
    packages = {module for module in modules if _is_package(module, modules, known)}
    taken = {INDEX}
    found: dict[str, str] = {}
    for module in sorted(modules, key=lambda module: (module not in packages, module)):
        path = module.replace(".", "/") + (f"/{INDEX}" if module in packages else "")
        while path in taken:
            path += "_"
        taken.add(path)
        found[module] = path
    return dict(sorted(found.items()))


def _is_package(module: str, modules: Iterable[str], known: Mapping[str, Facts]) -> bool:
    facts = known.get(module)
    return (facts is None or facts.is_package) or any(other.startswith(f"{module}.") for other in modules)


def _index(paths: Mapping[str, str], known: Mapping[str, Facts]) -> Page:
    tops = [module for module in paths if "." not in module]
    return Page(
        path=INDEX,
        kind="index",
        title="API reference",
        children=tuple(_child(module, INDEX, paths, known) for module in tops),
    )


def _page(module: str, path: str, paths: Mapping[str, str], known: Mapping[str, Facts], folder: str) -> Page:
    facts = known.get(module)
    parent = paths.get(module.rpartition(".")[0], INDEX)
    below = [other for other in paths if other.rpartition(".")[0] == module]
    inside = posixpath.join(folder, posixpath.dirname(path)) or "."
    return Page(
        path=path,
        kind="package" if _is_package(module, paths, known) else "module",
        title=module,
        source=facts.path if facts else "",
        source_link=posixpath.relpath(facts.path, inside) if facts else "",
        up=_relative(parent, path),
        children=tuple(_child(other, path, paths, known) for other in below),
    )


def _child(module: str, at: str, paths: Mapping[str, str], known: Mapping[str, Facts]) -> Child:
    facts = known.get(module)
    return Child(title=module, link=_relative(paths[module], at), summary=facts.summary if facts else "")


def _targets(known: Mapping[str, Facts], paths: Mapping[str, str]) -> dict[str, str]:
    """Where each name of the program is documented, also under the names by which it is given on."""
    found = {module: f"{path}.md" for module, path in paths.items()}
    for module, facts in known.items():
        for own in facts.names:
            found[f"{module}.{own.name}"] = f"{paths[module]}.md#{own.name}"
    given_on = {f"{m}.{name}": full for m, facts in known.items() for name, full in facts.exports.items()}
    for name in given_on:
        full = name
        for _ in range(_DEEPEST):  # two modules may give a name to each other
            full = given_on.get(full, full)
        if full in found:
            found.setdefault(name, found[full])
    return found


def _references(facts: Facts | None, at: str, targets: Mapping[str, str]) -> dict[str, str]:
    if facts is None:
        return {}
    written = {**facts.exports, **facts.mentions}
    there = {text: targets[full] for text, full in sorted(written.items()) if full in targets}
    return {text: _from(at, target) for text, target in there.items() if target != f"{at}.md"}


def _from(at: str, target: str) -> str:
    page, hash_, name = target.partition("#")
    same = page == f"{at}.md"
    return f"#{name}" if same else f"{_relative(page.removesuffix('.md'), at)}{hash_}{name}"


def _relative(path: str, at: str) -> str:
    return posixpath.relpath(f"{path}.md", posixpath.dirname(at) or ".")
