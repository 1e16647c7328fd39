"""Scripts are cut into statements where SQLite would cut them."""

from __future__ import annotations

import pytest

from runstone.stores.sql import migrations
from runstone.stores.sqlite.files import split

TRIGGER = "CREATE TRIGGER t BEFORE UPDATE ON a\nBEGIN\n    SELECT RAISE(ABORT, 'no;');\n    SELECT 1;\nEND;\n"


@pytest.mark.parametrize(
    ("script", "statements"),
    [
        ("", []),
        ("\n-- only; a comment\n", []),
        ("SELECT 1;\n", ["SELECT 1;\n"]),
        ("SELECT 1;\nSELECT 2;", ["SELECT 1;\n", "SELECT 2;"]),
        ("SELECT 1,\n    ';',\n    2;\n-- the end\n", ["SELECT 1,\n    ';',\n    2;\n"]),
        ("-- why; because\nSELECT 1;\n", ["-- why; because\nSELECT 1;\n"]),
        (TRIGGER + "SELECT 1;\n", [TRIGGER, "SELECT 1;\n"]),
        ("/* a;\n b; */\nSELECT 1;\n", ["/* a;\n b; */\nSELECT 1;\n"]),
    ],
)
def test_a_script_is_cut_at_the_ends_of_statements(script: str, statements: list[str]) -> None:
    assert list(split(script)) == statements


@pytest.mark.parametrize("script", ["SELECT 1", "SELECT 1;\nSELECT", TRIGGER.removesuffix("END;\n")])
def test_a_script_that_ends_in_the_middle_is_refused(script: str) -> None:
    with pytest.raises(ValueError, match="in the middle of a statement"):
        list(split(script))


def test_no_migration_loses_anything_when_it_is_cut() -> None:
    for migration in migrations("sqlite"):
        pieces = list(split(migration.script))
        assert "".join(pieces) == migration.script
        assert pieces
