"""The suite of `Queries` and `Rebuilds`: rows are the fold, and every question has one answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given

from runstone.core import codec, commands
from runstone.core.effect import Effect, OutboxEntry
from runstone.core.events import Event
from runstone.core.rows import Row, all_rows
from runstone.core.run import QueueEntry, Run
from runstone.core.state import RunState, SignalState
from runstone.errors import RunstoneError, StaleSequence
from runstone.testing.conformance.effect_queries import EffectQueriesSuite
from runstone.testing.conformance.entities import EntitySuite
from runstone.testing.conformance.scene import LEASE, Scene, draft, meanwhile
from runstone.testing.conformance.schedules import ScheduleSuite
from runstone.testing.conformance.tapes import lengths, random_histories, tapes
from runstone.testing.histories import five_step_history, legal_history

replace = msgspec.structs.replace


def canonical(rows: Sequence[Row]) -> list[bytes]:
    """Rows as they are compared: byte for byte (§PAY-4)."""
    return [codec.encode([type(row).__name__, row]) for row in rows]


async def assert_folded(scene: Scene, *states: SignalState | RunState) -> None:
    """The stored rows are those of the fold, in its order (§ENG-2)."""
    for state in states:
        stored = await scene.store.rows(state.tenant_id, state.stream_id)
        assert canonical(stored) == canonical(all_rows(state))


class QueriesSuite(EffectQueriesSuite, EntitySuite, ScheduleSuite):
    """What a store that answers questions has to pass."""

    # Rows

    async def test_rows_are_the_fold_after_every_commit(self, scene: Scene) -> None:
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        for decision in history:
            await scene.store.commit(decision.commit)
            await assert_folded(scene, decision.case.signal, decision.case.run)
        await scene.reopen()
        await assert_folded(scene, history[-1].case.signal, history[-1].case.run)

    @random_histories
    @given(tape=tapes, length=lengths)
    async def test_rows_are_the_fold_of_any_history(self, scene: Scene, tape: bytes, length: int) -> None:
        """Commit after commit, with payloads of every kind and size."""
        history = legal_history(
            tape, tenant_id=scene.new_id(), clock=scene.clock, new_id=scene.new_id, length=length
        )
        for place, decision in enumerate(history):
            await scene.store.commit(decision.commit)
            if place % 8 == 0:
                await assert_folded(scene, decision.case.signal, decision.case.run)
        await assert_folded(scene, decision.case.signal, decision.case.run)

    async def test_rows_are_the_fold_of_what_was_appended(self, scene: Scene) -> None:
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.append_all(history)
        await assert_folded(scene, history[-1].case.signal, history[-1].case.run)

    async def test_a_refused_commit_changes_no_row(self, scene: Scene) -> None:
        case = await scene.running()
        late = scene.decide(case, scene.control("PAUSE")).commit
        case = await scene.carry(case, scene.set_variable())
        with pytest.raises(StaleSequence):
            await scene.store.commit(late)
        await assert_folded(scene, case.signal, case.run)

    async def test_there_are_no_rows_where_there_is_no_stream(self, scene: Scene) -> None:
        assert list(await scene.store.rows(scene.tenant_id, scene.new_id())) == []
        assert await scene.store.examine(scene.tenant_id, scene.new_id()) is None

    async def test_a_stream_and_its_rows_can_be_examined_as_of_one_moment(self, scene: Scene) -> None:
        case = await scene.running()

        async def examine() -> None:
            assert await scene.findings(case.run.stream_id) == []

        async def write() -> None:
            written = case
            for number in range(10):
                key = f"step {number}"
                started = commands.StartStep(step_key=key, step_type="DECISION")
                ended = commands.SkipStep(step_key=key, reason="not needed")
                written = await scene.carry(await scene.carry(written, started), ended)

        await meanwhile(write(), examine)

    async def test_a_sound_store_finds_nothing_wrong_with_itself(self, scene: Scene) -> None:
        assert list(await scene.store.self_check()) == []
        await scene.carry_all(
            five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        )
        assert list(await scene.store.self_check()) == []

    # One thing

    async def test_runs_and_signals_are_found_by_id(self, scene: Scene) -> None:
        case = await scene.running()
        assert await scene.store.get_run(scene.tenant_id, case.run.stream_id) == case.run.run
        assert await scene.store.get_signal(scene.tenant_id, case.signal.stream_id) == case.signal.signal
        assert await scene.store.get_run(scene.tenant_id, case.signal.stream_id) is None
        assert await scene.store.get_signal(scene.tenant_id, case.run.stream_id) is None

    async def test_a_run_is_found_by_its_key(self, scene: Scene) -> None:
        await scene.queued()
        case = await scene.queued(key="größe 'daily'")
        assert await scene.store.find_run(scene.tenant_id, "größe 'daily'") == case.run.run
        assert await scene.store.find_run(scene.tenant_id, "größe") is None

    async def test_a_signal_is_found_by_its_source(self, scene: Scene) -> None:
        case = await scene.carry(scene.new_case(), scene.receive("id 1", "door 1"))
        await scene.carry(scene.new_case(), scene.receive("id 1", "door 2"))
        assert await scene.store.find_signal(scene.tenant_id, "door 1", "id 1") == case.signal.signal
        assert await scene.store.find_signal(scene.tenant_id, "door 1", "id 2") is None
        assert await scene.store.find_signal(scene.tenant_id, "id 1", "door 1") is None

    # Lists

    async def test_runs_are_listed_the_newest_first_in_pages(self, scene: Scene) -> None:
        expected: list[Run | None] = []
        for _ in range(7):
            expected.insert(0, (await scene.queued()).run.run)
            scene.clock.advance(1)
        assert list(await scene.store.list_runs(scene.tenant_id)) == expected
        pages: list[Run | None] = []
        after = None
        while page := await scene.store.list_runs(scene.tenant_id, after=after, limit=3):
            assert len(page) <= 3
            pages += page
            after = page[-1].id
        assert pages == expected

    async def test_runs_are_listed_a_hundred_at_a_time(self, scene: Scene) -> None:
        for _ in range(101):
            await scene.queued()
            scene.clock.advance(0.001)
        assert len(await scene.store.list_runs(scene.tenant_id)) == 100

    async def test_runs_are_listed_by_status_and_handler(self, scene: Scene) -> None:
        async def listed(**filters: object) -> list[str]:
            found = await scene.store.list_runs(scene.tenant_id, **filters)  # type: ignore[arg-type]
            return [run.id for run in found]

        pending = (await scene.queued(plan_id="a")).run.stream_id
        scene.clock.advance(1)
        running = (await scene.running(plan_id="a")).run.stream_id
        scene.clock.advance(1)
        other = (await scene.running(plan_id="b")).run.stream_id
        assert await listed(status="RUNNING") == [other, running]
        assert await listed(handler="a") == [running, pending]
        assert await listed(handler="a", status="RUNNING") == [running]
        assert await listed(handler="a", after=running) == [pending]
        assert await listed(status="FAILED") == []
        assert await listed(handler="c") == []

    # Correlations

    async def test_a_correlation_has_all_its_streams_in_the_order_of_opening(self, scene: Scene) -> None:
        """§ORD-22: a child's signal too, which somebody else appended."""
        case = await scene.running()
        assert case.run.run is not None
        correlation_id = case.run.run.correlation_id
        await scene.running()
        child = await self._child(scene, correlation_id)
        case = await scene.carry(case, scene.set_variable())
        streams = await scene.store.correlation(scene.tenant_id, correlation_id)
        found = [stream.head.stream_id for stream in streams]
        assert found == [case.signal.stream_id, case.run.stream_id, child.stream_id]
        for stream in streams:
            assert list(stream.events) == await scene.everything(stream.head.stream_id)
            assert stream.head.last_seq == len(stream.events)
        assert list(await scene.store.correlation(scene.tenant_id, scene.new_id())) == []

    async def _child(self, scene: Scene, correlation_id: str) -> Event:
        (event,) = scene.decide(scene.new_case(), scene.receive()).commit.events
        await scene.store.append(replace(draft(event), correlation_id=correlation_id))
        return event

    async def test_correlations_are_told_once_each(self, scene: Scene) -> None:
        other = scene.for_tenant(scene.new_id())
        mine = [await scene.running() for _ in range(3)]
        theirs = [await other.running() for _ in range(2)]
        expected = {
            (case.run.tenant_id, case.run.run.correlation_id) for case in (*mine, *theirs) if case.run.run
        }
        everything = [found async for found in scene.store.correlations()]
        assert sorted(everything) == sorted(expected)
        of_mine = [found async for found in scene.store.correlations(scene.tenant_id)]
        assert sorted(of_mine) == sorted(found for found in expected if found[0] == scene.tenant_id)

    async def test_heads_are_those_of_the_correlation(self, scene: Scene) -> None:
        case = await scene.running()
        assert case.run.run is not None
        correlation_id = case.run.run.correlation_id
        streams = await scene.store.correlation(scene.tenant_id, correlation_id)
        heads = await scene.store.heads(scene.tenant_id, correlation_id)
        assert list(heads) == [stream.head for stream in streams]
        assert len(heads) == 2
        assert list(await scene.store.heads(scene.tenant_id, scene.new_id())) == []

    async def test_runs_are_counted_by_status(self, scene: Scene) -> None:
        other = scene.for_tenant(scene.new_id())
        assert dict(await scene.store.count_runs()) == {}
        await scene.queued()
        await scene.running()
        await other.running()
        assert dict(await scene.store.count_runs(scene.tenant_id)) == {"PENDING": 1, "RUNNING": 1}
        assert dict(await scene.store.count_runs()) == {"PENDING": 1, "RUNNING": 2}

    async def test_events_are_counted(self, scene: Scene) -> None:
        other = scene.for_tenant(scene.new_id())
        assert await scene.store.count_events() == 0
        mine, theirs = await scene.running(), await other.queued()
        mine_count = mine.signal.last_seq + mine.run.last_seq
        assert await scene.store.count_events(scene.tenant_id) == mine_count
        assert await scene.store.count_events() == mine_count + theirs.signal.last_seq + theirs.run.last_seq
        assert await scene.store.count_events(scene.new_id()) == 0

    # Tenants

    async def test_no_question_leads_to_another_tenant(self, scene: Scene) -> None:
        """§TEN-6, §TEN-7: by whatever question."""
        case = await scene.carry(scene.new_case(), scene.receive("id"), scene.create(key="key"))
        assert case.run.run is not None
        store, stranger = scene.store, scene.new_id()
        assert await store.get_run(stranger, case.run.stream_id) is None
        assert await store.get_signal(stranger, case.signal.stream_id) is None
        assert await store.find_run(stranger, "key") is None
        assert await store.find_signal(stranger, "channel", "id") is None
        assert list(await store.list_runs(stranger)) == []
        assert list(await store.rows(stranger, case.run.stream_id)) == []
        assert list(await store.rows(stranger, case.signal.stream_id)) == []
        assert await store.examine(stranger, case.run.stream_id) is None
        assert list(await store.heads(stranger, case.run.run.correlation_id)) == []
        assert dict(await store.count_runs(stranger)) == {}
        assert list(await store.correlation(stranger, case.run.run.correlation_id)) == []
        assert [found async for found in store.correlations(stranger)] == []
        assert await store.count_events(stranger) == 0

    # Rebuilds

    async def test_rows_can_be_made_again(self, scene: Scene) -> None:
        """§STO-40: those of what has ended too."""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.carry_all(history)
        case = history[-1].case
        rows = all_rows(case.run)
        spoilt = [_spoilt(row) for row in rows]
        await scene.store.replace_rows(scene.tenant_id, case.run.stream_id, case.run.last_seq, spoilt)
        stored = await scene.store.rows(scene.tenant_id, case.run.stream_id)
        assert canonical(stored) == canonical(spoilt)
        fewer = [row for row in rows if not isinstance(row, Effect | OutboxEntry)]
        await scene.store.replace_rows(scene.tenant_id, case.run.stream_id, case.run.last_seq, fewer)
        stored = await scene.store.rows(scene.tenant_id, case.run.stream_id)
        assert canonical(stored) == canonical(fewer)
        await scene.store.replace_rows(scene.tenant_id, case.run.stream_id, case.run.last_seq, rows)
        await assert_folded(scene, case.signal, case.run)

    async def test_rows_are_replaced_only_where_the_stream_still_stands(self, scene: Scene) -> None:
        case = await scene.running()
        rows = [_spoilt(row) for row in all_rows(case.run)]
        moved = await scene.carry(case, scene.set_variable())
        with pytest.raises(StaleSequence):
            await scene.store.replace_rows(scene.tenant_id, case.run.stream_id, case.run.last_seq, rows)
        with pytest.raises(RunstoneError):
            await scene.store.replace_rows(scene.new_id(), case.run.stream_id, moved.run.last_seq, rows)
        await assert_folded(scene, moved.signal, moved.run)

    async def test_a_sound_store_has_no_strays(self, scene: Scene) -> None:
        case = await scene.running()
        assert await scene.store.delete_strays() == 0
        await assert_folded(scene, case.signal, case.run)

    async def test_a_rebuilt_run_keeps_its_owner(self, scene: Scene) -> None:
        case = await scene.claimed(await scene.queued())
        rows = all_rows(case.run)
        assert any(isinstance(row, QueueEntry) for row in rows)
        await scene.store.replace_rows(scene.tenant_id, case.run.stream_id, case.run.last_seq, rows)
        await assert_folded(scene, case.signal, case.run)
        assert list(await scene.store.heartbeat("w1", lease=LEASE)) == [case.run.stream_id]
        assert list(await scene.claim("w2")) == []
        await scene.carry(case, commands.StartRun())


def _spoilt(row: Row) -> Row:
    """A row that some other fold would have made."""
    return replace(row, fold_version=0, plan_version="spoilt") if isinstance(row, Run) else row
