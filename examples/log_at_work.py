"""The log at work: commit, fold, verify, tamper, detect.

    python -m examples.log_at_work

An order is refunded in a temporary store. The run's rows are compared with the fold of its events;
then somebody changes an amount in the file, behind the store's back, and the audit says where.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from runstone.core import codec, commands
from runstone.core.commit import Context
from runstone.core.decide import Case, decide
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.keys import content_hash
from runstone.core.payloads import OutputResult
from runstone.core.snapshot import RunSnapshot
from runstone.core.verify import Finding, verify_causes, verify_stream
from runstone.ports.clock import new_id
from runstone.stores.sqlite import SqliteStore

MESSAGE = {"from": "ada@example.com", "subject": "Order 42 never came", "body": "Please refund 19.90"}


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.db"
        async with await SqliteStore.open(path) as store:
            case = await refund(store)
            show_log(case)
            await show_proof(store, case)
        tamper(path, case)
        async with await SqliteStore.open(path) as store:
            await show_detection(store, case)


async def refund(store: SqliteStore) -> Case:
    """A signal comes in, a run handles it, an effect goes out: each line below is one durable commit."""
    say("commit", "A mail asks for a refund; every step of its run is committed before the next begins.")
    case = Case.new(DEFAULT_TENANT, signal_id=new_id(), run_id=new_id())
    case = await commit(store, case, receive(), commands.CreateRun(plan_id="refund", plan_version="1"))
    case = await commit(store, case, commands.StartRun(orchestrator_version="1"))
    case = await commit(store, case, *step("triage", {"kind": "refund", "order": 42}))
    case = await commit(store, case, *step("look_up", {"order": 42, "paid": "19.90"}))
    case = await commit(store, case, *send_mail())
    case = await commit(store, case, commands.ReturnHandler(result=codec.canonical("refunded")))
    return await commit(store, case, *delivered(case))


async def commit(store: SqliteStore, case: Case, *wanted: commands.Command) -> Case:
    """Decides, then makes it durable; a case is only replaced by what is on the disk."""
    context = Context(now=datetime.now(UTC), new_id=new_id, actor="demo")
    decision = decide(case, *wanted, context=context)
    await store.commit(decision.commit)
    for event in decision.commit.events:
        print(f"    {event.run_seq:>3}  {event.event_type}")
    return decision.case


def receive() -> commands.Command:
    raw = codec.canonical(MESSAGE)
    return commands.ReceiveSignal(
        signal_type="EMAIL",
        source_channel="support@shop.example",
        source_id="<m1@example.com>",
        source_hash=content_hash(raw),
        normalized_payload=raw,
        received_at=datetime.now(UTC),
    )


def step(name: str, output: object) -> tuple[commands.Command, ...]:
    return (
        commands.StartStep(step_key=f"{name}#1", step_type="SPECIALIST_CALL", specialist_id=name),
        commands.CompleteStep(
            step_key=f"{name}#1", output=OutputResult(specialist_reasoning=codec.canonical(output))
        ),
    )


def send_mail() -> tuple[commands.Command, ...]:
    spec = {"to": ["ada@example.com"], "subject": "Your refund", "body_html": "<p>19.90 is on its way.</p>"}
    return (
        commands.StartStep(step_key="answer#1", step_type="EFFECT_REQUEST"),
        commands.RequestEffect(step_key="answer#1", effect_type="SEND_EMAIL", spec=spec),
        commands.CompleteStep(step_key="answer#1", output=OutputResult(effect_spec=codec.canonical(spec))),
    )


def delivered(case: Case) -> tuple[commands.Command, ...]:
    (effect_id,) = case.run.effects
    return (
        commands.CompleteEffect(effect_id=effect_id, executor="demo", result=codec.canonical({"code": 250})),
    )


def show_log(case: Case) -> None:
    run = case.run.run
    assert run is not None
    say("fold", "State is what the events add up to, and nothing else.")
    print(f"    run {run.id} is {run.status} after {case.run.last_seq} events, {run.total_steps} steps")
    print(f"    its last event hashes to {case.run.head[:16]}…")


async def show_proof(store: SqliteStore, case: Case) -> None:
    say("verify", "Rows = fold, hash chain whole, causes complete, counters recounted.")
    findings = await audit(store, case)
    snapshot = await store.snapshot(DEFAULT_TENANT, case.run.stream_id)
    assert not findings
    assert isinstance(snapshot, RunSnapshot)
    counted = Counter(view.status for view in snapshot.steps)
    print(f"    nothing found; the snapshot shows {dict(counted)}")


async def audit(store: SqliteStore, case: Case) -> list[Finding]:
    assert case.run.run is not None
    streams = await store.correlation(DEFAULT_TENANT, case.run.run.correlation_id)
    findings = verify_causes(streams)
    for stream in streams:
        findings += verify_stream(stream, await store.rows(DEFAULT_TENANT, stream.head.stream_id))
    return findings


def tamper(path: Path, case: Case) -> None:
    """What a thief with the file and a hex editor would do."""
    say("tamper", "Somebody turns 19.90 into 99.90 in one event, with the triggers out of the way.")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DROP TRIGGER orchestration_events_no_update")
        changed = connection.execute(
            "UPDATE orchestration_events SET event_data = replace(event_data, '19.90', '99.90') "
            "WHERE stream_id = ? AND event_type = 'STEP_COMPLETED' AND event_data LIKE '%19.90%'",
            (case.run.stream_id,),
        ).rowcount
    connection.close()
    print(f"    {changed} event changed in {path.name}")


async def show_detection(store: SqliteStore, case: Case) -> None:
    say("detect", "The same audit again.")
    findings = await audit(store, case)
    show(findings)
    if not findings:
        raise SystemExit("the audit found nothing: this must never happen")


def show(findings: Iterable[Finding]) -> None:
    for finding in findings:
        print("    " + str(finding).replace("\n", "\n    "))


def say(word: str, sentence: str) -> None:
    print(f"\n{word:>8}  {sentence}")


if __name__ == "__main__":
    asyncio.run(main())
