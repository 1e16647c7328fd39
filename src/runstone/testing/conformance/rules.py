"""The suite of what no commit may do: take a key that is taken, cross tenants, change what has happened."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from runstone.core import commands
from runstone.core.commit import Commit
from runstone.core.decide import Case
from runstone.core.effect import Effect, OutboxEntry
from runstone.core.payloads import OutputResult
from runstone.core.rows import Row
from runstone.errors import CommitRefused, DuplicateKey, RunstoneError
from runstone.ports.store import Committed
from runstone.testing.conformance.scene import Scene, Suite
from runstone.testing.histories import five_step_history

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


class RuleSuite(Suite):
    """Keys, tenants, frozen rows."""

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
        commit = scene.decide(case, _request("pay"), _request("pay again")).commit
        rows = [
            replace(row, idempotency_key="pay") if isinstance(row, Effect | OutboxEntry) else row
            for row in commit.writes[-1].rows
        ]
        with pytest.raises(DuplicateKey):
            await scene.store.commit(with_rows(commit, *rows))
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

    @pytest.mark.parametrize("aggregate", ["signal", "run", "step", "effect", "tool call"])
    async def test_a_row_that_has_ended_is_frozen(self, scene: Scene, aggregate: str) -> None:
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
        commit = scene.decide(case, conflict if aggregate == "signal" else scene.control("RESUME")).commit
        for row in forged[aggregate]:
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
