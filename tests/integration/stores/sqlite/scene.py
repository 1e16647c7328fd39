"""What the tests of the SQLite store are made of: commits to write, and proof of what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from msgspec import Raw
from msgspec.structs import replace

from runstone.core import codec, commands
from runstone.core.commands import Command
from runstone.core.commit import Commit, Context, StreamWrite
from runstone.core.decide import Case, decide
from runstone.core.effect import Effect
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import OutputResult
from runstone.core.verify import verify_causes, verify_stream
from runstone.ports.store import FeedPosition
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import START, SeededIds, VirtualClock
from runstone.testing.histories import five_step_history, legal_history

TENANT: Final = DEFAULT_TENANT
LEASE: Final = timedelta(minutes=1)
_NOTHING: Final = Raw(b"{}")


def usual(seed: int) -> list[Commit]:
    """The commits of a run that goes well, and a correction: rows in every table. Other ids for each seed."""
    clock = VirtualClock()
    new_id = SeededIds(3 * seed, clock)
    history = five_step_history(tenant_id=TENANT, clock=clock, new_id=new_id)
    step = next(iter(history[-1].case.run.steps))
    correction = commands.CorrectStep(
        step_id=step, output=OutputResult(decision=Raw(b"false")), reason="it was wrong"
    )
    context = Context(now=clock.now(), new_id=new_id, actor="ada")
    history.append(decide(history[-1].case, correction, context=context))
    return [decision.commit for decision in history]


def wild(seed: int, length: int = 40) -> list[Commit]:
    """The commits of a random run, with payloads of every kind and size."""
    clock = VirtualClock()
    told = legal_history(
        Random(seed), tenant_id=TENANT, clock=clock, new_id=SeededIds(3 * seed + 1, clock), length=length
    )
    return [decision.commit for decision in told]


def received(seed: int, *, source_id: str | None = None, payload: Raw = _NOTHING) -> Commit:
    """The smallest commit: a signal that came in. Its stream and rows are its own."""
    return told(seed, [(arrival(source_id or f"mail {seed}", payload),)])[0]


def arrival(source_id: str, payload: Raw = _NOTHING) -> Command:
    return commands.ReceiveSignal(
        signal_type="EMAIL",
        source_channel="inbox",
        source_id=source_id,
        source_hash="0" * 64,
        normalized_payload=payload,
        received_at=START,
    )


def told(seed: int, story: Iterable[tuple[Command, ...]]) -> list[Commit]:
    """The commits of a story, a second apart."""
    clock = VirtualClock()
    new_id = SeededIds(3 * seed + 2, clock)
    case = Case.new(TENANT, new_id(), new_id())
    made = []
    for wanted in story:
        clock.advance(1)
        decision = decide(case, *wanted, context=Context(now=clock.now(), new_id=new_id, actor="test"))
        made.append(decision.commit)
        case = decision.case
    return made


def changed(commit: Commit, place: int, change: Callable[[StreamWrite], dict[str, Any]]) -> Commit:
    """A commit with other values in one of its writes: what no core would make."""
    writes = list(commit.writes)
    writes[place] = replace(writes[place], **change(writes[place]))
    return replace(commit, writes=tuple(writes))


def with_row(kind: type, **values: Any) -> Callable[[Commit], Commit]:
    """Gives the rows of one kind in a commit other values."""

    def spoil(commit: Commit) -> Commit:
        def rows(write: StreamWrite) -> dict[str, Any]:
            return {"rows": tuple(replace(one, **values) if type(one) is kind else one for one in write.rows)}

        return changed(commit, -1, rows)

    return spoil


def with_event(**values: Any) -> Callable[[Commit], Commit]:
    """Gives the last event of a commit other values."""

    def spoil(commit: Commit) -> Commit:
        *others, last = commit.events
        spoilt = replace(last, **values)
        commit = changed(commit, -1, lambda write: {"events": (*write.events[:-1], spoilt)})
        return replace(commit, events=(*others, spoilt))

    return spoil


def large(size: int) -> Raw:
    """JSON of so many bytes."""
    return codec.canonical("x" * (size - 2))


async def asked_for(store: SqliteStore) -> Effect:
    """An effect that waits to be claimed, the only one of its tenant."""
    await ask(store, 1)
    (effect,) = await store.list_effects(TENANT)
    return effect


async def ask(store: SqliteStore, seed: int) -> None:
    """The usual run, as far as its effect."""
    for commit in usual(seed):
        await store.commit(commit)
        if any(type(row) is Effect for row in commit.writes[-1].rows):
            break


def event_ids(commit: Commit) -> list[str]:
    return [event.id for event in commit.events]


def content(path: Path) -> bytes:
    return path.read_bytes()


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def wal(path: Path) -> Path:
    """The write-ahead log of a file."""
    return path.with_name(path.name + "-wal")


async def write(store: SqliteStore, commits: Iterable[Commit]) -> None:
    for commit in commits:
        await store.commit(commit)


async def all_event_ids(store: SqliteStore) -> list[str]:
    """Every event in the store, in the order of commit."""
    found: list[str] = []
    after = FeedPosition()
    while page := await store.feed(after, limit=5_000):
        found += [item.event.id for item in page]
        after = page[-1].position
    return found


async def problems(store: SqliteStore) -> list[str]:
    """What the audit finds wrong: chains, folds, rows, causes, and the file itself."""
    found = list(await store.self_check())
    async for tenant_id, correlation_id in store.correlations():
        streams = await store.correlation(tenant_id, correlation_id)
        findings = verify_causes(streams)
        for stream in streams:
            findings += verify_stream(stream, await store.rows(tenant_id, stream.head.stream_id))
        found += map(str, findings)
    return found
