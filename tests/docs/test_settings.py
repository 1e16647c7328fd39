"""The page of settings names every one there is and no other, and says what holds by default."""

import re
from pathlib import Path

import pytest

from runstone import settings

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGE = (REFERENCE / "settings.md").read_text("utf-8")
DEFAULTS = settings.WRITING | {f"retention.{name}": said for name, said in settings.RETENTION.items()}
VARIABLES = (
    *settings.VARIABLES,
    *(f"RUNSTONE_{name.upper().replace('.', '_')}" for name in DEFAULTS),
    "RUNSTONE_UNSAFE",
    "RUNSTONE_SMTP_URL",
    "RUNSTONE_SECRET_",
    "RUNSTONE_ALERTS",
    "RUNSTONE_TELEMETRY",
)
NAMES = ("store", "unsafe", *DEFAULTS, *(f"effects.{name}" for name in settings.EFFECTS))


@pytest.mark.parametrize("name", [*NAMES, *(name for name in VARIABLES if not name.endswith("_"))])
def test_it_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items())
def test_its_default_is_the_one_on_the_page(name: str, default: str) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    said = row.split("|")[4].replace("`", "").strip()
    assert said == (default or "none")


def test_nothing_else_is() -> None:
    assert set(re.findall(r"\bRUNSTONE_\w+", PAGE)) <= set(VARIABLES)
    flags = re.findall(r"^- `(--[a-z-]+)", (REFERENCE / "cli.md").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(--[a-z-]+)`", PAGE)) <= set(flags)
