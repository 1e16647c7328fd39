"""Carries a correlation from one store to another as a bundle that proves itself (§STO-43 to §STO-46).

What a store has archived comes back the same way, and lifts its tombstones as it does (§STO-53).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from runstone.core.bundle import import_commit, pack, read_manifest, unfinished_runs, unpack
from runstone.core.chain import event_bytes
from runstone.core.contract import CONTRACT_VERSION
from runstone.core.state import RunState, ScheduleState
from runstone.core.stream import Stream
from runstone.errors import (
    BundleInvalid,
    CommandRefused,
    CommitRefused,
    DuplicateKey,
    NotFound,
    StaleFence,
    StaleSequence,
)
from runstone.ports.store import Store


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that was read and proven."""

    tenant_id: str
    correlation_id: str
    streams: tuple[Stream, ...]

    @property
    def events(self) -> int:
        return sum(len(stream.events) for stream in self.streams)

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(stream.head.stream_id for stream in self.streams if stream.head.kind == "RUN")


async def export_bundle(store: Store, tenant_id: str, correlation_id: str) -> bytes:
    """The bundle of a whole correlation; refused unless it can be read back."""
    streams = await store.correlation(tenant_id, correlation_id)
    if not streams:
        for stone in await store.tombstones(tenant_id, correlation_id):
            raise stone.error
        raise NotFound(f"There is no correlation {correlation_id}")
    content = pack(streams)
    try:
        read_bundle(content)
    except BundleInvalid as error:
        raise BundleInvalid(
            f"The log is damaged, see `runstone verify`; nothing was exported: {error}"
        ) from error
    return content


def read_bundle(content: bytes) -> Bundle:
    """The streams of a bundle, if every byte of it is as it was written; needs no store."""
    try:
        streams = unpack(content)
    except UnicodeDecodeError as error:
        raise BundleInvalid(f"This is no Runstone bundle: its first line is not UTF-8 ({error})") from error
    manifest = read_manifest(content.partition(b"\n")[0])
    if not _is_known(manifest.contract_version):
        raise BundleInvalid(
            f"The bundle was written under contract {manifest.contract_version}, this Runstone knows "
            f"{CONTRACT_VERSION}: use the version that wrote it, or a newer one"
        )
    if {event.correlation_id for stream in streams for event in stream.events} != {manifest.correlation_id}:
        raise BundleInvalid(f"The bundle is not of correlation {manifest.correlation_id} alone")
    return Bundle(tenant_id=manifest.tenant_id, correlation_id=manifest.correlation_id, streams=streams)


def _is_known(version: str) -> bool:
    """A contract of the same major that is not newer than ours (§VER-7)."""
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
        return False
    theirs, ours = (tuple(map(int, each.split("."))) for each in (version, CONTRACT_VERSION))
    return theirs[0] == ours[0] and theirs <= ours


async def import_bundle(store: Store, content: Bundle, *, unfinished: bool = False) -> bool:
    """Writes all of a bundle or nothing; whether there was anything to write."""
    if await _is_there(store, content):
        return False
    if not unfinished:
        _refuse_unfinished(content.streams)
    try:
        committed = await store.commit(import_commit(content.streams))
    except (StaleSequence, StaleFence) as error:
        raise _conflict(error.stream_id, "somebody wrote to it just now") from error
    except DuplicateKey as error:
        await _refuse_other_than_archived(store, content)
        raise CommitRefused(
            f"Nothing was imported, for something else in this store has what has to be unique: {error.what}"
        ) from error
    return not committed.repeated


async def _is_there(store: Store, content: Bundle) -> bool:
    """Whether all of it is in the store already; a part of it, or other content, is a conflict."""
    there = {
        stream.head.stream_id: await store.load(content.tenant_id, stream.head.stream_id)
        for stream in content.streams
    }
    for stream in content.streams:
        found = there[stream.head.stream_id]
        if found is not None:
            _compare(stream, found)
    missing = [stream_id for stream_id, found in there.items() if found is None]
    if missing and len(missing) < len(there):
        raise _conflict(missing[0], "the store lacks it, and has other streams of the bundle")
    return not missing


async def _refuse_other_than_archived(store: Store, content: Bundle) -> None:
    """What was archived comes back as it was, and in no other form (§STO-53)."""
    for stream in content.streams:
        stone = await store.find_tombstone(content.tenant_id, stream_id=stream.head.stream_id)
        if stone is not None and (stone.last_seq, stone.head) != (stream.head.last_seq, stream.head.head):
            raise _conflict(stone.stream_id, f"it was archived; what was archived is in {stone.where}")


def _compare(stream: Stream, found: Stream) -> None:
    for ours, theirs in zip(found.events, stream.events, strict=False):
        if event_bytes(ours) != event_bytes(theirs):
            raise _conflict(stream.head.stream_id, f"run_seq {theirs.run_seq} has other content in the store")
    here, there = len(found.events), len(stream.events)
    if here != there:
        raise _conflict(stream.head.stream_id, f"the store has {here} events of it, the bundle {there}")


def _conflict(stream_id: str, reason: str) -> CommitRefused:
    return CommitRefused(f"Nothing was imported, for stream {stream_id} is not the same here: {reason}")


def _refuse_unfinished(streams: Sequence[Stream]) -> None:
    """What is not over would go on here as well as where it came from."""
    runs = unfinished_runs(streams) or _runs_with_open_effects(streams)
    if runs:
        raise CommandRefused(
            f"Run {runs[0]} has not ended, or an effect of it has not: it would go on here as well as "
            "where it came from. If it is gone there, import it with --unfinished"
        )
    for state in (stream.fold() for stream in streams if stream.head.kind == "SCHEDULE"):
        if isinstance(state, ScheduleState) and state.schedule and state.schedule.status == "ACTIVE":
            raise CommandRefused(
                f"The schedule {state.schedule.name!r} is active: it would fire here as well as where it came"
                " from. If it is gone there, import it with --unfinished"
            )


def _runs_with_open_effects(streams: Sequence[Stream]) -> list[str]:
    states = (stream.fold() for stream in streams)
    return [state.stream_id for state in states if isinstance(state, RunState) and state.open_effects]
