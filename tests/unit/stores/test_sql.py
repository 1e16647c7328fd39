"""SQL files: numbered migrations, named statements, each explained and each used."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import runstone.stores.sqlite
from runstone.stores.sql import Migration, migrations, statements

SOURCES = "".join(
    path.read_text("utf-8") for path in Path(runstone.stores.sqlite.__file__).parent.glob("*.py")
)


def test_migrations_are_numbered_without_a_gap() -> None:
    found = migrations("sqlite")
    assert [migration.version for migration in found] == [*range(1, len(found) + 1)]
    assert [migration.name for migration in found] == sorted(migration.name for migration in found)
    assert found[0].name == "0001_tables"
    assert "CREATE TABLE streams" in found[0].script


def test_a_checksum_is_that_of_the_text() -> None:
    migration = Migration(1, "0001_größer", "CREATE TABLE größer (id TEXT);\n")
    assert migration.checksum == sha256(migration.script.encode()).hexdigest()
    assert migration.checksum != Migration(1, migration.name, migration.script + " ").checksum


def test_a_statement_is_what_stands_behind_its_name() -> None:
    found = statements("sqlite")
    assert found["raise_fence"].endswith(
        "\nUPDATE streams SET fence = fence + 1 WHERE id = :stream_id RETURNING fence;"
    )
    assert found["raise_fence"].startswith("-- ")
    assert [name for name, statement in found.items() if not statement.endswith(";")] == []
    assert [name for name, statement in found.items() if "-- name:" in statement] == []


def test_every_name_stands_once() -> None:
    text = (
        Path(runstone.stores.sqlite.__file__).parents[1] / "sql" / "sqlite" / "statements.sql"
    ).read_text()
    assert len(re.findall(r"^-- name: ", text, re.MULTILINE)) == len(statements("sqlite"))


def test_every_statement_is_used() -> None:
    assert [name for name in statements("sqlite") if f'_SQL["{name}"]' not in SOURCES] == []
