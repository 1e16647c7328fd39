"""The suite of `EventLog`: blind appends, fetching, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from msgspec import Raw

from runstone.core import codec
from runstone.core.chain import GENESIS, event_hash, portable
from runstone.core.contract import CONTRACT_VERSION, FETCH_LIMIT
from runstone.core.events import Event, EventDraft
from runstone.core.keys import digest
from runstone.errors import (
    DuplicateKey,
    InvalidPayload,
    RunstoneError,
    StateTransitionError,
    StoreClosed,
    UnknownEventType,
)
from runstone.testing.conformance.scene import Scene, Suite, draft
from runstone.testing.conformance.tapes import lengths, random_histories, tapes
from runstone.testing.histories import five_step_history, legal_history
from runstone.testing.hostile import PAYLOADS


async def opened_run(scene: Scene) -> Event:
    """Appends a run with one variable; the event that set it."""
    created = scene.decide(scene.new_case(), scene.receive(), scene.create())
    changed = scene.decide(created.case, scene.set_variable())
    await scene.append_all([created, changed])
    return changed.commit.events[-1]


def variable(scene: Scene, like: Event, value: Raw = codec.NULL, key: str | None = None) -> EventDraft:
    """Another RUN_VARIABLE_SET beside an event: legal at any time, so anybody can append it blindly."""
    return msgspec.structs.replace(
        draft(like),
        id=scene.new_id(),
        idempotency_key=key or digest(scene.new_id()),
        event_data=Raw(codec.encode({"name": "v", "value": value})),
        causation_id=like.id,
        occurred_at=scene.clock.now(),
    )


def assert_chained(events: Sequence[Event]) -> None:
    """Contiguous from 1, and each event carries the hash of the one before (§ORD-5, §ORD-14)."""
    assert [event.run_seq for event in events] == list(range(1, len(events) + 1))
    hashes = [GENESIS, *map(event_hash, events)]
    assert [event.prev_hash for event in events] == hashes[:-1]


class EventLogSuite(Suite):
    """What every adapter has to pass."""

    async def test_it_says_which_contract_it_was_proven_against(self, scene: Scene) -> None:
        """§VER-10: this suite proves the current one."""
        assert scene.store.contract_version == CONTRACT_VERSION

    # Appending

    async def test_fifty_blind_writers_leave_no_gap(self, scene: Scene) -> None:
        """§STO-6: every writer is told where its event stands, and none is lost."""
        like = await opened_run(scene)
        drafts = [variable(scene, like) for _ in range(50)]
        results = await asyncio.gather(*map(scene.store.append, drafts))
        events = await scene.everything(like.stream_id)
        assert_chained(events)
        assert len(events) == like.run_seq + 50
        assert all(result.persisted and not result.idempotent for result in results)
        told = {result.run_seq: each.id for result, each in zip(results, drafts, strict=True)}
        assert told == {event.run_seq: event.id for event in events[like.run_seq :]}

    async def test_acknowledged_events_are_there_after_a_restart(self, scene: Scene) -> None:
        """§STO-17, §STO-18."""
        like = await opened_run(scene)
        for value in range(10):
            await scene.store.append(variable(scene, like, Raw(b"%d" % value)))
        before = await scene.everything(like.stream_id)
        await scene.reopen()
        assert await scene.everything(like.stream_id) == before
        assert len(before) == like.run_seq + 10
        await scene.store.append(variable(scene, like))
        assert_chained(await scene.everything(like.stream_id))

    async def test_a_key_on_record_returns_the_first_place(self, scene: Scene) -> None:
        """§IDM-8, §IDM-9: id, time and trace may differ."""
        like = await opened_run(scene)
        first = variable(scene, like, Raw(b"1"))
        place = await scene.store.append(first)
        await scene.store.append(variable(scene, like))
        scene.clock.advance(60)
        again = variable(scene, like, Raw(b"1"), key=first.idempotency_key)
        result = await scene.store.append(msgspec.structs.replace(again, trace_id="f" * 32))
        assert (result.run_seq, result.idempotent, result.persisted) == (place.run_seq, True, False)
        assert not result.conflict
        assert len(await scene.everything(like.stream_id)) == like.run_seq + 2

    async def test_a_key_appended_by_many_at_once_is_there_once(self, scene: Scene) -> None:
        like = await opened_run(scene)
        key = digest("once")
        drafts = [variable(scene, like, key=key) for _ in range(20)]
        results = await asyncio.gather(*map(scene.store.append, drafts))
        assert {result.run_seq for result in results} == {like.run_seq + 1}
        assert sum(result.persisted for result in results) == 1
        assert not any(result.conflict for result in results)
        assert len(await scene.everything(like.stream_id)) == like.run_seq + 1

    async def test_a_key_on_record_with_other_content_is_a_conflict(self, scene: Scene) -> None:
        """§IDM-10: the first stays, byte for byte."""
        like = await opened_run(scene)
        first = variable(scene, like, Raw(b"1"))
        place = await scene.store.append(first)
        other_data = variable(scene, like, Raw(b"1.0"), key=first.idempotency_key)
        other_type = msgspec.structs.replace(
            first, id=scene.new_id(), event_type="RUN_PAUSED", event_data=Raw(b'{"reason":"PARKED"}')
        )
        before = await scene.everything(like.stream_id)
        for other in (other_data, other_type):
            result = await scene.store.append(other)
            assert result.conflict
            assert (result.run_seq, result.idempotent, result.persisted) == (place.run_seq, True, False)
        assert await scene.everything(like.stream_id) == before

    async def test_the_same_key_in_two_streams_is_two_events(self, scene: Scene) -> None:
        """§IDM-7."""
        one, other = await opened_run(scene), await opened_run(scene)
        key = digest("shared")
        for like in (one, other):
            result = await scene.store.append(variable(scene, like, key=key))
            assert result.persisted

    async def test_an_event_id_is_unique_over_all_tenants(self, scene: Scene) -> None:
        """§EVT-1."""
        like = await opened_run(scene)
        theirs = await opened_run(scene.for_tenant(scene.new_id()))
        for place in (like, theirs):
            stolen = msgspec.structs.replace(variable(scene, place), id=like.id)
            with pytest.raises(DuplicateKey):
                await scene.store.append(stolen)
        assert len(await scene.everything(like.stream_id)) == like.run_seq

    async def test_an_event_that_does_not_fit_is_refused_and_adds_nothing(self, scene: Scene) -> None:
        """§TRN-31, §ORD-7: a refusal leaves no gap."""
        like = await opened_run(scene)
        good = variable(scene, like)
        illegal = msgspec.structs.replace(good, event_type="RUN_COMPLETED", event_data=Raw(b"{}"))
        unknown = msgspec.structs.replace(good, event_type="NO_SUCH_THING")
        broken = msgspec.structs.replace(good, event_data=Raw(b'{"value":1}'))
        for wrong, error in (
            (illegal, StateTransitionError),
            (unknown, UnknownEventType),
            (broken, InvalidPayload),
        ):
            with pytest.raises(error):
                await scene.store.append(wrong)
        assert (await scene.store.append(good)).run_seq == like.run_seq + 1
        assert_chained(await scene.everything(like.stream_id))

    async def test_nothing_opens_a_stream_but_its_first_event(self, scene: Scene) -> None:
        like = await opened_run(scene)
        elsewhere = scene.new_id()
        stray = msgspec.structs.replace(
            variable(scene, like), stream_id=elsewhere, run_id=elsewhere, aggregate_id=elsewhere
        )
        with pytest.raises(StateTransitionError):
            await scene.store.append(stray)
        assert await scene.everything(elsewhere) == []

    async def test_time_never_goes_back_in_a_stream(self, scene: Scene) -> None:
        """§ORD-23."""
        like = await opened_run(scene)
        scene.clock.advance(-3600)
        await scene.store.append(variable(scene, like))
        times = [event.occurred_at for event in await scene.everything(like.stream_id)]
        assert times == sorted(times)

    # Fetching

    async def test_fetch_gives_pages_in_order(self, scene: Scene) -> None:
        """§STO-7."""
        like = await opened_run(scene)
        for value in range(8):
            await scene.store.append(variable(scene, like, Raw(b"%d" % value)))
        last = like.run_seq + 8
        whole = list(await scene.store.fetch(scene.tenant_id, like.stream_id))
        assert [event.run_seq for event in whole] == list(range(1, last + 1))
        for after_seq in range(last + 2):
            for limit in (1, 3, 100):
                page = await scene.store.fetch(
                    scene.tenant_id, like.stream_id, after_seq=after_seq, limit=limit
                )
                assert list(page) == whole[after_seq : after_seq + limit]

    async def test_fetch_gives_a_thousand_events_unless_told_otherwise(self, scene: Scene) -> None:
        like = await opened_run(scene)
        drafts = [variable(scene, like) for _ in range(FETCH_LIMIT)]
        await asyncio.gather(*map(scene.store.append, drafts))
        assert len(await scene.store.fetch(scene.tenant_id, like.stream_id)) == FETCH_LIMIT
        all_of_them = await scene.store.fetch(scene.tenant_id, like.stream_id, limit=FETCH_LIMIT * 2)
        assert len(all_of_them) == FETCH_LIMIT + like.run_seq

    async def test_a_stream_that_does_not_exist_is_empty(self, scene: Scene) -> None:
        nowhere = scene.new_id()
        assert list(await scene.store.fetch(scene.tenant_id, nowhere)) == []
        assert await scene.store.snapshot(scene.tenant_id, nowhere) is None
        assert await scene.store.project(scene.tenant_id, nowhere) is None

    async def test_marks_of_the_store_rise_and_are_outside_of_the_hash(self, scene: Scene) -> None:
        """§EVT-1, §ORD-25: a store that has no feed may give none."""
        like = await opened_run(scene)
        scene.clock.advance(5)
        await scene.store.append(variable(scene, like))
        events = await scene.everything(like.stream_id)
        numbers = [event.sequence_number for event in events if event.sequence_number is not None]
        assert numbers == sorted(set(numbers))
        assert len(numbers) in (0, len(events))
        assert_chained(events)

    async def test_hostile_payloads_come_back_byte_for_byte(self, scene: Scene) -> None:
        """§PAY-15."""
        like = await opened_run(scene)
        sent = [variable(scene, like, payload) for payload in PAYLOADS]
        for each in sent:
            await scene.store.append(each)
        await scene.reopen()
        stored = (await scene.everything(like.stream_id))[like.run_seq :]
        for each, event in zip(sent, stored, strict=True):
            assert bytes(event.event_data) == bytes(each.event_data)

    # Snapshots

    async def test_the_usual_run_is_shown_as_it_went(self, scene: Scene) -> None:
        """§STO-8 to §STO-11."""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.append_all(history)
        run_id = history[-1].case.run.stream_id
        shown = await scene.store.snapshot(scene.tenant_id, run_id)
        assert shown is not None
        assert shown.status == "COMPLETED"
        assert [(step.step_id, step.status) for step in shown.steps] == [
            ("decide", "SUCCESS"),
            ("ask", "SUCCESS"),
            ("look", "SUCCESS"),
            ("send", "SUCCESS"),
            ("confirm", "SUCCESS"),
        ]
        assert shown.last_event_seq == history[-1].case.run.last_seq
        assert codec.encode(shown) == codec.encode(await scene.store.project(scene.tenant_id, run_id))

    @random_histories
    @given(tape=tapes, length=lengths)
    async def test_any_history_can_be_appended_event_by_event(
        self, scene: Scene, tape: bytes, length: int
    ) -> None:
        """§STO-9, §ORD-15: places, hashes and snapshots come out as `decide` has them."""
        history = list(
            legal_history(
                tape, tenant_id=scene.new_id(), clock=scene.clock, new_id=scene.new_id, length=length
            )
        )
        case = history[-1].case
        await scene.append_all(history)
        here = scene.for_tenant(case.run.tenant_id)
        for stream_id in (case.signal.stream_id, case.run.stream_id):
            decided = [e for d in history for e in d.commit.events if e.stream_id == stream_id]
            assert [portable(event) for event in await here.everything(stream_id)] == decided
        shown = await here.store.snapshot(here.tenant_id, case.run.stream_id)
        assert codec.encode(shown) == codec.encode(
            await here.store.project(here.tenant_id, case.run.stream_id)
        )

    # Tenants

    async def test_a_tenant_sees_nothing_of_another(self, scene: Scene) -> None:
        """§TEN-6."""
        like = await opened_run(scene)
        stranger = scene.new_id()
        assert list(await scene.store.fetch(stranger, like.stream_id)) == []
        assert await scene.store.snapshot(stranger, like.stream_id) is None
        assert await scene.store.project(stranger, like.stream_id) is None

    async def test_a_tenant_cannot_add_to_the_stream_of_another(self, scene: Scene) -> None:
        """§TEN-3: not with a key of its own, nor by guessing one that is there."""
        like = await opened_run(scene)
        for key in (digest("of my own"), like.idempotency_key):
            foreign = msgspec.structs.replace(variable(scene, like, key=key), tenant_id=scene.new_id())
            with pytest.raises(RunstoneError):
                await scene.store.append(foreign)
        assert len(await scene.everything(like.stream_id)) == like.run_seq

    # The end

    async def test_a_closed_store_says_so(self, scene: Scene) -> None:
        like = await opened_run(scene)
        await scene.store.close()
        await scene.store.close()
        with pytest.raises(StoreClosed):
            await scene.store.append(variable(scene, like))
        with pytest.raises(StoreClosed):
            await scene.store.fetch(scene.tenant_id, like.stream_id)
