"""Files and folders that may not be written: a clear error, and what can be read is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from runstone.errors import StoreReadOnly
from runstone.stores.sqlite import SqliteStore
from tests.integration.stores.sqlite import scene

NOBODY: Final = 65534


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Permissions do not bind root; for a while it is nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def unbound() -> Iterator[None]:
    """In the midst of that, whoever started the tests."""
    nobody = os.geteuid()
    os.seteuid(os.getuid())
    try:
        yield
    finally:
        os.seteuid(nobody)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that anybody may enter, as the folders of tests are not."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.fixture
async def file(folder: Path) -> Path:
    """A store that was closed."""
    path = folder / "runstone.db"
    async with await SqliteStore.open(path) as store:
        await scene.write(store, scene.usual(1))
    return path


def only_readable(*paths: Path) -> None:
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)


def everybodys(*paths: Path) -> None:
    for path in paths:
        path.chmod(0o777 if path.is_dir() else 0o666)


def locks(file: Path) -> list[Path]:
    return [file.with_name(file.name + kind) for kind in ("-turn", "-lock")]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir()}


async def test_no_store_is_made_in_a_folder_that_is_read_only(folder: Path) -> None:
    only_readable(folder)
    with bound_by_permissions(), pytest.raises(StoreReadOnly, match="permissions"):
        await SqliteStore.open(folder / "runstone.db")
    assert contents(folder) == {}


async def test_a_store_in_a_folder_that_is_read_only_does_not_open(file: Path) -> None:
    """Even readers need to make a file beside it."""
    before = contents(file.parent)
    only_readable(file.parent, *before)
    with bound_by_permissions(), pytest.raises(StoreReadOnly, match="permissions"):
        await SqliteStore.open(file)
    assert contents(file.parent) == before


async def test_a_file_that_is_read_only_can_be_read(file: Path) -> None:
    everybodys(file.parent, *locks(file))
    only_readable(file)
    with bound_by_permissions():
        async with await SqliteStore.open(file) as store:
            assert await scene.problems(store) == []
            with pytest.raises(StoreReadOnly, match="readonly"):
                await store.commit(scene.received(2))
            assert await scene.problems(store) == []


async def test_lock_files_that_are_read_only_are_named(file: Path) -> None:
    everybodys(file.parent, file)
    only_readable(*locks(file))
    with bound_by_permissions():
        async with await SqliteStore.open(file) as store:
            with pytest.raises(StoreReadOnly, match=f"{file.name}-turn"):
                await store.commit(scene.received(2))


async def test_when_it_may_be_written_again_it_is(file: Path) -> None:
    """A writer that was refused needs no restart."""
    everybodys(file.parent, file)
    only_readable(*locks(file))
    with bound_by_permissions():
        async with await SqliteStore.open(file) as store:
            with pytest.raises(StoreReadOnly):
                await store.commit(scene.received(2))
            with unbound():
                everybodys(*locks(file))
            assert not (await store.commit(scene.received(2))).repeated
            assert await scene.problems(store) == []
