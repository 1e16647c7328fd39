"""The outbox on SQLite, and its bare limit: the same entries claimed and finished by `sqlite3` alone.

The bare side begins with a copy of the file in which every effect has been asked for. It claims as often
and as many as the dispatcher did, by the store's own statements, then writes the rows of the dispatcher's
commits in as many transactions as the store took. Both files have to hold the same rows then.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from benchmarks import bare_sqlite
from benchmarks.apps import RememberingStore
from benchmarks.effects import WORKER
from benchmarks.measure import undisturbed
from runstone.core.commit import Commit
from runstone.core.ids import DEFAULT_TENANT
from runstone.ports.clock import SystemClock
from runstone.ports.store import EffectClaim
from runstone.stores.sql import statements
from runstone.stores.sqlite.files import open_writer
from runstone.stores.sqlite.rows import SIZES, to_micros

_DUE: Final = statements("sqlite")["claimable_effects"]
_CLAIM: Final = statements("sqlite")["claim_effects"]
_END: Final = statements("sqlite")["end_holds"].replace(":effect_ids", "?")
_TRANSACTIONS: Final = (
    "SELECT count(DISTINCT persisted_at) FROM orchestration_events "
    "WHERE id IN (SELECT value FROM json_each(?))"
)


class OutboxStore(RememberingStore):
    """The store, which also keeps how many effects each claim brought."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.claims: list[int] = []

    async def claim_effects(self, *arguments: Any, **options: Any) -> list[EffectClaim]:
        claimed = list(await super().claim_effects(*arguments, **options))
        self.claims += [len(claimed)] if claimed else []
        return claimed


async def opened(path: str | Path) -> OutboxStore:
    store = await OutboxStore.open(path)
    assert isinstance(store, OutboxStore)
    return store


class SqliteGround:
    """Where a round takes place: a file, and a copy of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "store.db"
        self._copy = folder / "bare.db"

    @property
    def place(self) -> str:
        return str(self._path)

    async def open(self) -> OutboxStore:
        return await opened(self._path)

    def copy(self) -> None:
        """Keeps what is there now for the bare side."""
        shutil.copy(self._path, self._copy)

    def finish_again(
        self, commits: Sequence[Commit], claims: Sequence[int], effect_type: str, writers: int
    ) -> float:
        """Seconds to claim and finish in the copy what the store holds; `Unequal` if it does not then.

        A file has one writer at a time, however many processes there are.
        """
        ordered = bare_sqlite.in_order(self._path, commits)
        now = SystemClock().now()
        claim = {
            "worker_id": WORKER,
            "tenant_id": DEFAULT_TENANT,
            "types": json.dumps([effect_type]),
            "now": to_micros(now),
            "held_until": to_micros(now + timedelta(seconds=30)),
        }
        work = _finishing(ordered, _transactions(self._path, ordered), to_micros(now))
        with closing(open_writer(str(self._copy))) as connection, undisturbed():
            began = perf_counter()
            for limit in claims:
                connection.execute("BEGIN IMMEDIATE")
                (effect_ids,) = connection.execute(_DUE, {**claim, "limit": limit}).fetchone()
                connection.execute(_CLAIM, {**claim, "effect_ids": effect_ids})
                connection.execute("COMMIT")
            for transaction in work:
                connection.execute("BEGIN IMMEDIATE")
                for statement, rows in transaction:
                    connection.executemany(statement, rows)
                connection.execute("COMMIT")
            seconds = perf_counter() - began
        bare_sqlite.compare(self._path, self._copy)
        return seconds

    def clear(self) -> None:
        for left in self._folder.glob("*.db*"):
            left.unlink()


def _finishing(commits: Sequence[Commit], count: int, now: int) -> list[bare_sqlite.Transaction]:
    """The commits as so many transactions, each of which ends the claims of its own entries."""
    work = bare_sqlite.transactions(commits, count, now, SIZES[-1])
    bounds = pairwise(len(commits) * number // count for number in range(count + 1))
    for transaction, (first, last) in zip(work, bounds, strict=True):
        writes = [write for commit in commits[first:last] for write in commit.writes]
        held = [hold.effect_id for write in writes for hold in write.holds]
        transaction.append((_END, [[json.dumps(held)]]))
    return work


def _transactions(path: Path, commits: Sequence[Commit]) -> int:
    """How many transactions the store took for these commits."""
    ids = json.dumps([commit.events[0].id for commit in commits])
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(_TRANSACTIONS, [ids]).fetchone()[0])
