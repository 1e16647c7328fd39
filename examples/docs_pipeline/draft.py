"""Writes pages. `Drafter` is the port: a language model can take it over; `PlainDrafter` needs none.

Whoever writes: a page shows every name of its facts under an anchor of that name (`markdown.anchor`), and
links lead to pages of the plan. Validation finds what is missing, and has it mended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from examples.docs_pipeline import markdown
from examples.docs_pipeline.facts import Facts, Name
from examples.docs_pipeline.plan import Child, Page
from examples.docs_pipeline.validate import Problem


class Drafter(Protocol):
    """Writes and mends pages of Markdown. What it raises fails the run; a resume asks it again."""

    async def draft(self, page: Page, facts: Facts | None) -> str:
        """A page by its outline and the facts of its source; a folder and the index have none."""
        ...

    async def mend(self, page: Page, facts: Facts | None, text: str, problems: Sequence[Problem]) -> str:
        """The page without these problems, as far as they can be solved."""
        ...


class PlainDrafter:
    """Says what the sources say, always in the same words."""

    async def draft(self, page: Page, facts: Facts | None) -> str:
        return "\n\n".join(_parts(page, facts)) + "\n"

    async def mend(self, page: Page, facts: Facts | None, text: str, problems: Sequence[Problem]) -> str:
        if any(problem.kind == "MissingPage" for problem in problems):
            text = await self.draft(page, facts)
        dead = {problem.what for problem in problems if problem.kind == "DeadLink"}
        text = markdown.replace(
            text, link=lambda words, target: words if target in dead else f"[{words}]({target})"
        )
        missing = {problem.what for problem in problems if problem.kind == "MissingName"}
        lost = [name for name in facts.names if name.name in missing] if facts else []
        return "\n\n".join([markdown.closed(text).rstrip("\n"), *map(_section, lost)]) + "\n"


def _parts(page: Page, facts: Facts | None) -> Iterator[str]:
    yield f"# {page.title}" if page.kind == "index" else f"# `{page.title}`"
    if page.up:
        source = f" · [`{page.source}`]({page.source_link})" if page.source else ""
        yield f"[Up]({page.up}){source}"
    if facts and facts.doc:
        yield markdown.prose(facts.doc)
    if facts and facts.error:
        yield f"This file cannot be read: {facts.error.lower()}."
    if page.children:
        yield "## Pages" if page.kind == "index" else "## Modules"
        yield "\n".join(map(_entry, page.children))
    if facts and facts.exports:
        yield "## Also here"
        yield "\n".join(f"- `{name}`" for name in facts.exports)
    if facts and facts.names:
        yield "## Names"
        yield from map(_section, facts.names)


def _entry(child: Child) -> str:
    """A line about another page; where links in its words lead to is known there, and not here."""
    words = markdown.replace(markdown.prose(child.summary), link=lambda words, _: words)
    text = f": {words}" if words else ""
    return f"- [`{child.title}`]({child.link}){text}"


def _section(name: Name) -> str:
    doc = markdown.prose(name.doc) if name.doc else ""
    head = f"{markdown.anchor(name.name)}\n\n### `{name.name}`"
    code = f"```python\n{name.signature}\n```"
    return "\n\n".join(part for part in (head, code, doc) if part)
