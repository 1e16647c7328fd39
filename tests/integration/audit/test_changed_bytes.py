"""Single bytes of the file are changed behind the store's back, and `verify` finds every one (§STO-41)."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.integration.audit import columns, scene, sqlite_file

PER_COLUMN = 3
ANYWHERE = 150


@pytest.fixture(scope="session")
def places(pristine: Path) -> dict[tuple[str, str], list[int]]:
    """The offsets of all bytes of each column."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for value in sqlite_file.values(pristine):
        found[value.table, value.column] += value.offsets
    return found


async def test_the_store_is_clean_before(pristine: Path) -> None:
    assert await scene.findings(pristine) == []


def test_the_places_are_where_the_values_are(pristine: Path) -> None:
    content = pristine.read_bytes()
    shown = {
        (value.table, bytes(content[offset] for offset in value.offsets).decode())
        for value in sqlite_file.values(pristine)
        if value.column in ("id", "event_data", "input_context")
    }
    with closing(sqlite3.connect(pristine)) as connection:
        stored = {
            (table, row[0])
            for table, column in columns.history()
            if column in ("id", "event_data", "input_context")
            for row in connection.execute(f"SELECT {column} FROM {table}")
        }
    assert shown - {("run_checkpoints", "")} >= stored
    assert len(stored) > 200


@pytest.mark.parametrize(("table", "column"), columns.history())
async def test_a_changed_byte_in_a_column_is_found(
    table: str,
    column: str,
    pristine: Path,
    store_path: Path,
    places: dict[tuple[str, str], list[int]],
) -> None:
    offsets = places[table, column]
    if not offsets:  # SQLite keeps 0 and 1 in the head of a row
        with closing(sqlite3.connect(pristine)) as connection:
            kept = {row[0] for row in connection.execute(f"SELECT {column} FROM {table}")}
        assert kept <= {None, 0, 1}
        return
    random = Random(f"{table}.{column}")
    for offset in random.sample(offsets, min(PER_COLUMN, len(offsets))):
        change = write_changed(pristine, store_path, offset, random)
        assert await scene.findings(store_path), change


@pytest.mark.parametrize("seed", range(ANYWHERE))
async def test_a_changed_byte_anywhere_is_found_or_changes_nothing(
    seed: int, pristine: Path, store_path: Path
) -> None:
    """Heads of pages and rows, indexes, unused space: no traceback, and no history that differs unseen."""
    random = Random(seed)
    change = write_changed(pristine, store_path, None, random)
    if not await scene.findings(store_path):
        assert columns.dump(store_path) == columns.dump(pristine), change


def write_changed(pristine: Path, path: Path, offset: int | None, random: Random) -> str:
    """Writes a copy with another value of one byte, there or anywhere; says which."""
    content = bytearray(pristine.read_bytes())
    offset = random.randrange(len(content)) if offset is None else offset
    before = content[offset]
    content[offset] ^= random.randrange(1, 256)
    path.write_bytes(content)
    return f"byte {offset}: {before} → {content[offset]}"
