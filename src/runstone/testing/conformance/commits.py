"""The suite of `Host.commit` and `Host.load`: all or nothing, compared, fenced, repeatable."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from msgspec import Raw

from runstone.core import commands
from runstone.core.chain import event_hash, portable
from runstone.core.commit import Commit
from runstone.core.decide import Case, Decision
from runstone.core.events import Event
from runstone.core.payloads import OutputResult
from runstone.core.rows import Row
from runstone.errors import (
    CommitRefused,
    DuplicateKey,
    RunstoneError,
    StaleFence,
    StaleSequence,
)
from runstone.ports.cases import carry_out, load_case
from runstone.ports.store import Committed
from runstone.testing.conformance.scene import Scene, Suite, meanwhile
from runstone.testing.conformance.tapes import lengths, random_histories, tapes
from runstone.testing.histories import five_step_history, legal_history
from runstone.testing.hostile import PAYLOADS

replace = msgspec.structs.replace


def tampered(commit: Commit, **changes: Any) -> Commit:
    """The commit with its last event changed."""
    *writes, last = commit.writes
    *events, event = last.events
    changed = replace(event, **changes)
    write = replace(last, events=(*events, changed))
    return Commit((*writes, write), tuple(changed if kept is event else kept for kept in commit.events))


def with_rows(commit: Commit, *rows: Row) -> Commit:
    """The commit with other rows than those its events make."""
    *writes, last = commit.writes
    return replace(commit, writes=(*writes, replace(last, rows=rows)))


class CommitSuite(Suite):
    """How a commit is written, or refused."""

    # All or nothing

    async def test_a_commit_of_two_streams_is_written_whole(self, scene: Scene) -> None:
        case = await scene.running()
        await scene.audit(case.signal.stream_id, case.run.stream_id)
        for state in (case.signal, case.run):
            stream = await scene.store.load(scene.tenant_id, state.stream_id)
            assert stream is not None
            assert (stream.head.last_seq, stream.head.head) == (state.last_seq, state.head)
            assert stream.head.last_at == state.last_at

    @pytest.mark.parametrize("stale", [0, 1])
    async def test_nothing_is_written_when_one_stream_is_stale(self, scene: Scene, stale: int) -> None:
        """§STO-13: whichever of the streams it is."""
        cases = [await scene.running(), await scene.running()]
        decisions = [scene.decide(case, scene.set_variable()) for case in cases]
        await scene.carry(cases[stale], scene.set_variable(2))
        with pytest.raises(StaleSequence) as refusal:
            await scene.store.commit(Commit.of(*(decision.commit for decision in decisions)))
        assert refusal.value.stream_id == cases[stale].run.stream_id
        untouched = cases[1 - stale]
        assert len(await scene.everything(untouched.run.stream_id)) == untouched.run.last_seq
        await scene.audit(*(case.run.stream_id for case in cases))

    async def test_nothing_is_written_when_one_stream_has_a_duplicate(self, scene: Scene) -> None:
        case = await scene.running()
        first = scene.decide(case, scene.set_variable()).commit
        new = scene.decide(scene.new_case(), scene.receive("the same"), scene.create())
        await scene.carry(scene.new_case(), scene.receive("the same"))
        with pytest.raises(DuplicateKey):
            await scene.store.commit(Commit.of(first, new.commit))
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq
        for state in (new.case.signal, new.case.run):
            assert await scene.store.load(scene.tenant_id, state.stream_id) is None
        await scene.audit(case.run.stream_id)

    async def test_acknowledged_commits_are_there_after_a_restart(self, scene: Scene) -> None:
        """§STO-17, §STO-18."""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.carry_all(history)
        case = history[-1].case
        streams = [case.signal.stream_id, case.run.stream_id]
        before = [await scene.store.load(scene.tenant_id, stream_id) for stream_id in streams]
        await scene.reopen()
        assert [await scene.store.load(scene.tenant_id, stream_id) for stream_id in streams] == before
        assert {event.id for commit in scene.acknowledged for event in commit.events} == {
            event.id for stream in before if stream for event in stream.events
        }
        await scene.audit(*streams)

    async def test_one_bad_commit_among_many_fails_alone(self, scene: Scene) -> None:
        """§STO-16."""
        cases = [await scene.running() for _ in range(20)]
        commits = [scene.decide(case, scene.set_variable()).commit for case in cases]
        await scene.carry(cases[7], scene.set_variable(2))
        commits[13] = tampered(commits[13], id=cases[0].run.last_event)
        outcomes = await asyncio.gather(*map(scene.store.commit, commits), return_exceptions=True)
        assert isinstance(outcomes[7], StaleSequence)
        assert isinstance(outcomes[13], DuplicateKey)
        written = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert written == [place for place in range(20) if place not in (7, 13)]
        for place, case in enumerate(cases):
            events = await scene.everything(case.run.stream_id)
            assert len(events) == case.run.last_seq + (place != 13)

    # Compared and fenced

    async def test_a_stale_sequence_is_refused_and_can_be_decided_again(self, scene: Scene) -> None:
        """§ORD-11."""
        case = await scene.running()
        late = scene.decide(case, scene.set_variable(1))
        case = await scene.carry(case, scene.set_variable(2))
        with pytest.raises(StaleSequence) as refusal:
            await scene.store.commit(late.commit)
        assert refusal.value.stream_id == case.run.stream_id
        assert refusal.value.actual == case.run.last_seq
        await scene.carry(case, scene.set_variable(1))
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq + 1

    async def test_a_stream_is_opened_once(self, scene: Scene) -> None:
        new = scene.new_case()
        decisions = [scene.decide(new, scene.receive(), scene.create()) for _ in range(10)]
        outcomes = await asyncio.gather(
            *(scene.store.commit(decision.commit) for decision in decisions), return_exceptions=True
        )
        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, CommitRefused) for outcome in outcomes) == 9
        await scene.audit(new.signal.stream_id, new.run.stream_id)

    async def test_writers_who_decide_again_all_get_through(self, scene: Scene) -> None:
        """Many writers on one stream: none is lost, none leaves a gap (§ORD-7)."""
        case = await scene.running()

        async def write(value: int) -> Decision:
            return await carry_out(
                scene.store,
                scene.tenant_id,
                case.run.stream_id,
                scene.set_variable(value),
                context=scene.context(),
            )

        decisions = await asyncio.gather(*map(write, range(20)))
        events = await scene.everything(case.run.stream_id)
        assert len(events) == case.run.last_seq + 20
        assert {e.id for d in decisions for e in d.commit.events} <= {event.id for event in events}
        await scene.audit(case.run.stream_id)

    async def test_a_stale_fence_is_refused(self, scene: Scene) -> None:
        """§ORD-12: the former owner of a run cannot write to it."""
        case = await scene.queued()
        mine = await scene.claimed(case, "w1")
        await scene.store.release("w1")
        theirs = await scene.claimed(case, "w2")
        with pytest.raises(StaleFence) as refusal:
            await scene.carry(mine, commands.StartRun())
        assert refusal.value.stream_id == case.run.stream_id
        assert (refusal.value.fence, refusal.value.actual) == (mine.run_fence, theirs.run_fence)
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq
        await scene.carry(theirs, commands.StartRun())

    async def test_cancelling_shuts_the_owner_out(self, scene: Scene) -> None:
        """§TRN-19."""
        case = await scene.claimed(await scene.queued())
        case = await scene.carry(case, commands.StartRun())
        cancelled = await scene.carry(case, scene.control("CANCEL"))
        late = scene.decide(case, scene.set_variable())
        with pytest.raises(CommitRefused):
            await scene.store.commit(late.commit)
        stream = await scene.store.load(scene.tenant_id, case.run.stream_id)
        assert stream is not None
        assert stream.head.fence == case.run_fence + 1 == cancelled.run_fence
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    # Submitted again

    async def test_a_commit_that_landed_is_repeated(self, scene: Scene) -> None:
        """§STO-15: whatever has happened since, and after a restart too."""
        case = await scene.queued()
        decision = scene.decide(case, commands.StartRun())
        assert await scene.store.commit(decision.commit) == Committed()
        assert await scene.store.commit(decision.commit) == Committed(repeated=True)
        later = await scene.carry(decision.case, scene.control("CANCEL"))
        assert await scene.store.commit(decision.commit) == Committed(repeated=True)
        await scene.reopen()
        assert await scene.store.commit(decision.commit) == Committed(repeated=True)
        assert len(await scene.everything(case.run.stream_id)) == later.run.last_seq
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    async def test_a_cancellation_that_landed_is_repeated(self, scene: Scene) -> None:
        """It has raised the fence that it carries itself."""
        case = await scene.running()
        decision = scene.decide(case, scene.control("CANCEL"))
        assert await scene.store.commit(decision.commit) == Committed()
        assert await scene.store.commit(decision.commit) == Committed(repeated=True)

    async def test_a_commit_submitted_many_times_at_once_is_written_once(self, scene: Scene) -> None:
        case = await scene.running()
        commit = scene.decide(case, scene.set_variable()).commit
        outcomes = await asyncio.gather(*(scene.store.commit(commit) for _ in range(10)))
        assert sorted(outcome.repeated for outcome in outcomes) == [False] + [True] * 9
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq + 1

    async def test_a_commit_that_was_refused_is_not_taken_for_a_repeated_one(self, scene: Scene) -> None:
        case = await scene.running()
        late = scene.decide(case, scene.set_variable(1))
        await scene.carry(case, scene.set_variable(1))
        for _ in range(2):
            with pytest.raises(StaleSequence):
                await scene.store.commit(late.commit)

    # Unique

    async def test_event_ids_are_unique_over_all_tenants(self, scene: Scene) -> None:
        """§EVT-1."""
        case = await scene.running()
        other = scene.for_tenant(scene.new_id())
        for here in (scene, other):
            new = here.decide(await here.running(), here.set_variable())
            with pytest.raises(DuplicateKey):
                await here.store.commit(tampered(new.commit, id=case.run.last_event))

    async def test_event_keys_are_unique_in_their_stream(self, scene: Scene) -> None:
        """§ORD-6."""
        case = await scene.running()
        (first, *_) = await scene.everything(case.run.stream_id)
        again = scene.decide(case, scene.set_variable()).commit
        with pytest.raises(DuplicateKey):
            await scene.store.commit(tampered(again, idempotency_key=first.idempotency_key))
        elsewhere = scene.decide(await scene.running(), scene.set_variable()).commit
        await scene.store.commit(tampered(elsewhere, idempotency_key=first.idempotency_key))

    async def test_source_ids_are_unique_in_their_channel(self, scene: Scene) -> None:
        """§IDM-13, §TEN-9."""
        other = scene.for_tenant(scene.new_id())
        await scene.carry(scene.new_case(), scene.receive("1"))
        await scene.carry(scene.new_case(), scene.receive("1", "another channel"))
        await scene.carry(scene.new_case(), scene.receive("2"))
        await other.carry(other.new_case(), other.receive("1"))
        with pytest.raises(DuplicateKey):
            await scene.carry(scene.new_case(), scene.receive("1"))

    async def test_run_keys_are_unique_in_their_tenant(self, scene: Scene) -> None:
        """§ENT-11: also when the first run has ended. A run without a key collides with none."""
        other = scene.for_tenant(scene.new_id())
        case = await scene.queued(key="daily")
        await other.queued(key="daily")
        await scene.queued(key="weekly")
        await scene.queued()
        await scene.queued()
        await scene.carry(case, commands.CancelRun(exit_reason="TEST"))
        with pytest.raises(DuplicateKey):
            await scene.queued(key="daily")

    async def test_a_run_request_is_unique(self, scene: Scene) -> None:
        """§IDM-18: one signal starts one run of a plan, in one project and environment."""
        case = await scene.carry(scene.new_case(), scene.receive())

        async def request(**of_run: Any) -> None:
            run = Case.new(scene.tenant_id, case.signal.stream_id, scene.new_id()).run
            await scene.carry(replace(case, run=run), scene.create(**of_run))

        await request()
        await request(plan_version="2")
        await request(plan_id="another")
        await request(environment="test")
        with pytest.raises(DuplicateKey):
            await request()

    async def test_effect_keys_are_unique_in_their_tenant(self, scene: Scene) -> None:
        """§IDM-25, §TEN-9."""
        other = scene.for_tenant(scene.new_id())
        await _with_effect(scene, "pay")
        await _with_effect(other, "pay")
        await _with_effect(scene, "pay twice")
        with pytest.raises(DuplicateKey):
            await _with_effect(scene, "pay")

    async def test_a_commit_cannot_hold_the_same_key_twice(self, scene: Scene) -> None:
        case = await scene.carry(await scene.running(), _start_step())
        twice = scene.decide(case, _request("pay"), _request("pay"))
        with pytest.raises(DuplicateKey):
            await scene.store.commit(twice.commit)
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq

    # Tenants

    async def test_a_commit_belongs_to_one_tenant(self, scene: Scene) -> None:
        """§TEN-4."""
        other = scene.for_tenant(scene.new_id())
        mine, theirs = await scene.running(), await other.running()
        joined = Commit.of(
            scene.decide(mine, scene.set_variable()).commit, other.decide(theirs, other.set_variable()).commit
        )
        with pytest.raises(RunstoneError):
            await scene.store.commit(joined)
        assert len(await scene.everything(mine.run.stream_id)) == mine.run.last_seq
        assert len(await other.everything(theirs.run.stream_id)) == theirs.run.last_seq

    async def test_a_tenant_cannot_write_to_the_stream_of_another(self, scene: Scene) -> None:
        """§TEN-3: neither as if it were new, nor where it stands."""
        case = await scene.running()
        other = scene.for_tenant(scene.new_id())
        fresh = Case.new(other.tenant_id, other.new_id(), case.run.stream_id)
        with pytest.raises(CommitRefused):
            await other.carry(fresh, other.receive(), other.create())
        commit = scene.decide(case, scene.set_variable()).commit
        with pytest.raises(CommitRefused):
            await other.store.commit(_moved(commit, other.tenant_id))
        assert await other.store.load(other.tenant_id, case.run.stream_id) is None
        assert await other.store.load(other.tenant_id, fresh.signal.stream_id) is None
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    # What has happened stays

    async def test_an_event_cannot_be_replaced(self, scene: Scene) -> None:
        """§EVT-8."""
        case = await scene.running()
        decision = scene.decide(case, scene.set_variable())
        await scene.store.commit(decision.commit)
        before = await scene.everything(case.run.stream_id)
        other = Raw(b'{"name":"v","value":"forged"}')
        in_place = tampered(decision.commit, event_data=other)
        behind = tampered(
            scene.decide(decision.case, scene.set_variable()).commit, id=before[-1].id, event_data=other
        )
        for forged in (in_place, behind):
            with pytest.raises(CommitRefused):
                await scene.store.commit(forged)
        assert await scene.everything(case.run.stream_id) == before

    @pytest.mark.parametrize("entity", ["signal", "run", "step", "effect", "tool call"])
    async def test_a_row_that_has_ended_is_frozen(self, scene: Scene, entity: str) -> None:
        """§TRN-3, §TRN-34: not even a column that no state depends on may change."""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.carry_all(history)
        case = history[-1].case
        signal, run = case.signal.signal, case.run.run
        assert signal is not None
        assert run is not None
        step = next(iter(case.run.steps.values()))
        effect = next(iter(case.run.effects.values()))
        call = next(iter(case.run.tool_calls.values()))
        forged: dict[str, tuple[Row, ...]] = {
            "signal": (replace(signal, ingested_by="somebody"), replace(signal, status="PROCESSING")),
            "run": (replace(run, plan_version="9"), replace(run, status="RUNNING")),
            "step": (replace(step, retry_count=9), replace(step, status="FAILED")),
            "effect": (replace(effect, retry_count=9), replace(effect, status="PENDING")),
            "tool call": (replace(call, cache_hit=True), replace(call, status="PENDING")),
        }
        conflict = commands.ReportConflict(source_hash="f" * 64)
        commit = scene.decide(case, conflict if entity == "signal" else scene.control("RESUME")).commit
        for row in forged[entity]:
            with pytest.raises(RunstoneError):
                await scene.store.commit(with_rows(commit, row))
        await scene.audit(case.signal.stream_id, case.run.stream_id)
        assert await scene.store.commit(commit) == Committed()
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    async def test_a_row_moves_only_where_its_machine_leads(self, scene: Scene) -> None:
        """§TRN-33."""
        case = await scene.running()
        run = case.run.run
        assert run is not None
        commit = scene.decide(case, scene.set_variable()).commit
        for row in (replace(run, status="PENDING"), replace(run, status="APPROVED")):
            with pytest.raises(RunstoneError):
                await scene.store.commit(with_rows(commit, row))
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq
        assert await scene.store.commit(commit) == Committed()
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    async def test_facts_about_what_has_ended_can_be_recorded(self, scene: Scene) -> None:
        """§TRN-4, §ORD-4."""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.carry_all(history)
        case = history[-1].case
        step = next(iter(case.run.steps.values()))
        effect = next(iter(case.run.effects.values()))
        output = OutputResult(decision=Raw(b"1e2"))
        case = await scene.carry(
            case,
            commands.CorrectStep(step_id=step.id, output=output, reason="wrong"),
            commands.ReportLateOutcome(effect_id=effect.id, executor="d0"),
            commands.ReportConflict(source_hash="f" * 64),
        )
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    # Reading back

    async def test_load_gives_head_and_events_of_one_moment(self, scene: Scene) -> None:
        case = await scene.running()

        async def read() -> None:
            stream = await scene.store.load(scene.tenant_id, case.run.stream_id)
            assert stream is not None
            assert [event.run_seq for event in stream.events] == list(range(1, stream.head.last_seq + 1))
            assert event_hash(stream.events[-1]) == stream.head.head

        async def write() -> None:
            written = case
            for value in range(30):
                written = await scene.carry(written, scene.set_variable(value))

        await meanwhile(write(), read)

    async def test_load_can_leave_out_the_beginning(self, scene: Scene) -> None:
        case = await scene.carry(await scene.running(), *(scene.set_variable(n) for n in range(5)))
        events = await scene.everything(case.run.stream_id)
        for after_seq in range(case.run.last_seq + 2):
            stream = await scene.store.load(scene.tenant_id, case.run.stream_id, after_seq=after_seq)
            assert stream is not None
            assert list(stream.events) == events[after_seq:]
            assert stream.head.last_seq == case.run.last_seq

    async def test_load_finds_nothing_of_another_tenant(self, scene: Scene) -> None:
        """§TEN-6."""
        case = await scene.running()
        assert await scene.store.load(scene.new_id(), case.run.stream_id) is None
        assert await scene.store.load(scene.tenant_id, scene.new_id()) is None
        assert await load_case(scene.store, scene.new_id(), case.run.stream_id) is None

    async def test_a_case_is_loaded_as_it_was_decided(self, scene: Scene) -> None:
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        for decision in history:
            await scene.store.commit(decision.commit)
            loaded = await load_case(scene.store, scene.tenant_id, decision.case.run.stream_id)
            assert loaded == decision.case

    async def test_hostile_payloads_are_committed_byte_for_byte(self, scene: Scene) -> None:
        """§PAY-15."""
        case = await scene.running()
        sent: list[Event] = []
        for payload in PAYLOADS:
            decision = scene.decide(case, commands.SetVariable(name="v", value=payload))
            await scene.store.commit(decision.commit)
            sent += decision.commit.events
            case = decision.case
        await scene.reopen()
        stored = (await scene.everything(case.run.stream_id))[-len(sent) :]
        assert [bytes(event.event_data) for event in stored] == [bytes(event.event_data) for event in sent]
        assert [portable(event) for event in stored] == sent

    @random_histories
    @given(tape=tapes, length=lengths)
    async def test_any_history_can_be_committed(self, scene: Scene, tape: list[int], length: int) -> None:
        """§ENG-2, §STO-9: what comes back is what was decided, and proves itself."""
        here = scene.for_tenant(scene.new_id())
        history = legal_history(
            tape,
            tenant_id=here.tenant_id,
            clock=here.clock,
            new_id=here.new_id,
            length=length,
            pipeline=length % 2 == 1,
        )
        done = await here.carry_all(history)
        case = done[-1].case
        for state in (case.signal, case.run):
            decided = [e for d in done for e in d.commit.events if e.stream_id == state.stream_id]
            stored = await here.everything(state.stream_id)
            assert [portable(event) for event in stored] == decided
            if decided:
                await here.audit(state.stream_id)


def _moved(commit: Commit, tenant_id: str) -> Commit:
    """The commit as another tenant would forge it."""
    writes = tuple(replace(write, tenant_id=tenant_id) for write in commit.writes)
    return replace(commit, writes=writes)


def _start_step() -> commands.Command:
    return commands.StartStep(step_key="send", step_type="EFFECT_REQUEST")


def _request(key: str) -> commands.Command:
    return commands.RequestEffect(step_key="send", effect_type="CUSTOM", spec={}, effect_key=key)


async def _with_effect(scene: Scene, key: str) -> Case:
    return await scene.carry(await scene.running(), _start_step(), _request(key))
