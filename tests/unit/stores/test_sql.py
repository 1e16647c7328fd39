"""SQL files: numbered migrations, named statements, each explained and each used."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

import runstone.stores
from runstone.stores.sql import Migration, migrations, statements

STORES = Path(runstone.stores.__path__[0])
BACKENDS = pytest.mark.parametrize("backend", ["postgres", "sqlite"])


@BACKENDS
def test_migrations_are_numbered_without_a_gap(backend: str) -> None:
    found = migrations(backend)
    assert [migration.version for migration in found] == [*range(1, len(found) + 1)]
    assert [migration.name for migration in found] == sorted(migration.name for migration in found)
    assert found[0].name == "0001_tables"
    assert re.search(r"CREATE TABLE (runstone\.)?streams", found[0].script)


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


@BACKENDS
def test_every_name_stands_once(backend: str) -> None:
    text = (STORES / "sql" / backend / "statements.sql").read_text("utf-8")
    assert len(re.findall(r"^-- name: ", text, re.MULTILINE)) == len(statements(backend))


@BACKENDS
def test_every_statement_is_used(backend: str) -> None:
    sources = "".join(path.read_text("utf-8") for path in (STORES / backend).glob("*.py"))
    named = {
        name for name in statements(backend) if f'"{name}"' not in sources and f"'{name}'" not in sources
    }
    assert named == set()
