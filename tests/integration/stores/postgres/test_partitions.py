"""The network between clients and a server that is well: connections are cut, hang, or lose an answer.

What hung may arrive much later, when its sender has long submitted the same again on another way: that must
not be written a second time, and never over anything newer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from runstone.errors import OutcomeUnknown, StoreUnusable
from runstone.ports.store import Committed
from runstone.stores.postgres import PostgresStore, bell, connections, store, writer
from tests.integration.stores.postgres.load import PATIENCE, Load
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.scene import TENANT, usual
from tests.servers.tcp_proxy import TcpProxy

SEED = 2026
CLIENTS = 2
SHORT = timedelta(seconds=1)
ATTEMPT = 0.5
"""How long a client of these tests waits for one answer: none of them wants to wait for ten seconds."""
CONNECT = 3.0
"""The same for a connection, which takes several answers, also on a machine that is slow."""


@pytest_asyncio.fixture
async def proxy(postgres_url: str) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has clients give an answer up sooner than others do, once they are there: to open one is tried once."""

    def hurry() -> None:
        monkeypatch.setattr(writer, "ATTEMPT_SECONDS", ATTEMPT)
        monkeypatch.setattr(store, "ATTEMPT_SECONDS", ATTEMPT)
        monkeypatch.setattr(connections, "CONNECT_SECONDS", CONNECT)

    return hurry


async def test_connections_are_cut_again_and_again(proxy: TcpProxy, postgres_url: str) -> None:
    chance = Random(SEED)
    async with Load(*[proxy.url] * CLIENTS, postgres_url) as load:
        cut = 0
        while cut < 30:
            await asyncio.sleep(chance.uniform(0, 0.1))
            cut += proxy.cut()
        await load.progress(100)
        await load.finish()
        assert await load.findings(postgres_url) == []
    assert not load.errors


async def test_answers_are_lost_after_the_commit(proxy: TcpProxy, postgres_url: str) -> None:
    chance = Random(SEED)
    async with Load(*[proxy.url] * CLIENTS) as load:
        async with asyncio.timeout(PATIENCE):
            while proxy.answers_lost < 30:
                await load.progress(10)
                proxy.lose_answers()
                await asyncio.sleep(chance.uniform(0, 0.02))
        await load.progress(100)
        await load.finish()
        assert await load.findings(postgres_url) == []
    assert not load.errors


async def test_an_answer_that_is_lost_is_found_in_the_log(proxy: TcpProxy, postgres_url: str) -> None:
    async with await PostgresStore.open(proxy.url) as store:
        for commit in usual(-1):
            await store.commit(commit)  # it knows its statements now: each takes one request and one answer
        first, second, *_ = usual(-2)
        await store.commit(first)
        proxy.lose_answers()
        before = store._writer.batches
        assert await store.commit(second) == Committed()
        assert proxy.answers_lost == 1
        assert store._writer.batches > before + 1
        assert await scene.problems(store) == []  # type: ignore[arg-type]


async def test_connections_hang_and_what_they_held_arrives_late(
    proxy: TcpProxy, postgres_url: str, hurry: Callable[[], None]
) -> None:
    """Half-open: the client has given the connection up, and its bytes are still on their way."""
    async with Load(*[proxy.url] * CLIENTS, postgres_url) as load:
        hurry()
        for _ in range(4):
            await load.progress(60)
            proxy.half_open()
            await asyncio.sleep(2 * ATTEMPT)
            proxy.heal()
        await load.progress(60)
        await load.finish()
        assert await load.findings(postgres_url) == []
    assert not load.errors, "another connection was there for them"


@pytest.mark.parametrize("how", ["hang", "refuse"])
async def test_a_partition_that_outlasts_all_patience(
    proxy: TcpProxy, postgres_url: str, how: str, hurry: Callable[[], None]
) -> None:
    """Callers are told, and told the truth; one who is on the other side of it notices nothing."""
    async with Load(*[proxy.url] * CLIENTS, postgres_url, patience=SHORT) as load:
        hurry()
        await load.progress(60)
        getattr(proxy, how)()
        async with asyncio.timeout(PATIENCE):
            while sum(load.errors.values()) < 10:  # noqa: ASYNC110  (many are counted)
                await asyncio.sleep(0.05)
        await load.progress(60)
        proxy.heal()
        await load.progress(60)
        await load.finish()
        assert await load.findings(postgres_url) == []
    assert set(load.errors) <= {StoreUnusable, OutcomeUnknown}


async def test_nobody_waits_for_ever_on_a_connection_that_hangs(
    proxy: TcpProxy, postgres_url: str, hurry: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked of the store: a late answer when the network is well again, else a clear error."""
    async with (
        await PostgresStore.open(proxy.url) as store,
        await PostgresStore.open(proxy.url, patience=SHORT) as hasty,
    ):
        for commit in usual(-3):
            await store.commit(commit)
        run_id = commit.writes[-1].stream_id
        hurry()
        for _ in range(2):
            proxy.half_open()
            async with asyncio.timeout(PATIENCE):
                assert await store.load(TENANT, run_id) is not None
                assert await store.heartbeat("ada", lease=scene.LEASE) == {}
            proxy.hang()
            async with asyncio.timeout(PATIENCE):
                answers = await asyncio.gather(*_questions(hasty, run_id), return_exceptions=True)
            assert {type(answer) for answer in answers} <= {StoreUnusable, OutcomeUnknown}
            assert all("127.0.0.1" in str(answer) for answer in answers)
            proxy.heal()
            async with asyncio.timeout(PATIENCE):
                for one in (store, hasty):
                    assert await _claimed_at_last(one) == []
        monkeypatch.undo()  # to look at everything takes long questions
        assert await scene.problems(store) == []  # type: ignore[arg-type]


def _questions(store: PostgresStore, run_id: str) -> list[Awaitable[Any]]:
    return [
        store.load(TENANT, run_id),
        store.get_run(TENANT, run_id),
        store.heartbeat("ada", lease=scene.LEASE),
        _claimed(store),
        store.release("ada"),
        store.feed(),
        store.commit(scene.received(-4)),
    ]


async def _claimed(store: PostgresStore) -> list[object]:
    return list(await store.claim("ada", handlers=["nobody's"], code_rank="", limit=1, lease=scene.LEASE))


async def _claimed_at_last(store: PostgresStore) -> list[object]:
    """Asked again by who was in too much of a hurry."""
    while True:
        try:
            return await _claimed(store)
        except (StoreUnusable, OutcomeUnknown):
            await asyncio.sleep(0.05)


async def test_a_claim_whose_answer_is_lost_is_found_by_the_heartbeat(
    proxy: TcpProxy, postgres_url: str
) -> None:
    """Its runs are the worker's own, though it has never heard of them: it can give them back."""
    run = usual(-5)
    async with await PostgresStore.open(proxy.url) as store:
        await store.commit(run[0])
        handler = next(
            row.plan_id
            for row in await store.rows(TENANT, run[0].writes[-1].stream_id)
            if hasattr(row, "plan_id")
        )
        wanted: Any = {"handlers": [handler], "code_rank": "~", "limit": 1, "lease": scene.LEASE}
        assert await store.claim("bob", **{**wanted, "handlers": ["nobody's"]}) == []
        proxy.lose_answers()
        with pytest.raises(OutcomeUnknown):
            await store.claim("ada", **wanted)
        assert list(await store.heartbeat("ada", lease=scene.LEASE)) == [run[0].writes[-1].stream_id]
        assert await store.release("ada") == 1
        assert len(await store.claim("bob", **wanted)) == 1


async def test_nothing_of_a_client_that_is_cut_off_stays_open(proxy: TcpProxy, postgres_url: str) -> None:
    """The server notices: no lock, no transaction of a client that is gone holds others up."""
    connection = await asyncpg.connect(postgres_url)
    async with await PostgresStore.open(proxy.url) as store:
        for commit in usual(-6):
            await store.commit(commit)
        assert proxy.cut() > 0
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'runstone'"
        async with asyncio.timeout(PATIENCE):
            while await connection.fetchval(left):  # noqa: ASYNC110  (only the server knows)
                await asyncio.sleep(0.05)
    await connection.close()


async def test_a_bell_that_hangs_is_hung_up_anew(
    proxy: TcpProxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways: who rings and who listens find out by themselves that nobody is there any more."""
    for name in ("LONGEST", "LOOK_AFTER", "RETRY"):
        monkeypatch.setattr(bell, name, 1.0)
    async with await PostgresStore.open(proxy.url) as far, await PostgresStore.open(postgres_url) as near:
        heard: dict[str, list[str]] = {"far": [], "near": []}
        far.bell.listen(heard["far"].append)
        near.bell.listen(heard["near"].append)
        far.bell.start()
        near.bell.start()
        for word in ("before", "after"):
            async with asyncio.timeout(PATIENCE):
                while f"far-{word}" not in heard["near"] or f"near-{word}" not in heard["far"]:
                    far.bell.ring(f"far-{word}")
                    near.bell.ring(f"near-{word}")
                    await asyncio.sleep(0.02)
            assert proxy.half_open() > 0


async def test_the_system_looks_after_connections_that_only_wait(postgres_url: str) -> None:
    """A long question has no time-out: that nobody is there any more, the system has to notice."""
    opened = await connections.Opener(postgres_url).open()
    end = opened._transport.get_extra_info("socket")  # type: ignore[attr-defined]
    assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == connections.KEEP_ALIVE["TCP_KEEPIDLE"]
    await opened.close()
