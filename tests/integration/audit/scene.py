"""A store file with some of everything in it: what the tests of the audit damage, rebuild and carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

from msgspec import Raw

from runstone.audit.verify import verify_all
from runstone.core import codec, commands
from runstone.core.commands import Command
from runstone.core.commit import Commit, Context, StreamWriter, stream_write
from runstone.core.decide import Case, decide
from runstone.core.decide.entities import update
from runstone.core.decide.schedules import fire, schedule
from runstone.core.effect_specs import ScheduleTask, SorUpdate
from runstone.core.fold import EntityFold, ScheduleFold, entity_fold, schedule_fold
from runstone.core.ids import DEFAULT_TENANT, NewId
from runstone.core.keys import entity_stream, schedule_stream
from runstone.core.payloads import ArtifactRef, EntityRef, ErrorInfo, OutputResult, WaitSpec
from runstone.core.state import EntityState, ScheduleState
from runstone.core.tombstone import bury
from runstone.core.verify import Finding
from runstone.errors import StoreUnusable
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.histories import five_step_history

TENANT: Final = DEFAULT_TENANT
OTHER_TENANT: Final = "00000000-0000-7000-8000-000000000002"
WORKER: Final = "worker-1"
KEY: Final = "order-7"
FRESH: Final = "fresh"
STREAMS: Final = 12
CORRELATIONS: Final = 6
EVENTS: Final = 84
"""How many of them a store has that was built here; what was archived does not count."""

_ERROR: Final = ErrorInfo(category="EXTERNAL", code="E1", message="größer als 日本語 \ufffd", retryable=True)
_ARTIFACT: Final = ArtifactRef(uri="file:///out", kind="report", sha256="a" * 64, size_bytes=3)
_LARGE: Final = codec.canonical({"text": "x" * 5000})
_NOTE: Final = Raw(b'{ "note" : 1e2 }')


async def build(path: Path, *, archived: bool = False) -> None:
    """Runs that ended, one that waits, a child that failed, one that a worker owns; another tenant's too.

    If asked for, also the tombstones of one that was archived.
    """
    clock = VirtualClock()
    new_id = SeededIds(7, clock)
    async with await SqliteStore.open(path, clock=clock, inline=True) as store:
        if archived:
            case = await tell(store, clock, new_id, _ended(clock))
            assert case.run.run is not None
            streams = await store.correlation(TENANT, case.run.run.correlation_id)
            where = {"archive": "/archive", "bundle": "b.ndjson", "bundle_sha256": "a" * 64}
            assert await store.forget(bury(streams, **where, now=clock.now()))
        for tenant_id in (TENANT, OTHER_TENANT):
            for decision in five_step_history(tenant_id=tenant_id, clock=clock, new_id=new_id):
                await store.commit(decision.commit)
        waiting = await tell(store, clock, new_id, _waiting(clock, new_id))
        await tell(store, clock, new_id, _failing(clock, waiting))
        await write_entity(store, clock, new_id)
        await write_schedule(store, clock, new_id)
        await tell(store, clock, new_id, [_received(clock, FRESH, commands.CreateRun(plan_id=FRESH))])
        clock.advance(1)
        lease = timedelta(days=365 * 100)
        assert await store.claim(WORKER, handlers=[FRESH], code_rank="zzz", limit=1, lease=lease)


async def write_entity(store: SqliteStore, clock: VirtualClock, new_id: NewId) -> None:
    """An entity with two versions, of runs that are in no store of ours any more."""
    state = EntityState(stream_id=entity_stream(TENANT, "CASE", "42"), tenant_id=TENANT)
    for change in ({"note": "größer als 日本語"}, {"text": "x" * 5000}):
        clock.advance(1)
        context = Context(now=clock.now(), new_id=new_id, actor="dispatcher")
        stream = StreamWriter[EntityFold](entity_fold(state), context, state.stream_id)
        asked = SorUpdate(entity_type="CASE", entity_id="42", change=change, evidence_pack={"mail": "m-1"})
        update(stream, asked, key="key", run_id=new_id(), effect_id=new_id(), cause=new_id())
        write = stream_write(stream.fold, stream.events)
        await store.commit(Commit((write,), write.events))
        state = stream.fold.freeze()


async def write_schedule(store: SqliteStore, clock: VirtualClock, new_id: NewId) -> None:
    """A schedule that has fired once and goes on, for a run that is in no store of ours any more."""
    state = ScheduleState(stream_id=schedule_stream(TENANT, "nightly"), tenant_id=TENANT)
    context = Context(now=clock.now(), new_id=new_id, actor="dispatcher")
    stream = StreamWriter[ScheduleFold](schedule_fold(state), context, state.stream_id)
    asked = ScheduleTask(task="report", cron="0 0 * * *", arguments={"note": "größer als 日本語"})
    due = clock.now()
    run_id, cause = new_id(), new_id()
    schedule(stream, asked, name="nightly", next_at=due, effect_id=new_id(), run_id=run_id, cause=cause)
    fire(stream, due_at=due, next_at=due + timedelta(days=1), signal_id=new_id(), run_id=run_id, cause=cause)
    write = stream_write(stream.fold, stream.events)
    await store.commit(Commit((write,), write.events))


async def tell(
    store: SqliteStore, clock: VirtualClock, new_id: NewId, story: Iterable[tuple[Command, ...]]
) -> Case:
    """Commits a story, a second between its parts."""
    case = Case.new(TENANT, new_id(), new_id())
    for wanted in story:
        clock.advance(1)
        context = Context(
            now=clock.now(),
            new_id=new_id,
            actor="engine",
            adapter_version="2.0.0",
            engine_attempt=2,
            engine_run_ref={"workflow": "w-1"},
        )
        decision = decide(case, *wanted, context=context)
        await store.commit(decision.commit)
        case = decision.case
    return case


def _received(
    clock: VirtualClock, source_id: str, create: commands.CreateRun, parent: Case | None = None
) -> tuple[Command, ...]:
    """A signal and its run; a child is caused by its parent's last event, and of its correlation."""
    receive = commands.ReceiveSignal(
        signal_type="EMAIL",
        source_channel="inbox",
        source_id=source_id,
        source_hash="0" * 64,
        normalized_payload=_NOTE,
        received_at=clock.now(),
        ingested_by="gateway",
        cause=parent.run.last_event if parent else None,
        correlation_id=parent.run.run.correlation_id if parent and parent.run.run else None,
    )
    return receive, create


def _waiting(clock: VirtualClock, new_id: NewId) -> Iterator[tuple[Command, ...]]:
    """Steps of every outcome, tools, a correction and an effect that failed once; then it sleeps."""
    create = commands.CreateRun(
        plan_id="handler", plan_version="v1", orchestrator_version="1.2", key=KEY, metadata=_NOTE, lane="lane"
    )
    step_id, good, bad, effect_id = (new_id() for _ in range(4))
    yield _received(clock, "waiting", create)
    yield (commands.StartRun(),)
    yield (
        commands.StartStep(
            step_key="ask",
            step_type="SPECIALIST_CALL",
            arguments=_LARGE,
            sor_entities=(EntityRef(entity_id="1", entity_type="order"),),
            specialist_context=_NOTE,
            specialist_id="ada",
            metadata=_NOTE,
        ),
    )
    yield (
        commands.FailStep(step_key="ask", error=_ERROR, artifacts=(_ARTIFACT,)),
        commands.RetryStep(step_key="ask"),
    )
    yield (
        commands.StartStep(step_key="ask", step_type="SPECIALIST_CALL", step_id=step_id, specialist_id="ada"),
    )
    yield (
        commands.CallTool(
            step_key="ask", tool_name="search", tool_args=_NOTE, tool_call_id=good, metadata=_NOTE
        ),
        commands.CallTool(step_key="ask", tool_name="search", tool_args=_LARGE, tool_call_id=bad),
    )
    yield (
        commands.CompleteTool(tool_call_id=good, result=_LARGE, duration_ms=700, cache_hit=True),
        commands.FailTool(tool_call_id=bad, error=_ERROR, duration_ms=70000),
    )
    yield (
        commands.CompleteStep(
            step_key="ask", output=OutputResult(specialist_reasoning=_LARGE), artifacts=(_ARTIFACT,)
        ),
    )
    yield (
        commands.CorrectStep(
            step_id=step_id, output=OutputResult(specialist_reasoning=_NOTE), reason="wrong"
        ),
    )
    yield (
        commands.StartStep(step_key="not", step_type="DECISION"),
        commands.SkipStep(step_key="not", reason="no need"),
    )
    yield (
        commands.StartStep(step_key="send", step_type="EFFECT_REQUEST"),
        commands.RequestEffect(
            step_key="send", effect_type="SEND_EMAIL", spec={"to": ["a"]}, effect_id=effect_id, metadata=_NOTE
        ),
        commands.CompleteStep(step_key="send", output=OutputResult(effect_spec=_NOTE)),
    )
    later = clock.now() + timedelta(hours=1)
    yield (commands.FailEffect(effect_id=effect_id, executor="mail", error=_ERROR, next_retry_at=later),)
    yield (
        commands.StartStep(step_key="wait", step_type="WAIT", wait=WaitSpec(name="answer", deadline=later)),
        commands.SuspendRun(wake_at=later, waiting=("wait",)),
    )


def _ended(clock: VirtualClock) -> Iterator[tuple[Command, ...]]:
    yield _received(clock, "ended", commands.CreateRun(plan_id="handler", key="order-1"))
    yield (commands.StartRun(),)
    yield (commands.ReturnHandler(result=_NOTE),)


def _failing(clock: VirtualClock, parent: Case) -> Iterator[tuple[Command, ...]]:
    create = commands.CreateRun(plan_id="child", parent_run_id=parent.run.stream_id)
    yield _received(clock, "child", create, parent)
    yield (commands.StartRun(),)
    yield (commands.FailRun(error=_ERROR, exit_reason="E1"),)


async def findings(path: Path, *, inline: bool = True) -> list[Finding]:
    """All that `verify` finds in a file; a file that cannot be opened is a finding too."""
    try:
        store = await SqliteStore.open(path, inline=inline)
    except StoreUnusable as error:
        return [Finding(stream_id="", check="store", place="the file", expected="one", found=str(error))]
    async with store:
        return [finding async for verified in verify_all(store) for finding in verified.findings]
