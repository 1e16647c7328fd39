"""Commits that come together are written together, and one bad commit fails alone (§STO-13 to §STO-16)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from typing import Final

import pytest

from runstone.core.commit import Commit
from runstone.core.effect import Effect
from runstone.core.run import Run
from runstone.core.step import Step
from runstone.errors import CommitRefused, DuplicateKey, StaleFence, StaleSequence
from runstone.ports.clock import SystemClock
from runstone.ports.store import Committed
from runstone.stores.sqlite import SqliteStore
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.scene import changed, received, usual, with_event, with_row


async def transactions(store: SqliteStore) -> list[str]:
    """The ends of transactions from now on."""
    ends: list[str] = []

    def watch(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(lambda sql: ends.append(sql) if sql in ("COMMIT", "ROLLBACK") else None)

    await store._writer.execute(watch)
    ends.clear()
    return ends


async def together(store: SqliteStore, *commits: Commit) -> list[Committed | BaseException]:
    return await asyncio.gather(*map(store.commit, commits), return_exceptions=True)


class TestBatches:
    async def test_commits_that_come_together_share_a_transaction(self, store: SqliteStore) -> None:
        ends = await transactions(store)
        outcomes = await together(store, *(received(seed) for seed in range(50)))
        assert outcomes == [Committed()] * 50
        assert ends == ["COMMIT"]
        assert await scene.problems(store) == []

    async def test_a_lone_commit_is_written_at_once(self, store: SqliteStore) -> None:
        """It waits for no company: nobody else comes, and still it is done."""
        ends = await transactions(store)
        for place, commit in enumerate(usual(1), 1):
            await store.commit(commit)
            assert ends == ["COMMIT"] * place

    async def test_commits_of_one_stream_follow_each_other_in_a_batch(self, store: SqliteStore) -> None:
        ends = await transactions(store)
        commits = [*usual(1), *usual(2)]
        assert await together(store, *commits) == [Committed()] * len(commits)
        assert ends == ["COMMIT"]
        assert await scene.problems(store) == []

    async def test_other_work_shares_it_too(self, store: SqliteStore) -> None:
        await scene.write(store, [usual(1)[0]])
        ends = await transactions(store)
        beats = [store.heartbeat(f"worker {number}", lease=scene.LEASE) for number in range(5)]
        claim = store.claim("w", handlers=["handler"], code_rank="zzz", limit=9, lease=scene.LEASE)
        commits = [scene.write(store, [commit]) for commit in usual(2)]
        claims, _ = await asyncio.gather(claim, asyncio.gather(*beats, *commits))
        assert len(claims) == 1
        assert ends == ["COMMIT"]

    async def test_what_came_while_a_batch_was_written_makes_the_next(self, store: SqliteStore) -> None:
        ends = await transactions(store)
        reached, gate = threading.Event(), threading.Event()

        def hold(connection: sqlite3.Connection) -> bool:
            reached.set()
            return gate.wait(60)

        held = asyncio.ensure_future(store._writer.execute(hold))
        await asyncio.to_thread(reached.wait)
        waiting = []
        for seed in range(20):
            waiting.append(asyncio.ensure_future(store.commit(received(seed))))
            await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(held, *waiting) == [True, *[Committed()] * 20]
        assert ends == ["COMMIT"] * 2

    async def test_thousands_in_the_queue_are_all_written(self, store: SqliteStore) -> None:
        outcomes = await together(store, *(received(seed) for seed in range(5_000)))
        assert outcomes == [Committed()] * 5_000
        assert await store.count_events() == 5_000
        assert await store.self_check() == []

    async def test_a_commit_of_megabytes_is_written(self, store: SqliteStore) -> None:
        huge = received(1, payload=scene.large(8 * 1024 * 1024 - 1024))
        outcomes = await together(store, received(2), huge, received(3))
        assert outcomes == [Committed()] * 3
        assert await scene.problems(store) == []
        (event,) = await store.fetch(scene.TENANT, huge.writes[0].stream_id)
        assert event.event_data == huge.events[0].event_data


class TestRepetition:
    async def test_the_same_commit_twice_in_a_batch_is_written_once(self, store: SqliteStore) -> None:
        first, second, third = usual(1)[:3]
        outcomes = await together(store, first, first, second, third, second, first)
        done, repeated = Committed(), Committed(repeated=True)
        assert outcomes == [done, repeated, done, done, repeated, repeated]
        assert await scene.problems(store) == []

    async def test_a_rival_in_the_same_batch_is_stale(self, store: SqliteStore) -> None:
        (first,) = scene.told(1, [(scene.arrival("one"),)])
        (rival,) = scene.told(1, [(scene.arrival("two"),)])
        assert first.writes[0].stream_id == rival.writes[0].stream_id
        another = "018df74f-87e7-7000-8000-000000000000"
        outcomes = await together(store, first, with_event(id=another)(rival))
        assert outcomes[0] == Committed()
        assert isinstance(outcomes[1], StaleSequence)
        assert await store.count_events() == len(first.events)

    async def test_a_fence_raised_in_the_batch_shuts_out_those_behind(self, store: SqliteStore) -> None:
        first, second, third = usual(1)[:3]
        raising = changed(first, -1, lambda _: {"raise_fence": True})
        outcomes = await together(store, raising, second, third)
        assert outcomes[0] == Committed()
        assert [type(outcome) for outcome in outcomes[1:]] == [StaleFence, StaleFence]
        assert await store.count_events() == len(first.events), "nothing else would have kept them out"
        assert await scene.problems(store) == []


def first_with(kind: type) -> int:
    """The first commit of a run that has such a row."""
    return next(
        place for place, commit in enumerate(usual(7)) for one in commit.writes[-1].rows if type(one) is kind
    )


BAD: Final[dict[str, tuple[int, Callable[[Commit], Commit], type[CommitRefused], str]]] = {
    "an id that exists": (
        0,
        with_event(id=usual(1)[0].events[0].id),
        DuplicateKey,
        "orchestration_events.id",
    ),
    "a state that does not exist": (0, with_row(Run, status="NONSENSE"), CommitRefused, "CHECK constraint"),
    "a step of no run": (first_with(Step), with_row(Step, run_id="?"), CommitRefused, "FOREIGN KEY"),
    "an effect of no step": (first_with(Effect), with_row(Effect, step_id="?"), CommitRefused, "FOREIGN KEY"),
    "nothing where something has to be": (0, with_event(actor=None), CommitRefused, "NOT NULL"),
    "text where a number belongs": (0, with_event(run_seq="one"), CommitRefused, "cannot store TEXT"),
    "a number that is too large": (0, with_event(event_version=2**70), CommitRefused, "too large"),
    "what is no value at all": (0, with_event(actor=object()), CommitRefused, "parameter"),
    "a stream without a name": (
        0,
        lambda commit: changed(commit, -1, lambda _: {"stream_id": object()}),
        CommitRefused,
        "JSON serializable",
    ),
    "text that is not Unicode": (0, with_event(actor="\ud800"), CommitRefused, "surrogates"),
}
"""Of the commits of a run: which is spoilt, how, and what the store says."""


class TestOneBadCommit:
    @pytest.mark.parametrize("name", BAD)
    async def test_fails_alone(self, name: str, store: SqliteStore) -> None:
        place, spoil, error, said = BAD[name]
        await scene.write(store, [*usual(1), *usual(7)[:place]])
        before, began = await scene.all_event_ids(store), SystemClock().now()
        outcomes = await together(
            store, received(1), usual(2)[0], spoil(usual(7)[place]), usual(2)[1], received(2)
        )
        refused = outcomes.pop(2)
        assert type(refused) is error
        assert said in str(refused)
        assert outcomes == [Committed()] * 4
        written = [received(1), *usual(2)[:2], received(2)]
        assert set(await scene.all_event_ids(store)) - set(before) == {
            event_id for commit in written for event_id in scene.event_ids(commit)
        }
        new = (await store.feed(limit=1000))[len(before) :]
        assert [
            item for item in new if not (item.event.persisted_at and item.event.persisted_at >= began)
        ] == []
        assert await store.commit(usual(7)[place]) == Committed()
        assert await scene.problems(store) == []

    async def test_source_ids_are_unique_in_a_batch_too(self, store: SqliteStore) -> None:
        outcomes = await together(store, *(received(seed, source_id="the same") for seed in range(3)))
        assert outcomes[0] == Committed()
        assert [type(outcome) for outcome in outcomes[1:]] == [DuplicateKey, DuplicateKey]
        assert "signals.source_id" in str(outcomes[1])
        assert await scene.problems(store) == []

    async def test_an_ended_row_is_not_touched_by_anybody(self, store: SqliteStore) -> None:
        commits = usual(1)
        await scene.write(store, commits)
        ended = await store.rows(scene.TENANT, commits[-1].writes[-1].stream_id)
        step = next(one for one in ended if isinstance(one, Step))
        forged = changed(usual(2)[0], -1, lambda write: {"rows": (*write.rows, step)})
        outcomes = await together(store, forged, received(1))
        assert isinstance(outcomes[0], CommitRefused)
        assert "has ended and is frozen" in str(outcomes[0])
        assert outcomes[1] == Committed()
        assert await scene.problems(store) == []

    async def test_maintenance_that_leaves_orphans_fails_alone(self, store: SqliteStore) -> None:
        """Only the end of a transaction finds them, when all others of the batch are in it already."""
        await scene.write(store, usual(1))
        (run,) = await store.list_runs(scene.TENANT)
        stream = await store.load(scene.TENANT, run.id)
        assert stream is not None
        rows = [one for one in await store.rows(scene.TENANT, run.id) if not isinstance(one, Run)]
        replacing = store.replace_rows(scene.TENANT, run.id, stream.head.last_seq, rows)
        outcomes = await asyncio.gather(
            store.commit(received(1)), replacing, store.commit(received(2)), return_exceptions=True
        )
        assert isinstance(outcomes[1], CommitRefused)
        assert (outcomes[0], outcomes[2]) == (Committed(), Committed())
        assert await scene.problems(store) == []
