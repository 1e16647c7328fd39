"""The page of settings names every one there is."""

from pathlib import Path

import pytest

from runstone import settings

PAGE = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text("utf-8")
NAMES = (
    *settings.VARIABLES,
    *settings.WRITING,
    *(f"RUNSTONE_{name.upper()}" for name in settings.WRITING),
    *(f"retention.{name}" for name in settings.RETENTION),
    *(f"RUNSTONE_RETENTION_{name.upper()}" for name in settings.RETENTION),
    *(f"effects.{name}" for name in settings.EFFECTS),
)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE
