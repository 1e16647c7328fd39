"""Data that is written wrongly: each class breaks one rule of how a commit changes it."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw

from runstone.core import codec
from runstone.core.commit import Commit, Hold, StreamWrite
from runstone.core.events import Event
from runstone.core.step import Step
from runstone.core.tombstone import Tombstone
from runstone.errors import StaleFence, StaleSequence
from runstone.testing.memory import MemoryData
from runstone.testing.memory_data import MemoryStream
from runstone.testing.memory_data import name as row_name


class FenceNotChecked(MemoryData):
    def _check_head(self, write: StreamWrite) -> None:
        with suppress(StaleFence):
            super()._check_head(write)


class SequenceNotCompared(MemoryData):
    def _check_head(self, write: StreamWrite) -> None:
        with suppress(StaleSequence):
            super()._check_head(write)


class StreamsWrittenOneByOne(MemoryData):
    def write(self, commit: Commit, now: datetime) -> None:
        for write in commit.writes:
            super().write(Commit((write,), write.events), now)


class TenantsJoined(MemoryData):
    def write(self, commit: Commit, now: datetime) -> None:
        tenants = {write.tenant_id for write in commit.writes}
        for tenant_id in tenants:
            writes = tuple(write for write in commit.writes if write.tenant_id == tenant_id)
            events = tuple(event for event in commit.events if event.tenant_id == tenant_id)
            super().write(Commit(writes, events), now)


class DuplicateKeysIgnored(MemoryData):
    def _check_keys(self, rows: Any) -> dict[tuple[str, ...], str]:
        return {}


class EventIdsNotChecked(MemoryData):
    def _check_events(self, events: Any) -> None:
        self.event_ids.clear()
        super()._check_events(events)


class KeysOfAllTenantsTogether(MemoryData):
    def _check_keys(self, rows: Any) -> dict[tuple[str, ...], str]:
        return super()._check_keys(msgspec.structs.replace(row, tenant_id="anybody") for row in rows)


class FrozenRowsThaw(MemoryData):
    def _check_rows(self, write: StreamWrite) -> None:
        pass


class LandedCommitsForgotten(MemoryData):
    def has(self, event: Event) -> bool:
        return False


class LandedKnownById(MemoryData):
    """A commit counts as landed when its event ids are there, whatever its events say."""

    def has(self, event: Event) -> bool:
        return event.id in self.event_ids


class AnswersDoNotWake(MemoryData):
    """Whoever commits without a lease changes nothing in the queue: a wake-up that is lost."""

    def _apply(self, write: StreamWrite) -> None:
        own = write.lease is not None or write.expected_seq == 0
        super()._apply(write if own else msgspec.structs.replace(write, queue_changed=False))


class LeaseLostBesideOthers(MemoryData):
    def _apply(self, write: StreamWrite) -> None:
        super()._apply(write)
        if write.queue_changed and write.lease is None:
            self.streams[write.stream_id].owner = None


class JsonRewritten(MemoryData):
    def _store(self, stream: MemoryStream, event: Event, now: datetime) -> None:
        tidy = Raw(codec.encode(msgspec.json.decode(event.event_data)))
        super()._store(stream, msgspec.structs.replace(event, event_data=tidy), now)


class StepsNeverUpdated(MemoryData):
    def _apply(self, write: StreamWrite) -> None:
        known = self.streams[write.stream_id].rows if write.stream_id in self.streams else {}
        rows = tuple(row for row in write.rows if not (isinstance(row, Step) and row_name(row) in known))
        super()._apply(msgspec.structs.replace(write, rows=rows))


class TombstonesForgotten(MemoryData):
    """What was archived is gone, and whatever comes again is new."""

    def forget(self, stones: Iterable[Tombstone]) -> None:
        super().forget(stones)
        self.tombstones.clear()


class SourcesForgotten(MemoryData):
    def forget(self, stones: Iterable[Tombstone]) -> None:
        super().forget(msgspec.structs.replace(stone, source_id=None, run_key=None) for stone in stones)


class TombstonesStay(MemoryData):
    def _apply(self, write: StreamWrite) -> None:
        stones = dict(self.tombstones)
        super()._apply(write)
        self.tombstones |= stones


class AnyStreamComesBack(MemoryData):
    def _check_tombstone(self, write: StreamWrite) -> None:
        pass


class FeedStartsAnew(MemoryData):
    """Numbers of events that are gone are given again."""

    def forget(self, stones: Iterable[Tombstone]) -> None:
        super().forget(stones)
        self.events = len(self.log)


class HoldsNotCompared(MemoryData):
    def _check_holds(self, write: StreamWrite) -> None:
        pass


class HoldsNeverEnd(MemoryData):
    def _end_hold(self, stream: MemoryStream, hold: Hold) -> None:
        pass


class OutcomesKeepTheClaims(MemoryData):
    def _end_hold(self, stream: MemoryStream, hold: Hold) -> None:
        claims = stream.effect_leases[hold.effect_id].claims
        super()._end_hold(stream, hold)
        stream.effect_leases[hold.effect_id].claims = claims
