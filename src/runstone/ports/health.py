"""How a store is doing: what `runstone doctor` asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from runstone.core.ids import DEFAULT_TENANT


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong, and what to do about it."""

    check: str
    what: str
    remedy: str


class LostWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker whose lease is over while it still owns runs."""

    worker_id: str
    lease_until: datetime | None
    runs: int


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What is due and nobody has taken."""

    count: int = 0
    since: datetime | None = None
    example: str | None = None
    """The one that has been due longest."""
    tenant_id: str = DEFAULT_TENANT
    """Whose the example is; of the others nothing is said, here and below."""


class DueRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one handler, at one version of its code, that are due and that nobody has taken."""

    handler: str
    version: str
    count: int
    since: datetime
    example: str
    """The one that has been due longest."""
    tenant_id: str = DEFAULT_TENANT


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that are paused for one reason."""

    reason: str
    count: int
    example: str
    tenant_id: str = DEFAULT_TENANT


class Unfired(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules of one task that are due and that nobody has fired."""

    task: str
    count: int
    since: datetime
    example: str
    """The name of the one that has been due longest."""
    tenant_id: str = DEFAULT_TENANT


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """How the work in a store is going, over all tenants."""

    now: datetime
    """What time it is where the store is."""
    latest: datetime | None
    """When the newest event in it was persisted."""
    lost_workers: tuple[LostWorker, ...] = ()
    due_runs: tuple[DueRuns, ...] = ()
    due_effects: Backlog = Backlog()
    dead_letters: Mapping[str, int] = {}
    """How many effects are, by tenant; only tenants that have some."""
    unknown_effects: Mapping[str, int] = {}
    paused: tuple[Stuck, ...] = ()
    unfired: tuple[Unfired, ...] = ()
    tenants: Mapping[str, int] = {}
    """How many runs each tenant has that has any."""


class Health(Protocol):
    """What a store can say of how it is doing."""

    async def vitals(self) -> Vitals:
        """How the work in it is going. Changes nothing."""
        ...

    async def symptoms(self) -> Sequence[Problem]:
        """What is wrong with what this store stands on: its server, its file, its disk."""
        ...
