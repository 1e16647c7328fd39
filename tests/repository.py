"""Small git repositories to work on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

SHOP: Mapping[str, str] = {
    "README.md": "# Shop\n",
    "src/shop/__init__.py": '"""Sells things."""\n\nfrom shop.orders import Order\n\n__all__ = ["Order"]\n',
    "src/shop/orders.py": (
        '"""Orders, see [the manual](manual.md)."""\n\n'
        "from shop.prices import Price\n\n\n"
        'class Order:\n    """What a customer wants, for a `Price`."""\n\n'
        "    price: Price\n"
        '    """What it costs."""\n\n'
        '    def pay(self, amount: Price, *, tip: int = 0) -> bool:\n        """Pays."""\n'
    ),
    "src/shop/prices.py": (
        '"""Prices."""\n\n\nclass Price:\n    """An amount of money."""\n\n\n'
        "def total(prices: list[Price]) -> Price:\n    return prices[0]\n"
    ),
    "src/shop/later.py": "def (:\n",
    "src/shop/tools/text.py": 'def upper(text: str) -> str:\n    """Shouts."""\n    return text.upper()\n',
}
"""Has all that is of interest: a name given on, a dead link, no docstring, no Python, no `__init__.py`."""

_PERSON = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A"), ("EMAIL", "a@example.org"), ("DATE", "1700000000 +0100"))
}


def git(repository: Path, *arguments: str) -> str:
    """What git says; by a person and at a time that are always the same."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(repository), "-c", "commit.gpgsign=false", *arguments],
        env=inherited | _PERSON,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def repository(place: Path, files: Mapping[str, str] = SHOP) -> Path:
    """A repository with one commit."""
    place.mkdir(parents=True)
    git(place, "init", "--quiet", "--initial-branch=trunk")
    commit(place, files)
    return place


def commit(place: Path, files: Mapping[str, str]) -> str:
    """Adds a commit in which some files are other; its hash."""
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, "utf-8")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message=Change")
    return git(place, "rev-parse", "HEAD")
