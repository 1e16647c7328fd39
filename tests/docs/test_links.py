"""Every link of the documentation leads somewhere, and the README leads to every page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^ *(`{3,})[^\n]*\n.*?^ *\1 *$", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[tuple[Path, str]]:
    """Where a page's links lead: a file, and a heading in it or nothing."""
    text = CODE.sub("", page.read_text("utf-8"))
    return [((page.parent / path).resolve() if path else page, anchor) for path, anchor in LINK.findall(text)]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{target}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert not broken


def test_the_readme_leads_to_every_page() -> None:
    linked = {target for target, _ in links(ROOT / "README.md")}
    folders = {target / "README.md" for target in linked if target.is_dir()}
    assert set(PAGES) - linked - folders == {ROOT / "README.md"}
