"""The suite of `Retention`: whole correlations go once they are archived, and nothing of them comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from runstone.core import commands
from runstone.core.bundle import import_commit
from runstone.core.checkpoint import checkpoint
from runstone.core.commands import Command
from runstone.core.decide import Case
from runstone.core.payloads import ErrorInfo, OutputResult
from runstone.core.stream import Stream
from runstone.core.tombstone import Resting, Tombstone, bury
from runstone.errors import CommitRefused, DuplicateKey, RunstoneError, StaleSequence
from runstone.ports.retention import Expired
from runstone.testing.conformance.scene import Scene, Suite, draft
from runstone.testing.histories import five_step_history

replace = msgspec.structs.replace

YEAR: Final = timedelta(days=365)
_ERROR: Final = ErrorInfo(category="EXTERNAL", code="E1", message="no", retryable=False)


def resting(scene: Scene, runs: timedelta = YEAR, signals: timedelta = YEAR) -> Resting:
    now = scene.clock.now()
    return Resting(ended_before=now - runs, received_before=now - signals)


async def ended(scene: Scene, *, source_id: str | None = None, **of_run: Any) -> Case:
    """A run that has completed."""
    receive = scene.receive(source_id)
    case = await scene.carry(scene.new_case(), receive, scene.create(**of_run), commands.StartRun())
    return await scene.carry(case, commands.ReturnHandler(result=msgspec.Raw(b"null")))


async def with_effect(
    scene: Scene, *after: Any, critical: bool = False, delivery: Any = "at_least_once"
) -> Case:
    """A run that asked for an effect and returned, and what became of the effect."""
    effect_id = scene.new_id()
    case = await scene.running()
    case = await scene.carry(
        case,
        commands.StartStep(step_key="send", step_type="EFFECT_REQUEST"),
        commands.RequestEffect(
            step_key="send",
            effect_type="SEND_EMAIL",
            spec={"to": ["a"]},
            effect_id=effect_id,
            critical=critical,
            delivery=delivery,
        ),
        commands.CompleteStep(step_key="send", output=OutputResult(effect_spec=msgspec.Raw(b"{}"))),
        commands.ReturnHandler(result=msgspec.Raw(b"null")),
    )
    for make in after:
        case = await scene.carry(case, make(effect_id))
    return case


def dies(scene: Scene) -> Callable[[str], Command]:
    """The effect becomes a dead letter."""
    return lambda effect_id: commands.FailEffect(
        effect_id=effect_id, executor="mail", error=_ERROR, next_retry_at=scene.clock.now()
    )


def correlation_id(case: Case) -> str:
    assert case.signal.signal is not None
    return case.signal.signal.correlation_id


async def streams_of(scene: Scene, case: Case) -> Sequence[Stream]:
    return await scene.store.correlation(scene.tenant_id, correlation_id(case))


async def stones_of(scene: Scene, case: Case) -> tuple[Tombstone, ...]:
    """What would stand in the place of a correlation as it is now."""
    return bury(
        await streams_of(scene, case),
        archive="/archive",
        bundle="bundle.ndjson",
        bundle_sha256="a" * 64,
        now=scene.clock.now(),
    )


async def forgotten(scene: Scene, case: Case) -> tuple[Tombstone, ...]:
    stones = await stones_of(scene, case)
    assert await scene.store.forget(stones) is True
    return stones


async def everything_of(scene: Scene, case: Case) -> list[object]:
    """All that the store has of a correlation."""
    found: list[object] = list(await streams_of(scene, case))
    for stream_id in (case.signal.stream_id, case.run.stream_id):
        found += await scene.store.rows(scene.tenant_id, stream_id)
        found += await scene.everything(stream_id)
        found += await scene.store.checkpoints(scene.tenant_id, stream_id)
    items = await scene.store.feed(limit=100_000)
    ours = (case.signal.stream_id, case.run.stream_id)
    return [*found, *(item for item in items if item.event.stream_id in ours)]


class RetentionSuite(Suite):
    """What a store that forgets has to pass."""

    async def _expired(self, scene: Scene, **asked: Any) -> list[str]:
        kept: dict[str, Any] = {"tenant_id": scene.tenant_id, "limit": 1000} | asked
        found = await scene.store.expired(resting(scene), **kept)
        return [one.correlation_id for one in found]

    # What has expired

    async def test_a_correlation_expires_when_it_has_rested(self, scene: Scene) -> None:
        """§STO-34"""
        case = await ended(scene)
        scene.clock.advance(YEAR - timedelta(microseconds=1))
        assert await self._expired(scene) == []
        scene.clock.advance(timedelta(microseconds=1))
        (found,) = await scene.store.expired(resting(scene), tenant_id=scene.tenant_id)
        streams = await streams_of(scene, case)
        assert (found.tenant_id, found.correlation_id) == (scene.tenant_id, correlation_id(case))
        assert found.first_id == case.signal.stream_id
        assert (found.streams, found.events) == (2, sum(stream.head.last_seq for stream in streams))
        assert found.last_at == max(stream.head.last_at for stream in streams)

    async def test_signals_without_a_run_have_a_time_of_their_own(self, scene: Scene) -> None:
        """§STO-34"""
        await ended(scene)
        lonely = await scene.carry(scene.new_case(), scene.receive())
        scene.clock.advance(timedelta(days=31))
        month = resting(scene, timedelta(days=90), timedelta(days=30))
        found = await scene.store.expired(month, tenant_id=scene.tenant_id)
        assert [one.correlation_id for one in found] == [correlation_id(lonely)]
        assert found[0].streams == 1

    async def test_what_goes_on_does_not_expire(self, scene: Scene) -> None:
        """§STO-35"""
        await scene.queued()
        await scene.running()
        await scene.carry(await scene.running(), commands.PauseRun(reason="LUNCH"))
        await with_effect(scene)
        scene.clock.advance(2 * YEAR)
        assert await self._expired(scene) == []

    async def test_what_a_person_may_still_decide_does_not_expire(self, scene: Scene) -> None:
        """§STO-35: a dead letter may be sent again, and an unknown outcome found out."""
        letter = await with_effect(scene, dies(scene))
        await with_effect(
            scene,
            lambda of: commands.BeginEffect(effect_id=of, executor="mail"),
            lambda of: commands.LoseEffect(effect_id=of, executor="mail"),
            delivery="at_most_once",
        )
        scene.clock.advance(2 * YEAR)
        assert await self._expired(scene) == []
        (effect,) = letter.run.effects.values()
        assert effect.status == "DEAD_LETTER"
        await scene.carry(letter, commands.DiscardEffect(effect_id=effect.id))
        scene.clock.advance(2 * YEAR)
        assert await self._expired(scene) == [correlation_id(letter)]

    async def test_one_live_run_keeps_its_whole_correlation(self, scene: Scene) -> None:
        """§STO-35"""
        parent = await ended(scene)
        child = scene.new_case()
        receive = replace(scene.receive(), correlation_id=correlation_id(parent), cause=parent.run.last_event)
        child = await scene.carry(child, receive, scene.create(), commands.StartRun())
        scene.clock.advance(2 * YEAR)
        assert await self._expired(scene) == []
        stones = await stones_of(scene, parent)
        assert len(stones) == 4
        with pytest.raises(CommitRefused):
            await scene.store.forget(stones)
        child = await scene.carry(child, commands.ReturnHandler(result=msgspec.Raw(b"null")))
        scene.clock.advance(2 * YEAR)
        assert await self._expired(scene) == [correlation_id(parent)]
        assert len(await forgotten(scene, parent)) == 4
        assert await everything_of(scene, child) == []

    async def test_late_news_keep_a_correlation(self, scene: Scene) -> None:
        case = await ended(scene)
        scene.clock.advance(YEAR)
        report = commands.ReportConflict(source_hash="1" * 64)
        await scene.carry(case, report)
        assert await self._expired(scene) == []

    async def test_the_oldest_come_first_page_by_page(self, scene: Scene) -> None:
        cases = []
        for _ in range(5):
            cases.append(await ended(scene))
            scene.clock.advance(timedelta(days=1))
        await scene.queued()
        scene.clock.advance(YEAR)
        seen: list[str] = []
        last: Expired | None = None
        while page := await scene.store.expired(
            resting(scene), tenant_id=scene.tenant_id, after=last, limit=2
        ):
            assert len(page) <= 2
            seen += [one.correlation_id for one in page]
            last = page[-1]
        assert seen == [correlation_id(case) for case in cases]

    async def test_tenants_expire_together_or_apart(self, scene: Scene) -> None:
        other = scene.for_tenant(scene.new_id())
        mine, theirs = await ended(scene), await ended(other)
        scene.clock.advance(YEAR)
        assert await self._expired(scene) == [correlation_id(mine)]
        assert await self._expired(other) == [correlation_id(theirs)]
        both = await self._expired(scene, tenant_id=None)
        assert {correlation_id(mine), correlation_id(theirs)} <= set(both)

    # Forgetting

    async def test_everything_of_a_correlation_goes_and_nothing_else(self, scene: Scene) -> None:
        """§STO-37, §STO-39"""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        case = (await scene.carry_all(history))[-1].case
        await scene.store.put_checkpoint(checkpoint(case.run, scene.new_id(), scene.clock.now()))
        other = await ended(scene)
        kept = await everything_of(scene, other)
        stones = await forgotten(scene, case)
        for _ in range(2):
            assert await everything_of(scene, case) == []
            assert await everything_of(scene, other) == kept
            assert await scene.store.get_run(scene.tenant_id, case.run.stream_id) is None
            assert await scene.store.self_check() == []
            found = await scene.store.tombstones(scene.tenant_id, correlation_id(case))
            assert sorted(stones, key=lambda stone: stone.stream_id) == list(found)
            await scene.reopen()

    async def test_a_tombstone_is_found_by_stream_source_and_key(self, scene: Scene) -> None:
        """§STO-37"""
        case = await ended(scene, source_id="mail-1", key="order-7")
        of_signal, of_run = await forgotten(scene, case)
        assert (of_signal.source_channel, of_signal.source_id) == ("channel", "mail-1")
        assert of_signal.source_hash == "0" * 64
        assert (of_run.signal_id, of_run.run_key) == (case.signal.stream_id, "order-7")
        find = scene.store.find_tombstone
        assert await find(scene.tenant_id, stream_id=of_run.stream_id) == of_run
        assert await find(scene.tenant_id, source=("channel", "mail-1")) == of_signal
        assert await find(scene.tenant_id, run_key="order-7") == of_run
        assert await find(scene.tenant_id, stream_id=scene.new_id()) is None
        assert await find(scene.tenant_id, source=("channel", "mail-2")) is None
        assert await find(scene.tenant_id, run_key="order-8") is None
        assert await find(scene.new_id(), stream_id=of_run.stream_id) is None
        assert list(await scene.store.tombstones(scene.new_id(), correlation_id(case))) == []

    async def test_the_graveyard_has_all_tombstones(self, scene: Scene) -> None:
        other = scene.for_tenant(scene.new_id())
        mine = [stone for _ in range(3) for stone in await forgotten(scene, await ended(scene))]
        theirs = await forgotten(other, await ended(other))
        found = [stone async for stone in scene.store.graveyard(scene.tenant_id)]
        assert found == sorted(mine, key=lambda stone: stone.stream_id)
        everywhere = [stone async for stone in scene.store.graveyard()]
        assert {stone.stream_id for stone in (*mine, *theirs)} <= {stone.stream_id for stone in everywhere}

    async def test_forgetting_twice_is_harmless(self, scene: Scene) -> None:
        case = await ended(scene)
        stones = await forgotten(scene, case)
        assert await scene.store.forget(stones) is False
        assert list(await scene.store.tombstones(scene.tenant_id, correlation_id(case)))

    async def test_of_several_who_forget_at_once_one_does(self, scene: Scene) -> None:
        case = await ended(scene)
        stones = await stones_of(scene, case)
        done = await asyncio.gather(*(scene.store.forget(stones) for _ in range(5)))
        assert sorted(done) == [False] * 4 + [True]

    async def test_what_moved_on_is_not_forgotten(self, scene: Scene) -> None:
        """§STO-39: the archive has to hold all of it."""
        case = await ended(scene)
        stones = await stones_of(scene, case)
        await scene.carry(case, commands.ReportConflict(source_hash="1" * 64))
        before = await everything_of(scene, case)
        with pytest.raises(StaleSequence):
            await scene.store.forget(stones)
        assert await everything_of(scene, case) == before
        assert list(await scene.store.tombstones(scene.tenant_id, correlation_id(case))) == []

    async def test_a_part_of_a_correlation_is_not_forgotten(self, scene: Scene) -> None:
        case = await ended(scene)
        of_signal, of_run = await stones_of(scene, case)
        for part in ([of_signal], [of_run], [of_signal, replace(of_run, head="b" * 64)]):
            with pytest.raises(StaleSequence):
                await scene.store.forget(part)
        with pytest.raises(StaleSequence):
            await scene.store.forget([of_signal, of_run, replace(of_run, stream_id=scene.new_id())])
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    async def test_what_was_never_there_is_not_forgotten(self, scene: Scene) -> None:
        case = await ended(scene)
        nothing = [
            replace(stone, stream_id=scene.new_id(), correlation_id=scene.new_id())
            for stone in (await stones_of(scene, case))[:1]
        ]
        with pytest.raises(StaleSequence):
            await scene.store.forget(nothing)

    async def test_a_live_run_is_not_forgotten(self, scene: Scene) -> None:
        """§STO-35, §STO-39"""
        for case in (await scene.queued(), await scene.running(), await with_effect(scene)):
            with pytest.raises(CommitRefused):
                await scene.store.forget(await stones_of(scene, case))
            await scene.audit(case.signal.stream_id, case.run.stream_id)

    async def test_who_writes_beside_it_wins_or_comes_too_late(self, scene: Scene) -> None:
        case = await ended(scene)
        stones = await stones_of(scene, case)
        late = scene.decide(case, commands.ReportConflict(source_hash="1" * 64)).commit

        async def write() -> None:
            await scene.store.commit(late)

        outcomes = await asyncio.gather(scene.store.forget(stones), write(), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, RunstoneError)]
        assert len(refused) == 1
        if outcomes[0] is True:
            assert await everything_of(scene, case) == []
        else:
            await scene.audit(case.signal.stream_id, case.run.stream_id)

    # Afterwards

    async def test_the_same_signal_is_not_taken_in_again(self, scene: Scene) -> None:
        """§STO-52"""
        await forgotten(scene, await ended(scene, source_id="mail-1"))
        for _ in range(2):
            again = scene.decide(scene.new_case(), scene.receive("mail-1"), scene.create())
            with pytest.raises(DuplicateKey):
                await scene.store.commit(again.commit)
            await scene.reopen()
        await scene.carry(scene.new_case(), scene.receive("mail-2"), scene.create())
        other = scene.for_tenant(scene.new_id())
        await other.carry(other.new_case(), other.receive("mail-1"), other.create())

    async def test_a_runs_key_stays_its_own(self, scene: Scene) -> None:
        """§STO-52"""
        await forgotten(scene, await ended(scene, key="order-7"))
        again = scene.decide(scene.new_case(), scene.receive(), scene.create(key="order-7"))
        with pytest.raises(DuplicateKey):
            await scene.store.commit(again.commit)
        other = scene.for_tenant(scene.new_id())
        await other.queued(key="order-7")

    async def test_nothing_is_written_to_a_stream_that_is_gone(self, scene: Scene) -> None:
        """§STO-53: neither by who read it before, nor as a new one."""
        case = await ended(scene)
        late = scene.decide(case, commands.ReportConflict(source_hash="1" * 64)).commit
        first = (await scene.everything(case.signal.stream_id))[0]
        await forgotten(scene, case)
        with pytest.raises(CommitRefused):
            await scene.store.commit(late)
        with pytest.raises(RunstoneError):
            await scene.store.append(draft(first))
        new = scene.decide(
            Case.new(scene.tenant_id, case.signal.stream_id, scene.new_id()), scene.receive(), scene.create()
        )
        with pytest.raises(DuplicateKey):
            await scene.store.commit(new.commit)
        assert await everything_of(scene, case) == []

    async def test_a_whole_correlation_can_come_back(self, scene: Scene) -> None:
        """§STO-53: and can go again."""
        case = await ended(scene, source_id="mail-1", key="order-7")
        streams = await streams_of(scene, case)
        for _ in range(2):
            await forgotten(scene, case)
            await scene.store.commit(import_commit(streams))
            await scene.audit(case.signal.stream_id, case.run.stream_id)
            assert list(await scene.store.tombstones(scene.tenant_id, correlation_id(case))) == []
            assert await scene.store.find_tombstone(scene.tenant_id, source=("channel", "mail-1")) is None
            assert await scene.store.self_check() == []

    async def test_others_go_on_as_if_nothing_had_happened(self, scene: Scene) -> None:
        """The feed goes on where it was, and numbers are not given twice."""
        old = await ended(scene)
        case = await scene.running()
        place = (await scene.store.feed(limit=100_000))[-1].position
        await forgotten(scene, old)
        case = await scene.carry(case, scene.set_variable())
        assert [item.event.stream_id for item in await scene.store.feed(place)] == [case.run.stream_id]
        await scene.audit(case.signal.stream_id, case.run.stream_id)
