"""The writer's thread and its callers: cancelled, in other loops, after the end, beside mistakes."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from runstone.errors import StoreClosed, StoreUnusable
from runstone.ports.clock import SystemClock
from runstone.ports.store import Committed
from runstone.stores.sqlite import SqliteStore
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.scene import received, usual


class Gate:
    """Work that holds the writer up until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, _: sqlite3.Connection) -> None:
        self.reached.set()
        assert self.open.wait(60)

    async def hold(self, store: SqliteStore) -> asyncio.Task[None]:
        held = asyncio.create_task(store._writer.execute(self))
        await asyncio.to_thread(self.reached.wait)
        return held


class TestCancelling:
    async def test_a_caller_that_is_cancelled_harms_nobody(self, store: SqliteStore) -> None:
        """What it submitted lands or does not; submitted again, it says which."""
        gate = Gate()
        held = await gate.hold(store)
        waiting = [asyncio.ensure_future(store.commit(received(seed))) for seed in range(10)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        gate.open.set()
        await held
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, Committed] * 5
        again = await asyncio.gather(*(store.commit(received(seed)) for seed in range(10)))
        assert all(committed.repeated for committed in again[1::2])
        assert await store.count_events() == 10
        assert await scene.problems(store) == []

    async def test_one_cancelled_right_away_was_submitted_all_the_same(self, store: SqliteStore) -> None:
        task = asyncio.ensure_future(store.commit(received(1)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await store.commit(received(1))).repeated

    async def test_a_timeout_is_no_outcome(self, store: SqliteStore) -> None:
        gate = Gate()
        held = await gate.hold(store)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.commit(received(1)), 0.01)
        gate.open.set()
        await held
        assert (await store.commit(received(1))).repeated


class TestClosing:
    async def test_it_finishes_what_was_submitted(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        gate = Gate()
        held = await gate.hold(store)
        waiting = [asyncio.ensure_future(store.commit(received(seed))) for seed in range(100)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        gate.open.set()
        await closing
        await held
        assert await asyncio.gather(*waiting) == [Committed()] * 100
        async with await SqliteStore.open(path) as again:
            assert await again.count_events() == 100

    async def test_nothing_works_afterwards(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        await store.close()
        await store.close()
        for use in (
            store.commit(received(1)),
            store.append(received(1).events[0]),
            store.claim("w", handlers=[], code_rank="", limit=1, lease=scene.LEASE),
            store.heartbeat("w", lease=scene.LEASE),
            store.release("w"),
            store.fetch(scene.TENANT, "s"),
            store.load(scene.TENANT, "s"),
            store.feed(),
            store.count_events(),
            store.self_check(),
        ):
            with pytest.raises(StoreClosed):
                await use

    async def test_what_comes_while_another_loop_closes_it_is_refused(self, path: Path) -> None:
        """Or it would be handed to a thread that has ended, and its caller would wait for ever."""
        store = await SqliteStore.open(path)
        guard, closing = store._writer._guard, threading.Thread(target=asyncio.run, args=(store.close(),))

        class Late:
            def __enter__(self) -> None:
                store._writer._guard = guard
                closing.start()
                closing.join()
                guard.acquire()

            def __exit__(self, *error: object) -> None:
                guard.release()

        store._writer._guard = Late()  # type: ignore[assignment]
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(store.commit(received(1)), 10)

    async def test_readers_under_way_are_waited_for(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        gate = Gate()
        reading = asyncio.create_task(store._read(gate))
        await asyncio.to_thread(gate.reached.wait)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        gate.open.set()
        await reading
        await closing

    async def test_it_leaves_no_thread_behind(self, path: Path) -> None:
        before = set(threading.enumerate())
        async with await SqliteStore.open(path) as store:
            await scene.write(store, usual(1))
            await store.count_events()
            assert (
                len([thread for thread in set(threading.enumerate()) - before if "sqlite" in thread.name])
                >= 2
            )
        assert not [thread for thread in set(threading.enumerate()) - before if "sqlite" in thread.name]


async def submit(store: SqliteStore) -> None:
    await store.commit(received(1))


class TestSeveralLoops:
    """A store opened in one event loop, used in others."""

    async def test_loops_in_other_threads(self, store: SqliteStore) -> None:
        async def write(first: int) -> None:
            for seed in range(first, first + 5):
                await asyncio.gather(*(scene.write(store, usual(10 * seed + extra)) for extra in range(3)))

        def run(first: int) -> None:
            asyncio.run(asyncio.wait_for(write(first), 60))

        await asyncio.gather(write(0), *(asyncio.to_thread(run, first) for first in (100, 200, 300)))
        assert len(await store.list_runs(scene.TENANT, limit=1_000)) == 4 * 5 * 3
        assert await scene.problems(store) == []

    async def test_a_loop_that_was_closed_in_the_middle_holds_up_nobody(self, store: SqliteStore) -> None:
        def abandon() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(submit(store))
            loop.call_soon(loop.stop)  # after the task has submitted, before the work is handed over
            loop.run_forever()
            loop.close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]

        await asyncio.to_thread(abandon)
        assert await asyncio.wait_for(store.commit(received(2)), 60) == Committed()
        await store.close()

    async def test_a_loop_that_is_gone_when_its_commit_lands_is_forgotten(self, store: SqliteStore) -> None:
        gate = Gate()
        held = await gate.hold(store)

        def abandon() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(submit(store))
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]

        await asyncio.to_thread(abandon)
        gate.open.set()
        await held
        assert (await store.commit(received(1))).repeated


class TestMistakes:
    """Whatever goes wrong in one piece of work, the thread goes on and nobody waits for ever."""

    @pytest.mark.parametrize(
        "mistake",
        [ValueError("no"), RuntimeError("no"), AssertionError("no"), KeyError("no"), MemoryError("no")],
    )
    async def test_of_any_kind(self, mistake: Exception, store: SqliteStore) -> None:
        def fail(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO workers (id, lease_until) VALUES ('half done', 1)")
            raise mistake

        outcomes = await asyncio.gather(
            store.commit(received(1)), store._writer.execute(fail), return_exceptions=True
        )
        assert isinstance(outcomes[1], type(mistake) | StoreUnusable)
        assert await store.commit(received(2)) == Committed()
        assert await store._read(lambda c: c.execute("SELECT count(*) FROM workers").fetchone()) == (0,)

    async def test_of_a_clock(self, path: Path) -> None:
        class Stopped(SystemClock):
            works = False

            def now(self):  # type: ignore[no-untyped-def]
                if not self.works:
                    raise OSError("the clock has stopped")
                return super().now()

        clock = Stopped()
        async with await SqliteStore.open(path, clock=clock) as store:
            with pytest.raises(StoreUnusable, match="the clock has stopped"):
                await store.commit(received(1))
            clock.works = True
            assert await store.commit(received(1)) == Committed()

    async def test_of_somebody_who_ends_the_transaction(self, store: SqliteStore) -> None:
        outcomes = await asyncio.gather(
            scene.write(store, [received(1)]),  # in the same turn of the loop, hence of the same batch
            store._writer.execute(lambda connection: connection.execute("ROLLBACK")),
            return_exceptions=True,
        )
        assert [isinstance(outcome, StoreUnusable) for outcome in outcomes] == [True, True]
        assert await store.commit(received(1)) == Committed()
        assert await scene.problems(store) == []
