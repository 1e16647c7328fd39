"""Claims of several processes: lanes are kept, tenants have equal shares, nobody waits (§STO-20, §STO-21)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from runstone.core import commands
from runstone.core.commit import Commit, Context
from runstone.core.decide import Case, decide
from runstone.core.run import code_rank
from runstone.ports.clock import new_id
from runstone.ports.store import Claim
from runstone.stores.postgres import PostgresStore
from tests.integration.stores.postgres.filled import Connection
from tests.integration.stores.sqlite.scene import TENANT, arrival, usual

LEASE = timedelta(minutes=30)
"""No test takes so long, however slow the machine is."""


def queued(store: PostgresStore, tenant_id: str = TENANT, **of_run: Any) -> Commit:
    context = Context(now=store.clock.now(), new_id=new_id, actor="test")
    create = commands.CreateRun(plan_id="handler", orchestrator_version="1", **of_run)
    return decide(Case.new(tenant_id, new_id(), new_id()), arrival(new_id()), create, context=context).commit


async def enqueue(store: PostgresStore, count: int, tenant_id: str = TENANT, **of_run: Any) -> None:
    await asyncio.gather(*(store.commit(queued(store, tenant_id, **of_run)) for _ in range(count)))


async def claim(store: PostgresStore, worker_id: str, limit: int = 100) -> list[Claim]:
    rank = code_rank("1")
    return list(await store.claim(worker_id, handlers=["handler"], code_rank=rank, limit=limit, lease=LEASE))


async def test_tenants_have_equal_shares_and_what_is_left_over(store: PostgresStore) -> None:
    many, some, few = new_id(), new_id(), new_id()
    for tenant_id, count in ((many, 40), (some, 10), (few, 2)):
        await enqueue(store, count, tenant_id)
    taken = [found.tenant_id for found in await claim(store, "w", 30)]
    assert len(taken) == 30
    assert taken.count(few) == 2
    assert taken.count(some) == 10
    assert taken.count(many) == 18


async def test_claims_of_many_processes_share_no_run_and_leave_none(
    store: PostgresStore, other: PostgresStore
) -> None:
    await enqueue(store, 200)
    claims = await asyncio.gather(*(claim((store, other)[n % 2], f"w{n}", 25) for n in range(12)))
    taken = [found.run_id for of_worker in claims for found in of_worker]
    taken += [found.run_id for found in await claim(store, "last", 200)]
    assert len(taken) == len(set(taken)) == 200


async def test_a_lane_is_kept_whoever_claims(store: PostgresStore, other: PostgresStore) -> None:
    """Runs of a lane come and are claimed at the same time, by two processes."""
    taken: list[Claim] = []
    all_came = asyncio.Event()

    async def come() -> None:
        for _ in range(30):
            await store.commit(queued(store, lane="one", lane_limit=2))
        all_came.set()

    async def take(one: PostgresStore, name: str) -> None:
        while not all_came.is_set():
            taken.extend(await claim(one, name, 5))

    await asyncio.gather(come(), take(store, "a"), take(other, "b"), take(other, "c"))
    taken.extend(await claim(store, "last", 5))
    assert len(taken) == 2
    assert len({found.run_id for found in taken}) == 2


async def test_a_laned_run_of_a_dead_worker_is_claimed_again(
    store: PostgresStore, connection: Connection
) -> None:
    await enqueue(store, 3, lane="one", lane_limit=1)
    (first,) = await claim(store, "dead")
    assert await claim(store, "w") == []
    await connection.execute("UPDATE runstone.workers SET lease_until = now() - interval '1 second'")
    (again,) = await claim(store, "w")
    assert (again.run_id, again.attempts) == (first.run_id, 2)


async def test_a_claim_waits_for_no_writer(store: PostgresStore, connection: Connection) -> None:
    """What a commit is working on is left out, and found the next time."""
    await enqueue(store, 2)
    held = connection.transaction()
    await held.start()
    row = await connection.fetchrow("SELECT id FROM runstone.streams WHERE kind = 'RUN' LIMIT 1 FOR UPDATE")
    assert row is not None
    (found,) = await claim(store, "w")
    assert found.run_id != str(row["id"])
    await held.rollback()
    (rest,) = await claim(store, "w")
    assert rest.run_id == str(row["id"])


async def test_claims_releases_and_commits_at_once_never_lock_each_other_out(
    store: PostgresStore, other: PostgresStore, connection: Connection
) -> None:
    """A deadlock shows in the server's statistics, once the process that met with it has ended."""
    before = await deadlocks(connection)
    histories = [usual(seed) for seed in range(40)]

    async def write(history: list[Commit]) -> None:
        for commit in history:
            await asyncio.gather(store.commit(commit), return_exceptions=True)

    async def claim_and_release(name: str) -> None:
        for _ in range(15):
            await claim(other, name, 10)
            await other.release(name)

    await asyncio.gather(*map(write, histories), *(claim_and_release(f"w{n}") for n in range(4)))
    await store.close()
    await other.close()
    ours = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'runstone'"
    )
    async with asyncio.timeout(60):
        while await connection.fetchval(ours):  # noqa: ASYNC110  (only the server knows)
            await asyncio.sleep(0.01)
    assert await deadlocks(connection) == before


async def deadlocks(connection: Connection) -> int:
    """All there have been in this database, which other tests have used before."""
    found: int = await connection.fetchval(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return found
