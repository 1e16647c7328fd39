"""Commits that come together go down in one statement; one bad commit fails alone (§STO-13 to §STO-16)."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from msgspec.structs import replace

from runstone.core.commit import Commit
from runstone.core.effect import Effect, OutboxEntry
from runstone.core.rows import CHANGING
from runstone.core.run import QueueEntry, Run
from runstone.core.step import Step
from runstone.errors import CommitRefused, DuplicateKey, StaleFence, StaleSequence
from runstone.ports.store import Committed
from runstone.stores.postgres import PostgresStore, commits, writer
from runstone.stores.postgres.rows import EVENTS, ROWS
from tests.integration.stores.postgres.filled import Connection
from tests.integration.stores.postgres.load import waiting_for_ever
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.scene import changed, received, usual, with_event, with_row

DONE: Final = Committed()
REPEATED: Final = Committed(repeated=True)


async def together(store: PostgresStore, *wanted: Commit) -> list[Committed | BaseException]:
    return await asyncio.gather(*map(store.commit, wanted), return_exceptions=True)


async def problems(store: PostgresStore) -> list[str]:
    return await scene.problems(store)  # type: ignore[arg-type]


def statements(store: PostgresStore) -> int:
    return store._writer.batches


class TestBatches:
    async def test_commits_that_come_together_share_a_statement(self, store: PostgresStore) -> None:
        assert await together(store, *(received(seed) for seed in range(8))) == [DONE] * 8
        assert statements(store) == 1
        assert await together(store, *(received(seed) for seed in range(8, 100))) == [DONE] * 92
        assert statements(store) <= 4
        assert await problems(store) == []

    async def test_a_lone_commit_costs_one_round_trip(self, store: PostgresStore) -> None:
        """One message goes out, once the driver knows the statement: no BEGIN, no COMMIT, no question."""
        for seed in (1, 2):
            first, second, *_ = usual(seed)
            await store.commit(first)
            sent = await self._sent(store, second)
        assert len(sent) == 1

    async def _sent(self, store: PostgresStore, commit: Commit) -> list[bytes]:
        """What goes over the connection that a lone commit takes."""
        transport = (await store._writer._free[-1].connection())._transport  # type: ignore[attr-defined]
        write = transport.write
        sent: list[bytes] = []

        def watched(data: bytes) -> None:
            sent.append(bytes(data))
            write(data)

        transport.write = watched
        await store.commit(commit)
        del transport.write
        return sent

    async def test_a_few_wait_for_many_that_are_under_way(
        self, store: PostgresStore, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer, "COMPANY_SECONDS", 600.0)
        monkeypatch.setattr(writer, "ATTEMPT_SECONDS", 600.0)
        await waiting_for_ever(store)
        async with connection.transaction():
            await connection.execute("LOCK TABLE runstone.streams IN EXCLUSIVE MODE")  # until all have come
            many = [store.commit(received(seed)) for seed in range(8)]
            few = []
            for seed in range(8, 12):
                await asyncio.sleep(0)
                few.append(store.commit(received(seed)))
        assert await asyncio.gather(*many, *few) == [DONE] * 12
        assert statements(store) == 2

    async def test_a_few_do_not_wait_for_long(
        self, store: PostgresStore, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those under way may wait for somebody's transaction."""
        monkeypatch.setattr(writer, "COMPANY_SECONDS", 0.01)
        monkeypatch.setattr(writer, "ATTEMPT_SECONDS", 600.0)
        await waiting_for_ever(store)
        stuck, *rest = usual(1)
        await store.commit(stuck)
        async with connection.transaction():
            await connection.execute("SELECT FROM runstone.streams FOR UPDATE")
            wanted = (rest[0], *(received(seed) for seed in range(7)))
            many = [asyncio.ensure_future(store.commit(commit)) for commit in wanted]
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await store.commit(received(99))
            assert not any(one.done() for one in many)
        assert await asyncio.gather(*many) == [DONE] * 8

    async def test_commits_of_one_stream_follow_each_other(self, store: PostgresStore) -> None:
        wanted = [commit for pair in zip(usual(1), usual(2), strict=True) for commit in pair]
        assert await together(store, *wanted) == [DONE] * len(wanted)
        assert await problems(store) == []

    async def test_thousands_in_the_queue_are_all_written(self, store: PostgresStore) -> None:
        assert await together(store, *(received(seed) for seed in range(3_000))) == [DONE] * 3_000
        assert await store.count_events() == 3_000
        assert statements(store) < 20

    async def test_batches_are_bounded_by_their_bytes(self, store: PostgresStore) -> None:
        wanted = [received(seed, payload=scene.large(3 * 1024 * 1024)) for seed in range(6)]
        assert await together(store, *wanted) == [DONE] * 6
        assert statements(store) >= 5
        (event,) = await store.fetch(scene.TENANT, wanted[-1].writes[0].stream_id)
        assert event.event_data == wanted[-1].events[0].event_data

    async def test_what_was_submitted_is_written_before_the_store_closes(self, store: PostgresStore) -> None:
        futures = [store.commit(received(seed)) for seed in range(100)]
        await store.close()
        assert await asyncio.gather(*futures) == [DONE] * 100


class TestRepetition:
    async def test_the_same_commit_many_times_at_once_is_written_once(self, store: PostgresStore) -> None:
        first, second, third = usual(1)[:3]
        outcomes = await together(store, first, first, second, third, second, first)
        assert outcomes == [DONE, REPEATED, DONE, DONE, REPEATED, REPEATED]
        assert await problems(store) == []

    async def test_the_same_commit_from_two_processes_is_written_once(
        self, store: PostgresStore, other: PostgresStore
    ) -> None:
        """New streams too, which no lock can protect before they are there."""
        for commit in usual(1):
            outcomes = await asyncio.gather(*(one.commit(commit) for one in (store, other) * 3))
            assert sorted(outcome.repeated for outcome in outcomes) == [False] + [True] * 5
        assert await problems(store) == []

    async def test_rivals_from_two_processes_have_one_winner(
        self, store: PostgresStore, other: PostgresStore
    ) -> None:
        pairs = [
            (
                scene.told(seed, [(scene.arrival(f"{seed} one"),)])[0],
                scene.told(seed, [(scene.arrival("x"),)])[0],
            )
            for seed in range(50)
        ]
        rivals = [
            with_event(id=received(1000 + seed).events[0].id)(rival) for seed, (_, rival) in enumerate(pairs)
        ]
        left, right = await asyncio.gather(
            together(store, *(first for first, _ in pairs)),
            together(other, *map(source, rivals, range(50))),
        )
        for mine, theirs in zip(left, right, strict=True):
            assert {type(mine), type(theirs)} == {Committed, StaleSequence}
        assert await store.count_events() == 50


class TestRefusals:
    async def test_a_fence_raised_before_shuts_out_those_behind(self, store: PostgresStore) -> None:
        first, second, third = usual(1)[:3]
        raising = changed(first, -1, lambda _: {"raise_fence": True})
        outcomes = await together(store, raising, second, third)
        assert outcomes[0] == DONE
        assert [type(outcome) for outcome in outcomes[1:]] == [StaleFence, StaleFence]
        assert await store.count_events() == len(first.events), "nothing else would have kept them out"

    async def test_a_bad_commit_fails_alone(self, store: PostgresStore) -> None:
        """Whatever is bad about it: a key that is taken, a state, a value that no column takes."""
        await store.commit(received(1))
        bad: dict[int, tuple[Commit, type[CommitRefused]]] = {
            5: (received(105, source_id="mail 1"), DuplicateKey),
            17: (with_event(id=received(1).events[0].id)(received(117)), DuplicateKey),
            18: (with_event(actor="NUL \0")(received(118)), CommitRefused),
            30: (with_event(aggregate_id="no id at all")(received(130)), CommitRefused),
            31: (changed(received(131), 0, lambda _: {"head": "no hash"}), CommitRefused),
        }
        wanted = [bad[seed][0] if seed in bad else received(seed + 1000) for seed in range(40)]
        outcomes = await together(store, *wanted)
        for place, outcome in enumerate(outcomes):
            if place in bad:
                assert isinstance(outcome, bad[place][1]), (place, outcome)
            else:
                assert outcome == DONE
        assert await store.count_events() == 1 + 40 - len(bad)
        assert await problems(store) == []

    async def test_a_taken_key_is_named(self, store: PostgresStore) -> None:
        await store.commit(received(1, source_id="taken"))
        with pytest.raises(DuplicateKey, match=r"signals_tenant_id_source_channel_source_id_key.*taken"):
            await store.commit(received(2, source_id="taken"))

    @pytest.mark.parametrize("kind", [Run, Step, Effect])
    async def test_what_the_guards_refuse_is_not_written(self, store: PostgresStore, kind: type) -> None:
        history = usual(1)
        place = next(
            place
            for place, commit in enumerate(history)
            if any(type(one) is kind for one in commit.writes[-1].rows)
        )
        for commit in history[:place]:
            await store.commit(commit)
        with pytest.raises(CommitRefused):
            await store.commit(with_row(kind, status="NO SUCH STATE")(history[place]))
        assert await together(store, *history[place:]) == [DONE] * len(history[place:])
        assert await problems(store) == []


async def test_the_shapes_of_batches_are_those_of_the_structs(connection: Connection) -> None:
    """A column that only one side knows would be written into its neighbour."""
    found: dict[str, list[tuple[str, str]]] = {}
    for shape, name, kind in await connection.fetch(
        """
        SELECT c.relname, a.attname, format_type(a.atttypid, NULL)
        FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
        WHERE c.relkind = 'c' AND c.relnamespace = 'runstone'::regnamespace
        ORDER BY c.relname, a.attnum
        """
    ):
        found.setdefault(shape, []).append((name, kind.replace("timestamp with time zone", "timestamptz")))
    place = ("place", "integer")
    assert found["batch_events"] == [place, *zip(EVENTS.columns[:-2], EVENTS.types[:-2], strict=True)]
    for struct, table in ROWS.items():
        columns = dict(zip(table.columns, table.types, strict=True))
        name = f"batch_{table.name.removeprefix('runstone.')}"
        if name in found:
            assert found[name] == [place, *columns.items()]
        if f"{name}_changed" in found:
            changing = ("id", "tenant_id", *CHANGING[struct])
            assert found[f"{name}_changed"] == [place, *((one, columns[one]) for one in changing)]
    outbox = dict(zip(ROWS[OutboxEntry].columns, ROWS[OutboxEntry].types, strict=True))
    released = ("id", "tenant_id", *CHANGING[OutboxEntry])
    assert found["batch_outbox_released"] == [place, *((one, outbox[one]) for one in released)]
    queue = [place, *zip(ROWS[QueueEntry].columns, ROWS[QueueEntry].types, strict=True)]
    lease = [("owner", "text"), ("attempts", "bigint")]
    assert found["batch_queued"] == queue + lease
    assert found["batch_requeued"] == [*queue, ("leased", "boolean"), *lease]
    assert {part.shape for part in commits.PARTS} | {"batch_streams", "batch_events", "batch_holds"} == set(
        found
    )


def source(commit: Commit, number: int) -> Commit:
    """A commit whose signal came under another id."""
    return changed(
        commit,
        0,
        lambda write: {"rows": tuple(replace(one, source_id=f"rival {number}") for one in write.rows)},
    )
