"""Proves what a store holds: streams, their rows, the causes over a correlation, the store itself (§STO-41).

The proofs are `core.verify`; here they meet a store, which others may be writing to, and which may
be so damaged that it cannot be read. What cannot be read is a finding like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, get_args

import msgspec

from runstone.audit.archive import Archive
from runstone.audit.schedules import verify_firings, verify_scheduled
from runstone.core import codec
from runstone.core.effect import Effect
from runstone.core.events import LASTING, Event, StreamKind
from runstone.core.state import RunState
from runstone.core.stream import Stream
from runstone.core.tombstone import Tombstone
from runstone.core.verify import Finding, verify_causes, verify_stream
from runstone.errors import (
    NotFound,
    RunArchived,
    RunstoneError,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreReadOnly,
)
from runstone.ports.store import Store

_NO_DAMAGE: Final = (NotFound, StoreBusy, StoreClosed, StoreFull, StoreReadOnly)
"""Errors that say nothing about what is stored: they pass."""

_KINDS: Final = get_args(StreamKind)

_UNREADABLE_SHOWN: Final = 20
"""After so many unreadable events of one stream, the rest is not looked for."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, of one correlation or of the store itself, and what is not as it has to be."""

    tenant_id: str = ""
    correlation_id: str = ""
    streams: int = 0
    events: int = 0
    archived: int = 0
    """Streams that a tombstone stands for."""
    findings: tuple[Finding, ...] = ()


async def verify_run(store: Store, tenant_id: str, run_id: str, archive: Archive | None = None) -> Verified:
    """Proves a run, and everything of its correlation with it; of one that was archived, its bundle."""
    try:
        correlation_id = await correlation_of(store, tenant_id, run_id)
    except RunArchived:
        return await _verify_archived(store, tenant_id, run_id, archive)
    except RunstoneError as error:
        findings = await _unreadable(store, tenant_id, run_id, _damage(error))
        return Verified(tenant_id=tenant_id, streams=1, findings=tuple(findings))
    return await _verify_correlation(store, tenant_id, correlation_id, run_id)


async def verify_all(
    store: Store, tenant_id: str | None = None, archive: Archive | None = None
) -> AsyncIterator[Verified]:
    """Proves every correlation, of one tenant or of all, and at last the store itself.

    Tombstones stand for what was archived. With its archive, they are held against their bundles.
    """
    try:
        async for owner_id, correlation_id in store.correlations(tenant_id):
            yield await _verify_correlation(store, owner_id, correlation_id)
    except RunstoneError as error:
        yield Verified(findings=(_of_store("a list of all correlations", _damage(error)),))
    try:
        async for stone in store.graveyard(tenant_id):
            yield await _verify_tombstone(stone, archive)
    except RunstoneError as error:
        yield Verified(findings=(_of_store("a list of all tombstones", _damage(error)),))
    yield await _verify_store(store)


async def correlation_of(store: Store, tenant_id: str, run_id: str) -> str:
    """The correlation of a run, as its log says; as its row says where there is no log."""
    events = await store.fetch(tenant_id, run_id, limit=1)
    if events:
        return events[0].correlation_id
    run = await store.get_run(tenant_id, run_id)
    if run is not None:
        return run.correlation_id
    stone = await store.find_tombstone(tenant_id, stream_id=run_id)
    raise NotFound(f"There is no run {run_id}") if stone is None else stone.error


async def _verify_archived(store: Store, tenant_id: str, stream_id: str, archive: Archive | None) -> Verified:
    stone = await store.find_tombstone(tenant_id, stream_id=stream_id)
    correlation_id = stone.correlation_id if stone else ""
    stones = await store.tombstones(tenant_id, correlation_id) if stone else ()
    parts = [await _verify_tombstone(one, archive) for one in stones]
    return Verified(
        tenant_id=tenant_id,
        correlation_id=correlation_id,
        archived=len(parts),
        findings=tuple(finding for part in parts for finding in part.findings),
    )


async def _verify_tombstone(stone: Tombstone, archive: Archive | None) -> Verified:
    stream_id, findings = stone.stream_id, []
    if stone.sealed != stone:
        expected, found = stone.sealed.digest, stone.digest
        findings.append(_finding(stream_id, "tombstone", "its digest", expected, found))
    problem = None if archive is None else await asyncio.to_thread(archive.prove, stone)
    if problem is not None:
        expected = f"a bundle that ends at run_seq {stone.last_seq} with {stone.head}"
        findings.append(_finding(stream_id, "archive", "the bundle", expected, problem))
    return Verified(tenant_id=stone.tenant_id, archived=1, findings=tuple(findings))


async def _verify_correlation(
    store: Store, tenant_id: str, correlation_id: str, run_id: str | None = None
) -> Verified:
    """Proves the streams of a correlation, the named run among them whether or not it is known there."""
    try:
        heads = await store.heads(tenant_id, correlation_id)
    except RunstoneError as error:
        place = f"correlation {correlation_id}"
        unread = _finding("", "unreadable", place, "the heads of its streams", _damage(error))
        return Verified(tenant_id=tenant_id, correlation_id=correlation_id, findings=(unread,))
    stream_ids = dict.fromkeys([*(head.stream_id for head in heads), *([run_id] if run_id else [])])
    proven = [await _verify_stream(store, tenant_id, stream_id) for stream_id in stream_ids]
    findings = [finding for _, found in proven for finding in found]
    streams = [stream for stream, _ in proven if stream is not None]
    if len(streams) == len(proven):
        findings += await _verify_causes(store, tenant_id, correlation_id, streams)
        for stream in streams:
            if stream.head.kind in LASTING:
                findings += await _verify_askers(store, stream)
            findings += await _verify_schedules(store, stream)
    return Verified(
        tenant_id=tenant_id,
        correlation_id=correlation_id,
        streams=len(proven),
        events=sum(len(stream.events) for stream in streams),
        findings=tuple(findings),
    )


async def _verify_stream(store: Store, tenant_id: str, stream_id: str) -> tuple[Stream | None, list[Finding]]:
    try:
        examined = await store.examine(tenant_id, stream_id)
    except RunstoneError as error:
        return None, await _unreadable(store, tenant_id, stream_id, _damage(error))
    if examined is None:
        if await store.find_tombstone(tenant_id, stream_id=stream_id) is not None:
            return None, []  # it was archived a moment ago
        return None, [_finding(stream_id, "head", "the head", "one", "none")]
    stream, rows = examined
    if stream.head.kind not in _KINDS:
        return None, [_finding(stream_id, "head", "its kind", " or ".join(_KINDS), stream.head.kind)]
    try:
        return stream, verify_stream(stream, rows)
    except Exception as error:  # values that no store could have written may break any check
        return None, [_finding(stream_id, "unreadable", "the log and its rows", "values that fit", error)]


async def _verify_causes(
    store: Store, tenant_id: str, correlation_id: str, streams: Sequence[Stream]
) -> list[Finding]:
    """Others may have written while streams were read one by one: what is missing is looked for again."""
    if not verify_causes(streams):
        return []
    return verify_causes(await store.correlation(tenant_id, correlation_id))


async def _verify_schedules(store: Store, stream: Stream) -> list[Finding]:
    """Whether a schedule and what came of it say the same (§ORD-40)."""
    try:
        if stream.head.kind == "SCHEDULE":
            return await verify_firings(store, stream)
        return await verify_scheduled(store, stream) if stream.head.kind == "SIGNAL" else []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []  # it does not fold: that is a finding already
    except RunstoneError as error:
        _damage(error)
        return []  # the other's own proof says so


class _Asker(msgspec.Struct, frozen=True):
    """Who asked for an event of a stream that outlives runs; nobody did where there is no effect."""

    run_id: str = ""
    effect_id: str = ""


class _Result(msgspec.Struct, frozen=True):
    """The result of an effect that is carried out in the store, as far as it says what that wrote."""

    event_id: str = ""


_read_asker: Final = codec.reader(_Asker)
_read_result: Final = codec.reader(_Result)


async def _verify_askers(store: Store, stream: Stream) -> list[Finding]:
    """Whether the runs that asked, where they are in the store still, say the same (§ORD-39)."""
    asked: dict[str, list[tuple[Event, _Asker]]] = {}
    try:
        for event in stream.events:
            asker = _read_asker(event.event_data)
            if asker.effect_id:
                asked.setdefault(asker.run_id, []).append((event, asker))
        found = [
            finding
            for run_id, events in asked.items()
            for finding in await _verify_asker(store, stream, run_id, events)
        ]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []  # it does not fold: that is a finding already
    return found


async def _verify_asker(
    store: Store, stream: Stream, run_id: str, events: Sequence[tuple[Event, _Asker]]
) -> list[Finding]:
    try:
        asking = await store.load(stream.head.tenant_id, run_id)
        state = asking.fold() if asking is not None else None
    except RunstoneError as error:
        _damage(error)
        return []  # the run's own proof says so
    if asking is None or not isinstance(state, RunState):
        return []  # it was archived, or the stream came from elsewhere
    known = {event.id for event in asking.events}
    findings = []
    for event, asker in events:
        place = f"run_seq {event.run_seq}"
        if event.causation_id not in known:
            wanted, found = f"a cause in run {run_id}", f"no event {event.causation_id} there"
            findings.append(_finding(event.stream_id, "causation", place, wanted, found))
        named = _written_by(state.effects.get(asker.effect_id))
        if named != event.id:
            wanted = f"effect {asker.effect_id} of run {run_id} to have written it"
            findings.append(_finding(event.stream_id, "effect", place, wanted, f"that it wrote {named}"))
    return findings


def _written_by(effect: Effect | None) -> str | None:
    """The event that an effect says it wrote."""
    if effect is None or effect.execution_result is None:
        return None
    try:
        return _read_result(effect.execution_result).event_id
    except msgspec.ValidationError:
        return None


async def _unreadable(store: Store, tenant_id: str, stream_id: str, error: object) -> list[Finding]:
    """Names the events that cannot be read; if all can be, it is a row or the head."""
    findings: list[Finding] = []
    after = 0
    while len(findings) < _UNREADABLE_SHOWN:
        try:
            events = await store.fetch(tenant_id, stream_id, after_seq=after, limit=1)
        except RunstoneError as broken:
            after += 1
            place, wanted = f"run_seq {after}", "an event that can be read"
            findings.append(_finding(stream_id, "unreadable", place, wanted, _damage(broken)))
        else:
            if not events:
                break
            after = events[0].run_seq
    return findings or [_finding(stream_id, "unreadable", "its head and rows", "values that fit", error)]


async def _verify_store(store: Store) -> Verified:
    try:
        problems: Sequence[object] = await store.self_check()
    except RunstoneError as error:
        problems = [_damage(error)]
    return Verified(findings=tuple(_of_store("nothing wrong", problem) for problem in problems))


def _damage(error: RunstoneError) -> RunstoneError:
    """The error itself if it tells of damage; any other is not for the audit to swallow."""
    if isinstance(error, _NO_DAMAGE):
        raise error
    return error


def _of_store(expected: str, problem: object) -> Finding:
    return _finding("", "store", "the store itself", expected, problem)


def _finding(stream_id: str, check: str, place: str, expected: str, found: object) -> Finding:
    return Finding(stream_id=stream_id, check=check, place=place, expected=expected, found=str(found))
