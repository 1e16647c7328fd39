"""What somebody types in the place of an id is looked for on either store, and may be no id at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from runstone.errors import NotFound
from runstone.ports.clock import Clock
from runstone.ports.store import Store
from runstone.stores.postgres import PostgresStore
from runstone.testing.conformance.scene import Scene
from tests.integration.desk import Desk

KEY = "2030-01-15"
"""It looks like the beginning of an id."""

RUN_VERBS = ("show", "events", "trace", "export", "verify", "control resume", "db rebuild")


class Keyed(Desk):
    """A store with one run, which has a key."""

    async def fill(self, scene: Scene) -> None:
        self.run = (await scene.queued(key=KEY)).run.stream_id


class KeyedOnAServer(Keyed):
    async def open(self, clock: Clock) -> Store:
        return await PostgresStore.open(str(self.path), clock=clock)


@pytest.fixture(params=["sqlite", "postgres"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Keyed:
    if request.param == "postgres":
        return KeyedOnAServer(request.getfixturevalue("postgres_url"))
    return Keyed(tmp_path / "desk.db")


def test_a_run_is_found_by_its_key_and_by_the_beginning_of_its_id(desk: Keyed) -> None:
    for name in (KEY, desk.run, desk.run.upper(), desk.run[:30]):
        assert desk.run in "\n".join(desk.lines("show", name))


def test_what_nobody_has_is_not_found(desk: Keyed) -> None:
    """Whatever it looks like, and whatever the store takes for an id."""
    for name in ("nothing", "2030-01-16", "abcdef-", "f" * 32, "f" * 64, desk.tenant_id):
        for verb in (*RUN_VERBS, "entities show invoice", "schedules show", "schedules cancel"):
            done = desk.call(*verb.split(), name)
            assert isinstance(done.exception, NotFound), (verb, name, done.output)
