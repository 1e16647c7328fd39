"""What is wrong with the pages, and what is wanting in the sources."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from examples.docs_pipeline import markdown
from examples.docs_pipeline.facts import Facts

Kind: TypeAlias = Literal["DeadLink", "MissingPage", "MissingName"]


class Problem(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Something on a page that has to be mended; `what` is the link or the name that it is about."""

    page: str
    kind: Kind
    what: str


class Wanting(msgspec.Struct, frozen=True, kw_only=True):
    """What only the authors of a source can mend: names without a docstring, or a file that is no Python."""

    page: str
    undocumented: tuple[str, ...] = ()
    error: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that validation found."""

    problems: tuple[Problem, ...]
    wanting: tuple[Wanting, ...]


def validate(
    pages: Mapping[str, str], facts: Mapping[str, Facts | None], files: Sequence[str], folder: str
) -> Report:
    """Looks at every planned page: `facts` has them all, `pages` the text of those that are there.

    `files` are those of the repository, which pages may lead to as well; pages will be in `folder`.
    """
    anchors = {path: markdown.anchors(text) for path, text in pages.items()}
    # What is missing is a problem of its own page alone: when it is mended, links to it lead there.
    places = {path: anchors.get(path, set()) | _names(found) for path, found in facts.items()}
    known = frozenset(files)
    problems: list[Problem] = []
    for path in sorted(facts):
        text = pages.get(path, "")
        if not text.strip():
            problems.append(Problem(page=path, kind="MissingPage", what=path))
            continue
        lost = sorted(_names(facts[path]) - anchors[path])
        problems += [Problem(page=path, kind="MissingName", what=name) for name in lost]
        dead = [link for link in markdown.links(text) if not _leads(link, path, places, known, folder)]
        problems += [Problem(page=path, kind="DeadLink", what=link) for link in dict.fromkeys(dead)]
    return Report(problems=tuple(problems), wanting=tuple(_wanting(facts)))


def _names(facts: Facts | None) -> set[str]:
    return {name.name for name in facts.names} if facts else set()


def _leads(link: str, at: str, places: Mapping[str, set[str]], files: frozenset[str], folder: str) -> bool:
    """Whether a link leads to a page, to a name on one, or to a file of the repository."""
    target, _, name = unquote(link).partition("#")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(at), target)) if target else f"{at}.md"
    page = place.removesuffix(".md")
    if place.endswith(".md") and page in places:
        return not name or name in places[page]
    return posixpath.normpath(posixpath.join(folder, place)) in files


def _wanting(facts: Mapping[str, Facts | None]) -> Iterator[Wanting]:
    for path in sorted(facts):
        found = facts[path]
        if found and (found.undocumented or found.error):
            yield Wanting(page=path, undocumented=tuple(found.undocumented), error=found.error)
