"""The store port. These docstrings, with the clauses of `specs/store.md`, are the contract of every adapter.

A store has up to three parts. `EventLog` is the least: append to one stream, fetch it, show a
snapshot. `Host` is what an engine can stand on: commits over several streams, claims and
leases. `Queries` is what people and programs ask. `testing/conformance` proves each part. For
maintenance there are `Rebuilds` below, `Retention` and `Health` in modules of their own.

Every call names its tenant and sees nothing of another's, except what belongs to the trusted engine:
the claims of `Host`, its feed and the schedules that are due, and what is asked with no tenant.

Errors are those of `runstone.errors`; a driver's own never pass. A call that raises
`CommitRefused` or `StoreUnusable` wrote nothing. Only after `OutcomeUnknown`, or when the caller
was cancelled, is it open whether something was written: submit the same commit again to learn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Commit
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.effect import Effect
from runstone.core.entity import Entity
from runstone.core.events import Event, EventDraft
from runstone.core.rows import Row
from runstone.core.run import Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.snapshot import RunSnapshot
from runstone.core.state import ScheduleState
from runstone.core.stream import Stream, StreamHead
from runstone.core.tombstone import Tombstone
from runstone.core.transitions import EffectStatus, RunStatus, ScheduleStatus
from runstone.ports.health import Health
from runstone.ports.retention import Retention


class Committed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The commit is durable. `repeated`: it had been before, and this submission wrote nothing."""

    repeated: bool = False


class Place(msgspec.Struct, frozen=True, gc=False):
    """A stream, and how much of it its reader has."""

    tenant_id: str
    stream_id: str
    after_seq: int = 0


class DueSchedule(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A schedule and the head of its stream, both as of one moment: what its next event is decided on."""

    schedule: Schedule
    head: StreamHead

    @property
    def state(self) -> ScheduleState:
        """Where the stream stands, without its history: that of a schedule may be as long as it likes."""
        return ScheduleState(
            stream_id=self.head.stream_id,
            tenant_id=self.head.tenant_id,
            last_seq=self.head.last_seq,
            head=self.head.head,
            last_at=self.head.last_at,
            schedule=self.schedule,
        )


class Claim(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A run that this worker now owns, and the fence its commits have to carry."""

    run_id: str
    tenant_id: str
    handler: str
    fence: int
    attempts: int


class EffectClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An outbox entry that this worker now has: the effect as it is, and the fence its outcome has to carry.

    A large spec or result stands in the effect's row as a reference to its event.
    """

    effect: Effect
    signal_id: str | None
    """The signal of its run, if the run's row is there: who is to record its outcome reads both at once."""
    fence: int
    claims: int
    """How often it was claimed since its last outcome: this time too, not when it was put back (§OUT-71)."""


class EffectGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Effects of one type and status whose last error has the same code."""

    status: EffectStatus
    effect_type: str
    error_code: str | None
    count: int


class FeedPosition(msgspec.Struct, frozen=True, gc=False, order=True):
    """A place in a store's feed; ordered. `epoch` rises when positions before it mean nothing any more."""

    epoch: int = 0
    transaction: int = 0
    sequence: int = 0


class FeedItem(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An event and its place in the feed."""

    position: FeedPosition
    event: Event


class EventLog(Protocol):
    """Append-only streams of events. Every adapter has this part."""

    @property
    def contract_version(self) -> str:
        """The version of the contract that the adapter was proven against (§VER-10)."""
        ...

    async def append(self, draft: EventDraft) -> AppendResult:
        """Adds one event at the end of its stream, wherever that is (§STO-4 to §STO-6).

        Concurrent appends all succeed, in some order, without a gap. A key that the stream has
        already adds nothing and returns the first event's `run_seq`, `idempotent`, and `conflict`
        when type or data differ. An event that the stream's state does not allow raises what
        `decide` would, and adds nothing. On return the event is durable.
        """
        ...

    async def fetch(
        self, tenant_id: str, stream_id: str, *, after_seq: int = 0, limit: int = FETCH_LIMIT
    ) -> Sequence[Event]:
        """Events with `run_seq` above `after_seq`, ascending, at most `limit` (§STO-7)."""
        ...

    async def snapshot(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        """The run as the store's rows show it; none if there is no such run (§STO-8)."""
        ...

    async def project(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        """The same, folded from the log on the spot."""
        ...

    async def close(self) -> None:
        """Finishes what was submitted and lets go of everything. May be called twice."""
        ...


class Host(EventLog, Protocol):
    """What can host the engine."""

    def commit(self, commit: Commit) -> Awaitable[Committed]:
        """Writes to all of the commit's streams, or to none (§STO-12 to §STO-17).

        Each write is compared with its stream's head: `StaleSequence` when the stream is not at
        `expected_seq`, `StaleFence` when its fence is not `fence`. `DuplicateKey` when an event id,
        event key, source id, effect key, run key or run request exists already. A commit that is
        there already, event for event, is `repeated`. Commits submitted together may share a
        transaction; one that fails does not take others with it.

        A write may name outbox entries that its writer holds: `StaleClaim` when the fence of one is
        not that of the hold, after the checks above. A hold with `release` ends with the commit: the
        entry has no owner and no claims then, and is due as its row says (§OUT-13).
        """
        ...

    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> Stream | None:
        """A stream's head and its events above `after_seq`, as of one moment; none if there is none."""
        ...

    async def load_many(self, places: Sequence[Place]) -> Sequence[Stream | None]:
        """The same for many streams, of several tenants too, all as of one moment; in the order asked for."""
        ...

    async def claim(
        self,
        worker_id: str,
        *,
        handlers: Sequence[str],
        code_rank: str,
        limit: int,
        lease: timedelta,
    ) -> Sequence[Claim]:
        """Takes runs that are due and free: `wake_at` is past, no live worker owns them (§STO-20, §STO-21).

        Only runs of these handlers, of code up to this rank. The earliest `wake_at` goes first.
        One statement: two claims never get the same run. Each claim raises the stream's fence,
        counts an attempt, and extends the worker's own lease.
        """
        ...

    async def heartbeat(self, worker_id: str, *, lease: timedelta) -> dict[str, int]:
        """Extends the worker's lease; gives the `news_seq` of each run it still owns (§STO-22, §STO-23)."""
        ...

    async def release(self, worker_id: str, run_ids: Sequence[str] | None = None) -> int:
        """Gives runs back, all of the worker's if none are named; how many.

        Their attempts are reset and their fences raised: a write of the worker's that is still on its way
        comes too late.
        """
        ...

    async def claim_effects(
        self,
        worker_id: str,
        *,
        types: Sequence[str],
        limit: int,
        lease: timedelta,
        per_tenant: int | None = None,
        holding: Mapping[str, int] | None = None,
    ) -> Sequence[EffectClaim]:
        """Takes outbox entries that are due and free, of these types (§OUT-4 to §OUT-6).

        Pending ones; failed ones whose `next_retry_at` is past; ones under way whose lease is over:
        in every case only when no lease, and no rest that `release_effects` gave them, is running. All at
        once: two claims never get the same entry. It sets owner, lease and a new, higher fence,
        counts the claim, and writes no event. Tenants get equal shares, none more than `per_tenant` with
        what it holds already; within a tenant the one that has been due longest goes first.
        """
        ...

    async def extend_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, lease: timedelta
    ) -> Sequence[EffectClaim]:
        """Extends the leases of those that are the worker's own still, and gives them as they are now.

        An entry is its worker's own until another claims it or it is released, also after its lease
        is over. One whose effect has ended meanwhile is given too: the caller looks at its status.
        """
        ...

    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        """Puts entries of the worker's back, to be claimed at once or not before `until`; how many.

        Their fences are raised: an outcome that is still on its way comes too late. No retry is counted, and
        the claim is not either.
        """
        ...

    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        """Puts back, to be claimed at once, what is in the worker's name and not among these; how many.

        Answers to its claims may have been lost (§OUT-76). Only entries whose lease goes beyond `since` are
        looked at: when it last asked, or began. It asks while no claim of its own is under way, and none is
        counted, as after `release_effects`. So the name is that of one life of one process, never used again.
        """
        ...

    async def get_schedule(self, tenant_id: str, stream_id: str) -> Schedule | None:
        """The schedule of this stream."""
        ...

    async def find_schedule(self, tenant_id: str, name: str) -> Schedule | None:
        """The schedule that has this name now; `ports.schedules.find_stream` says where the next one goes."""
        ...

    async def due_schedules(
        self,
        *,
        tasks: Sequence[str],
        until: datetime,
        after: tuple[datetime, str] | None = None,
        limit: int = 100,
    ) -> Sequence[DueSchedule]:
        """Active schedules of all tenants and of these tasks whose `next_at` is not after `until`.

        By `next_at` and id; `after` is where the page before ended. Nothing is claimed: whoever commits first
        on the head that is given here has fired it, and all others are refused.
        """
        ...

    async def find_tombstone(
        self,
        tenant_id: str,
        *,
        stream_id: str | None = None,
        source: tuple[str, str] | None = None,
        run_key: str | None = None,
    ) -> Tombstone | None:
        """The tombstone of a stream, of the signal with this channel and source id, or of a run's key."""
        ...

    async def feed(
        self, after: FeedPosition | None = None, *, limit: int = FETCH_LIMIT
    ) -> Sequence[FeedItem]:
        """All tenants' events in commit order above a position (§ORD-26). It may lag; it never skips."""
        ...

    async def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keeps a checkpoint; an older one with the same index is replaced."""
        ...

    async def checkpoints(self, tenant_id: str, run_id: str) -> Sequence[Checkpoint]:
        """A run's checkpoints that have not expired, the newest first."""
        ...

    async def delete_checkpoints(self, *, run_id: str | None = None) -> int:
        """Deletes a run's checkpoints, or all that have expired; how many."""
        ...


class Queries(Protocol):
    """What people and programs ask."""

    async def get_run(self, tenant_id: str, run_id: str) -> Run | None: ...

    async def get_signal(self, tenant_id: str, signal_id: str) -> Signal | None: ...

    async def find_run(self, tenant_id: str, key: str) -> Run | None:
        """The run that a user named so."""
        ...

    async def find_signal(self, tenant_id: str, source_channel: str, source_id: str) -> Signal | None:
        """The signal that came through this door under this id."""
        ...

    async def list_runs(
        self,
        tenant_id: str,
        *,
        status: RunStatus | None = None,
        handler: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Run]:
        """Runs, the newest first; `after` is the last id of the page before."""
        ...

    async def get_effect(self, tenant_id: str, effect_id: str) -> Effect | None: ...

    async def find_effect(self, tenant_id: str, key: str) -> Effect | None:
        """The ledger: the effect that has this idempotency key (§OUT-8)."""
        ...

    async def list_effects(
        self,
        tenant_id: str,
        *,
        status: EffectStatus | None = None,
        effect_type: str | None = None,
        error_code: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Effect]:
        """Effects, the newest first; `after` is the last id of the page before.

        `error_code` is that of the effect's last error.
        """
        ...

    async def effect_groups(
        self, tenant_id: str, *, status: EffectStatus | None = None
    ) -> Sequence[EffectGroup]:
        """How many effects there are by status, type and error code, ordered by these."""
        ...

    async def get_entity(self, tenant_id: str, stream_id: str) -> Entity | None:
        """The entity of this stream; `core.keys.entity_stream` says which one that is."""
        ...

    async def list_entities(
        self,
        tenant_id: str,
        *,
        entity_type: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Entity]:
        """Entities by type and id, in the order of their bytes; `after` is the last of the page before."""
        ...

    async def list_schedules(
        self,
        tenant_id: str,
        *,
        status: ScheduleStatus | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Schedule]:
        """Schedules by name, in the order of its bytes; `after` is the last name of the page before."""
        ...

    async def rows(self, tenant_id: str, stream_id: str) -> Sequence[Row]:
        """Every derived row of a stream, in the order of `core.rows.all_rows`."""
        ...

    async def examine(self, tenant_id: str, stream_id: str) -> tuple[Stream, Sequence[Row]] | None:
        """A whole stream and its derived rows, both as of one moment; none if it has no head."""
        ...

    async def correlation(self, tenant_id: str, correlation_id: str) -> Sequence[Stream]:
        """All streams of one correlation, whole, in the order in which they were opened."""
        ...

    async def heads(self, tenant_id: str, correlation_id: str) -> Sequence[StreamHead]:
        """The heads of the same streams in the same order, without their events."""
        ...

    def correlations(self, tenant_id: str | None = None) -> AsyncIterator[tuple[str, str]]:
        """(tenant, correlation) of everything in the store, each once."""
        ...

    async def count_events(self, tenant_id: str | None = None) -> int:
        """How many events there are: for progress bars."""
        ...

    async def count_runs(self, tenant_id: str | None = None) -> dict[str, int]:
        """How many runs there are of each status that some run has."""
        ...

    async def self_check(self) -> Sequence[str]:
        """What the store finds wrong with itself below the log.

        Damaged pages, streams without a head, rows without a stream, guards that are gone.
        """
        ...


class Rebuilds(Protocol):
    """Repairs of derived rows; only for maintenance."""

    async def replace_rows(self, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]) -> None:
        """Puts these in the place of a stream's derived rows, if it still is at `last_seq`.

        A queued run and an outbox entry keep their lease columns.
        """
        ...

    async def delete_strays(self) -> int:
        """Deletes derived rows of which no stream knows, head or events; how many."""
        ...


class Store(Host, Queries, Rebuilds, Retention, Health, Protocol):
    """A store with every part."""
