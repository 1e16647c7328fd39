"""The suite of entities: streams that outlive runs, and the rows of the system of record."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from runstone.core import codec, commands
from runstone.core.bundle import import_commit, pack, unpack
from runstone.core.commit import Commit, StreamWriter, stream_write
from runstone.core.decide import Case
from runstone.core.decide.entities import update
from runstone.core.effect_specs import SorUpdate
from runstone.core.entity import Entity
from runstone.core.events import Event
from runstone.core.fold import EntityFold, entity_fold
from runstone.core.keys import entity_stream
from runstone.core.rows import Row, all_rows
from runstone.core.state import EntityState
from runstone.core.tombstone import Resting, bury
from runstone.errors import CommitRefused, DuplicateKey, RunstoneError, StaleSequence
from runstone.ports.store import Committed
from runstone.testing.conformance.scene import Scene, Suite, draft

replace = msgspec.structs.replace

CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {"status": "OPEN", "owner": {"name": "Ann", "seen": 1e2}},
    {"status": None, "owner": {"name": None}},
    {"note": "x" * 3000},
    {"note": None, "größe": [1, None, {"a": -0.0}]},
)


def empty(scene: Scene, entity_id: str = "42", entity_type: str = "CASE") -> EntityState:
    """An entity that is not there yet."""
    stream_id = entity_stream(scene.tenant_id, entity_type, entity_id)
    return EntityState(stream_id=stream_id, tenant_id=scene.tenant_id)


def changed(
    scene: Scene,
    state: EntityState,
    change: dict[str, Any],
    *,
    entity_id: str = "42",
    entity_type: str = "CASE",
    effect_id: str | None = None,
) -> tuple[Commit, EntityState]:
    """What a change of an entity writes, and the entity after it."""
    writer = StreamWriter[EntityFold](entity_fold(state), scene.context(), state.stream_id)
    asked = SorUpdate(
        entity_type=entity_type, entity_id=entity_id, change=change, evidence_pack={"why": "suite"}
    )
    recorded = update(
        writer,
        asked,
        key="key",
        run_id=scene.new_id(),
        effect_id=effect_id or scene.new_id(),
        cause=scene.new_id(),
    )
    assert isinstance(recorded, Event)
    write = stream_write(writer.fold, writer.events)
    return Commit((write,), write.events), writer.fold.freeze()


async def put(scene: Scene, *changes: dict[str, Any], **named: str) -> EntityState:
    """An entity that has had these changes, one commit each."""
    state = empty(scene, **named)
    for change in changes or CHANGES:
        commit, state = changed(scene, state, change, **named)
        assert await scene.store.commit(commit) == Committed()
    return state


def canonical(rows: Sequence[Row]) -> list[bytes]:
    return [codec.encode([type(row).__name__, row]) for row in rows]


class EntitySuite(Suite):
    """Entities: their streams, their rows, and that they stay."""

    async def test_the_row_is_the_fold_after_every_change(self, scene: Scene) -> None:
        """§ENT-26: a large payload stands in its event."""
        state = empty(scene)
        for number, change in enumerate(CHANGES, 1):
            commit, state = changed(scene, state, change)
            await scene.store.commit(commit)
            stored = await scene.store.rows(scene.tenant_id, state.stream_id)
            assert canonical(stored) == canonical(all_rows(state))
            row = await scene.store.get_entity(scene.tenant_id, state.stream_id)
            assert row == state.entity
            assert row is not None
            assert row.version == number
            scene.clock.advance(1)
        await scene.reopen()
        stored = await scene.store.rows(scene.tenant_id, state.stream_id)
        assert canonical(stored) == canonical(all_rows(state))
        assert await scene.findings(state.stream_id) == []
        assert list(await scene.store.self_check()) == []

    async def test_changes_can_be_appended(self, scene: Scene) -> None:
        state = empty(scene)
        for change in CHANGES[:2]:
            commit, state = changed(scene, state, change)
            appended = await scene.store.append(draft(commit.events[0]))
            assert appended.persisted
        stored = await scene.store.rows(scene.tenant_id, state.stream_id)
        assert canonical(stored) == canonical(all_rows(state))
        with pytest.raises(RunstoneError):  # its version is not the next
            await scene.store.append(draft(changed(scene, empty(scene), {"a": 1})[0].events[0]))

    async def test_of_several_who_write_the_same_version_one_does(self, scene: Scene) -> None:
        """§ORD-11: the first version too, though its stream is not there yet."""
        for state in (empty(scene), await put(scene, {"a": 1}, entity_id="7")):
            name = "42" if state.last_seq == 0 else "7"
            commits = [changed(scene, state, {"n": n}, entity_id=name)[0] for n in range(8)]
            async with scene.fleet(2) as scenes:
                writing = [scenes[place % 2].store.commit(commit) for place, commit in enumerate(commits)]
                outcomes = await asyncio.gather(*writing, return_exceptions=True)
            assert outcomes.count(Committed()) == 1
            refused = [outcome for outcome in outcomes if outcome != Committed()]
            assert all(isinstance(outcome, StaleSequence) for outcome in refused), refused
            row = await scene.store.get_entity(scene.tenant_id, state.stream_id)
            assert row is not None
            assert row.version == state.last_seq + 1
            assert await scene.findings(state.stream_id) == []

    async def test_an_effect_changes_an_entity_once(self, scene: Scene) -> None:
        """§OUT-56: whoever would do it again meets its key."""
        effect_id = scene.new_id()
        state = empty(scene)
        for _ in range(2):
            commit, after = changed(scene, state, {"n": 1}, effect_id=effect_id)
            if state.last_seq == 0:
                await scene.store.commit(commit)
                state = after
        with pytest.raises(DuplicateKey):
            await scene.store.commit(commit)
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) == state.entity

    async def test_an_entity_is_written_with_a_run_or_not_at_all(self, scene: Scene) -> None:
        """§STO-13."""
        case = await scene.running()
        theirs, state = changed(scene, empty(scene), {"a": 1})
        late = scene.decide(case, scene.set_variable()).commit
        case = await scene.carry(case, scene.set_variable(2))
        with pytest.raises(StaleSequence):
            await scene.store.commit(Commit.of(theirs, late))
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) is None
        await scene.store.commit(Commit.of(theirs, scene.decide(case, scene.set_variable(3)).commit))
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) == state.entity
        await scene.audit(case.run.stream_id)

    async def test_commits_of_runs_that_share_entities_never_wait_in_a_circle(self, scene: Scene) -> None:
        """§STO-14: whichever entity each names first, one of those who meet at it goes through."""
        cases = [await scene.running() for _ in range(6)]
        states = {name: empty(scene, name) for name in "abc"}
        for _ in range(3):
            commits, after = [], []
            for place, case in enumerate(cases):
                names = "abcab"[place % 3 : place % 3 + 2][:: 1 if place < 3 else -1]
                parts = {name: changed(scene, states[name], {"n": place}, entity_id=name) for name in names}
                decision = scene.decide(case, scene.set_variable(place))
                commits.append(Commit.of(*(commit for commit, _ in parts.values()), decision.commit))
                after.append((decision.case, {name: state for name, (_, state) in parts.items()}))
            async with scene.fleet(2) as scenes:
                writing = [scenes[place % 2].store.commit(commit) for place, commit in enumerate(commits)]
                outcomes = await asyncio.gather(*writing, return_exceptions=True)
            refused = [outcome for outcome in outcomes if outcome != Committed()]
            assert len(refused) == 5
            assert all(isinstance(outcome, StaleSequence) for outcome in refused), refused
            winner = outcomes.index(Committed())
            cases[winner] = after[winner][0]
            states |= after[winner][1]
        assert sum(state.last_seq for state in states.values()) == 6
        for case in cases:
            await scene.audit(case.run.stream_id)

    async def test_the_version_only_rises(self, scene: Scene) -> None:
        """§TRN-36."""
        state = await put(scene, {"a": 1}, {"a": 2})
        commit, _ = changed(scene, state, {"a": 3})
        assert state.entity is not None
        for version in (1, 2):
            forged = replace(commit.writes[0], rows=(replace(state.entity, version=version),))
            with pytest.raises(RunstoneError):
                await scene.store.commit(replace(commit, writes=(forged,)))
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) == state.entity
        assert await scene.store.commit(commit) == Committed()

    async def test_a_name_is_one_entity_of_its_tenant(self, scene: Scene) -> None:
        """§ENT-27, §TEN-9."""
        state = await put(scene, {"a": 1})
        other = scene.for_tenant(scene.new_id())
        theirs = await put(other, {"a": 2})
        assert theirs.stream_id != state.stream_id
        assert await other.store.get_entity(other.tenant_id, state.stream_id) is None
        assert await other.store.get_entity(other.tenant_id, theirs.stream_id) == theirs.entity
        commit, twin = changed(scene, empty(scene, "43"), {"a": 3}, entity_id="43")
        assert twin.entity is not None
        forged = replace(commit.writes[0], rows=(replace(twin.entity, entity_id="42"),))
        with pytest.raises(DuplicateKey):
            await scene.store.commit(replace(commit, writes=(forged,)))

    async def test_entities_are_listed_by_name_in_pages(self, scene: Scene) -> None:
        await put(scene.for_tenant(scene.new_id()), {"a": 1}, entity_type="CASE", entity_id="0")
        names = [("CASE", "1"), ("CASE", "10"), ("CASE", "2"), ("Case", "B"), ("Case", "a"), ("case", "é")]
        for entity_type, entity_id in reversed(names):
            await put(scene, {"a": 1}, entity_type=entity_type, entity_id=entity_id)
        found: list[Entity] = []
        after = None
        while page := await scene.store.list_entities(scene.tenant_id, after=after, limit=4):
            assert len(page) <= 4
            found += page
            after = (page[-1].entity_type, page[-1].entity_id)
        assert [(entity.entity_type, entity.entity_id) for entity in found] == names
        cases = await scene.store.list_entities(scene.tenant_id, entity_type="CASE", after=("CASE", "1"))
        assert [entity.entity_id for entity in cases] == ["10", "2"]
        assert list(await scene.store.list_entities(scene.new_id())) == []

    async def test_a_row_can_be_made_again(self, scene: Scene) -> None:
        """§STO-40."""
        state = await put(scene)
        assert state.entity is not None
        spoilt = replace(state.entity, version=1, data=msgspec.Raw(b"{}"))
        rows = (scene.tenant_id, state.stream_id, state.last_seq)
        await scene.store.replace_rows(*rows, [spoilt])
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) == spoilt
        await scene.store.replace_rows(*rows, [])
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) is None
        await scene.store.replace_rows(*rows, all_rows(state))
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) == state.entity
        assert await scene.store.delete_strays() == 0
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) == state.entity

    async def test_an_entity_is_a_correlation_of_its_own(self, scene: Scene) -> None:
        """§ORD-37: it can be carried to another store, and comes to this one once."""
        state = await put(scene)
        (stream,) = await scene.store.correlation(scene.tenant_id, state.stream_id)
        assert stream.fold() == state
        assert (scene.tenant_id, state.stream_id) in [
            found async for found in scene.store.correlations(scene.tenant_id)
        ]
        assert (await scene.store.commit(import_commit(unpack(pack([stream]))))).repeated

    async def test_an_entity_outlives_everything(self, scene: Scene) -> None:
        """§STO-56: no rest is long enough, and what is asked for all the same is refused."""
        state = await put(scene)
        case: Case = await scene.running()
        case = await scene.carry(case, commands.CancelRun(exit_reason="TEST"))
        assert case.run.run is not None
        scene.clock.advance(timedelta(days=3650))
        now = scene.clock.now()
        found = await scene.store.expired(Resting(ended_before=now, received_before=now))
        assert [one.correlation_id for one in found] == [case.run.run.correlation_id]
        streams = await scene.store.correlation(scene.tenant_id, state.stream_id)
        stones = bury(streams, archive="a", bundle="b", bundle_sha256="0" * 64, now=now)
        with pytest.raises(CommitRefused, match="outlives"):
            await scene.store.forget(stones)
        assert await scene.store.get_entity(scene.tenant_id, state.stream_id) == state.entity
        assert await scene.findings(state.stream_id) == []
