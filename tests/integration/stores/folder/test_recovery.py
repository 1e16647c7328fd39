"""Taking a run up again: torn lines, broken lines, snapshots that are wrong, logs that are gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from runstone.core import codec, payloads
from runstone.core.chain import event_hash
from runstone.core.events import EventDraft
from runstone.core.pipeline import FolderSnapshot
from runstone.errors import NotFound, SnapshotInvalid, StoreUnusable, UnknownEventType
from runstone.stores.folder import FolderStore
from tests.integration.stores.folder.scene import (
    EVENTS,
    PLAN,
    RUN,
    TENANT,
    Writer,
    log_file,
    prove,
    recovered,
    snapshot_file,
    torn_file,
    usual,
)

OPEN_ENDED = EVENTS[:-3]
"""A run that has not ended."""


# The last line


async def test_the_last_record_cut_at_every_byte(tmp_path: Path) -> None:
    """§PIP-3: what is left is set aside, byte for byte; the events before it are the run."""
    root = tmp_path
    events = await usual(root, events=OPEN_ENDED)
    log, snapshot = log_file(root).read_bytes(), snapshot_file(root).read_bytes()
    start = log.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(start, len(log)):
        log_file(root).write_bytes(log[:cut])
        snapshot_file(root).write_bytes(snapshot)
        torn_file(root).unlink(missing_ok=True)
        recovery = await recovered(root)
        assert recovery.failed is None
        left, view = await prove(root)
        if cut == len(log) - 1:
            assert left == events, "only the line end was missing"
            assert not torn_file(root).exists()
        else:
            assert left == events[:-1]
            torn = torn_file(root).read_bytes() if torn_file(root).exists() else b""
            assert torn == (log[start:cut] + b"\n" if cut > start else b"")
            assert bool(torn) == any("was torn" in note for note in recovery.notes)
        assert view.last_seq == len(left)


@pytest.mark.parametrize(
    ("tail", "called"),
    [
        (b"\0" * 4096, "zeros"),
        (b'{"actor":"te' + b"\0" * 100, "the beginning of an event"),
        (b'{"actor":"te' + b"\0" * 100 + b'"}\n', "the beginning of an event"),
        (b"\0" * 512 + b'"tenant_id":"x"}\n', "no part of an event"),
        (b"\0" * 512 + b'"tenant_id":"x"}\n' + b"\0" * 9, "no part of an event"),
        (b"\xff\xfe garbage", "no part of an event"),
        (b"{}", "no part of an event"),
        (b'{"id":"x"}', "the beginning of an event"),
    ],
)
async def test_what_a_crash_can_leave_behind_is_set_aside_and_reported(
    tail: bytes, called: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = await usual(tmp_path, events=OPEN_ENDED)
    with log_file(tmp_path).open("ab") as log:
        log.write(tail)
    recovery = await recovered(tmp_path)
    assert torn_file(tmp_path).read_bytes() == tail + b"\n"
    (note,) = recovery.notes
    assert f"line {len(events) + 1} was torn ({len(tail)} bytes, {called})" in note
    assert "was torn" in caplog.text
    assert (await prove(tmp_path))[0] == events


async def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    await usual(tmp_path, events=OPEN_ENDED)
    for tail in (b"first", b"second", b"second"):
        with log_file(tmp_path).open("ab") as log:
            log.write(tail)
        await recovered(tmp_path)
    assert torn_file(tmp_path).read_bytes() == b"first\nsecond\n"


async def test_a_torn_line_does_not_hold_up_a_reader_nor_a_writer(tmp_path: Path) -> None:
    events = await usual(tmp_path, events=OPEN_ENDED)
    with log_file(tmp_path).open("ab") as log:
        log.write(b'{"half')
    async with await FolderStore.open(tmp_path) as store:
        assert list(await store.fetch(TENANT, RUN)) == events
        assert not torn_file(tmp_path).exists(), "reading changes nothing"
        await Writer(store, seed=2).record(EVENTS[-3])
    assert torn_file(tmp_path).exists()
    assert len((await prove(tmp_path))[0]) == len(events) + 1


async def test_a_run_of_which_nobody_was_told_is_not_there(tmp_path: Path) -> None:
    folder = log_file(tmp_path).parent
    folder.mkdir(parents=True)
    log_file(tmp_path).write_bytes(b'{"actor"')
    with pytest.raises(NotFound):
        await recovered(tmp_path)
    with pytest.raises(NotFound):
        await recovered(tmp_path / "nowhere")
    async with await FolderStore.open(tmp_path) as store:
        await Writer(store).create()
    assert len((await prove(tmp_path))[0]) == 2


# The middle


def flip(line: bytes) -> bytes:
    return line.replace(b'"actor":"test"', b'"actor":"test!"')


def unchain(line: bytes) -> bytes:
    event = json.loads(line)
    event["prev_hash"] = "f" * 64
    return codec.encode(event)


@pytest.mark.parametrize(
    "damage", [flip, unchain, lambda line: b"garbage", lambda line: b"", lambda line: b"\0"]
)
@pytest.mark.parametrize("place", [1, 5])
async def test_a_bad_line_is_named_and_the_run_ends(damage: object, place: int, tmp_path: Path) -> None:
    """§PIP-19, §PIP-32: what stands before it is kept, and behind that a complete trail of the failure."""
    events = await usual(tmp_path, events=OPEN_ENDED)
    lines = log_file(tmp_path).read_bytes().split(b"\n")
    lines[place - 1] = damage(lines[place - 1])  # type: ignore[operator]
    broken = b"\n".join(lines)
    log_file(tmp_path).write_bytes(broken)
    async with await FolderStore.open(tmp_path) as store:
        for attempt in (store.replay(TENANT, RUN), Writer(store).record(EVENTS[2])):
            with pytest.raises(SnapshotInvalid, match=f"events.ndjson, line {place}: ") as found:
                await attempt
            assert found.value.line == place
        good = list(await store.fetch(TENANT, RUN)) if place > 1 else []
        assert [event.id for event in good] == [event.id for event in events[: place - 1]]
        with pytest.raises(SnapshotInvalid):
            await store.fetch(TENANT, RUN, after_seq=place - 1)
    assert log_file(tmp_path).read_bytes() == broken, "only recovery changes anything"

    recovery = await recovered(tmp_path)
    assert f"line {place}" in (recovery.failed or "")
    after, view = await prove(tmp_path)
    assert [event.id for event in after[: place - 1]] == [event.id for event in good]
    assert (view.run_state, view.issues[-1].code, view.issues[-1].severity) == (
        "FAILED",
        "SnapshotInvalid",
        "BLOCKER",
    )
    assert f"line {place}" in view.issues[-1].message
    assert after[-1].event_type == "RUN_FAILED"
    kept = [path.read_bytes() for path in log_file(tmp_path).parent.glob("events.ndjson.*.invalid")]
    assert kept == [broken], "not a byte is lost"
    await assert_ended(tmp_path)


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def test_of_two_lines_that_do_not_fit_the_changed_one_is_named(tmp_path: Path) -> None:
    """Line 5 of six: its successor is the last, and nobody vouches for that one."""
    await usual(tmp_path, events=EVENTS[:4])
    lines = log_file(tmp_path).read_bytes().split(b"\n")
    lines[4] = flip(lines[4])
    log_file(tmp_path).write_bytes(b"\n".join(lines))
    assert "line 5: it was changed" in ((await recovered(tmp_path)).failed or "")
    assert len((await prove(tmp_path))[0]) == 4 + 3


async def assert_ended(root: Path) -> None:
    """The run and its signal have ended, and to recover it again changes nothing."""
    before = contents(root)
    again = await recovered(root)
    assert again.failed == "SnapshotInvalid"
    assert again.notes == ()
    assert contents(root) == before
    async with await FolderStore.open(root) as store:
        run = await store.run(TENANT, RUN)
        assert run is not None
        assert (run.status, run.exit_reason) == ("FAILED", "SnapshotInvalid")
        signal = await store.fetch(TENANT, run.signal_id)
        assert signal[-1].event_type == "SIGNAL_PROCESSING_FAILED"


async def test_a_last_line_that_is_not_canonical_was_changed(tmp_path: Path) -> None:
    events = await usual(tmp_path, events=OPEN_ENDED)
    log = log_file(tmp_path).read_bytes()
    log_file(tmp_path).write_bytes(log[:-2] + b" }\n")
    recovery = await recovered(tmp_path)
    assert f"line {len(events)}: the line is not in its canonical form" in (recovery.failed or "")
    assert len((await prove(tmp_path))[0]) == len(events) - 1 + 3


async def test_a_last_line_that_is_another_event_is_reported(tmp_path: Path) -> None:
    """§PIP-17: no line vouches for it, but the snapshot does. The log decides all the same (§PIP-18)."""
    events = await usual(tmp_path, events=OPEN_ENDED)
    lines = log_file(tmp_path).read_bytes().splitlines(keepends=True)
    log_file(tmp_path).write_bytes(b"".join((*lines[:-1], flip(lines[-1]))))
    before = snapshot_file(tmp_path).read_bytes()
    async with await FolderStore.open(tmp_path) as store:
        (problem,) = await store.self_check()
        assert f"it has another hash of line {len(events)} than the log" in problem
        assert await store.replay(TENANT, RUN) != before
    recovery = await recovered(tmp_path)
    assert recovery.failed is None
    assert f"it has another hash of line {len(events)} than the log" in recovery.notes[-1]
    (kept,) = snapshot_file(tmp_path).parent.glob("snapshot.json.*.invalid")
    assert kept.read_bytes() == before
    assert (await prove(tmp_path))[0][-1].actor == "test!"


async def test_an_event_that_does_not_fold_is_a_bad_line(tmp_path: Path) -> None:
    """Its hash fits, so somebody wrote it: not this store."""
    events = await usual(tmp_path, events=OPEN_ENDED)
    impossible = msgspec.structs.replace(
        events[-1],
        id=events[-1].id[:-1] + "0",
        event_type="RUN_STARTED",
        event_data=codec.canonical({"signal_id": RUN, "run_type": "HUMAN_TRIGGERED"}),
        idempotency_key="e" * 64,
        run_seq=len(events) + 1,
        prev_hash=event_hash(events[-1]),
    )
    with log_file(tmp_path).open("ab") as log:
        log.write(codec.encode(impossible) + b"\n")
    recovery = await recovered(tmp_path)
    assert f"line {len(events) + 1}: Invalid transition" in (recovery.failed or "")
    assert (await prove(tmp_path))[1].run_state == "FAILED"


async def test_what_a_newer_version_wrote_is_left_alone(tmp_path: Path) -> None:
    events = await usual(tmp_path, events=OPEN_ENDED)
    newer = msgspec.structs.replace(
        events[-1],
        id=events[-1].id[:-1] + "0",
        event_type="RUN_TELEPORTED",
        idempotency_key="e" * 64,
        run_seq=len(events) + 1,
        prev_hash=event_hash(events[-1]),
    )
    with log_file(tmp_path).open("ab") as log:
        log.write(codec.encode(newer) + b"\n")
    before = log_file(tmp_path).read_bytes()
    with pytest.raises(UnknownEventType, match="upgrade"):
        await recovered(tmp_path)
    assert log_file(tmp_path).read_bytes() == before
    async with await FolderStore.open(tmp_path) as store:
        assert len(await store.fetch(TENANT, RUN)) == len(events) + 1, "readers pass it on"


async def test_a_run_that_had_ended_gets_the_issue_and_stays_as_it_ended(tmp_path: Path) -> None:
    await usual(tmp_path)
    with log_file(tmp_path).open("ab") as log:
        log.write(b"garbage\n")
    recovery = await recovered(tmp_path)
    assert recovery.failed
    view = (await prove(tmp_path))[1]
    assert (view.run_state, view.issues[-1].code) == ("DONE", "SnapshotInvalid")
    async with await FolderStore.open(tmp_path) as store:
        run = await store.run(TENANT, RUN)
        assert run is not None
        assert run.status == "COMPLETED"


# No log


@pytest.mark.parametrize("empty", [True, False])
async def test_a_run_without_its_log_ends(empty: bool, tmp_path: Path) -> None:
    await usual(tmp_path, events=OPEN_ENDED)
    old = snapshot_file(tmp_path).read_bytes()
    log_file(tmp_path).write_bytes(b"") if empty else log_file(tmp_path).unlink()
    recovery = await recovered(tmp_path)
    assert "the log is missing or empty" in (recovery.failed or "")
    events, view = await prove(tmp_path)
    assert [event.event_type for event in events] == [
        *("RUN_CREATED", "ISSUE_OPENED", "RUN_STATE_CHANGED", "RUN_FAILED")
    ]
    assert (view.run_state, [issue.code for issue in view.issues]) == ("FAILED", ["SnapshotInvalid"])
    (kept,) = snapshot_file(tmp_path).parent.glob("snapshot.json.*.invalid")
    assert kept.read_bytes() == old
    async with await FolderStore.open(tmp_path) as store:
        run = await store.run(TENANT, RUN)
        assert run is not None
        assert run.plan_id == PLAN
    await assert_ended(tmp_path)


async def test_a_run_without_its_log_is_not_begun_anew(tmp_path: Path) -> None:
    events = await usual(tmp_path, events=OPEN_ENDED)
    log_file(tmp_path).unlink()
    before = snapshot_file(tmp_path).read_bytes()
    async with await FolderStore.open(tmp_path) as store:
        with pytest.raises(SnapshotInvalid, match="recover the run"):
            await Writer(store).create()
        first = EventDraft(**{name: getattr(events[0], name) for name in EventDraft.__struct_fields__})
        with pytest.raises(SnapshotInvalid, match="recover the run"):
            await store.append(first)
    assert snapshot_file(tmp_path).read_bytes() == before


async def test_a_signal_that_cannot_be_read_does_not_hold_its_run_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await usual(tmp_path, events=OPEN_ENDED)
    (signal,) = (tmp_path / "signals").glob("*/events.ndjson")
    signal.write_bytes(b"garbage\n")
    async with await FolderStore.open(tmp_path) as store:
        await Writer(store, seed=8).record(*EVENTS[-3:])
        assert "does not know where it is" in caplog.text
    recovery = await recovered(tmp_path)
    assert recovery.failed is None
    assert "the run's signal cannot be read" in recovery.notes[-1]
    assert (await prove(tmp_path))[1].run_state == "DONE"


async def test_so_does_one_that_has_only_artifacts_left(tmp_path: Path) -> None:
    (log_file(tmp_path).parent / "artifacts").mkdir(parents=True)
    assert (await recovered(tmp_path)).failed
    await prove(tmp_path)


# The snapshot


def behind(root: Path) -> bytes:
    shown = msgspec.json.decode(snapshot_file(root).read_bytes(), type=FolderSnapshot)
    return codec.encode(msgspec.structs.replace(shown, last_seq=shown.last_seq - 1))


def ahead(root: Path) -> bytes:
    shown = msgspec.json.decode(snapshot_file(root).read_bytes(), type=FolderSnapshot)
    return codec.encode(msgspec.structs.replace(shown, last_seq=shown.last_seq + 1))


def changed(root: Path) -> bytes:
    return snapshot_file(root).read_bytes().replace(b'"INGESTED"', b'"DONE"')


def untyped(root: Path) -> bytes:
    return codec.encode(json.loads(snapshot_file(root).read_bytes()) | {"issues": [{"issue": 7}]})


@pytest.mark.parametrize(
    ("made", "reason", "kept"),
    [
        (behind, "and the log has", False),
        (ahead, "events were lost", True),
        (changed, "not what its log adds up to", True),
        (untyped, "does not follow its schema at /issues/0", True),
        (lambda root: b"{}", "does not follow its schema at its root", True),
        (lambda root: b'{"run_id', "no JSON", True),
        (lambda root: b"", "no JSON", True),
        (lambda root: None, "missing", False),
    ],
)
async def test_a_snapshot_that_is_wrong_is_made_again(
    made: object, reason: str, kept: bool, tmp_path: Path
) -> None:
    """§PIP-17, §PIP-18"""
    events = await usual(tmp_path, events=OPEN_ENDED)
    wrong = made(tmp_path)  # type: ignore[operator]
    if wrong is None:
        snapshot_file(tmp_path).unlink()
    else:
        snapshot_file(tmp_path).write_bytes(wrong)
    recovery = await recovered(tmp_path)
    assert recovery.failed is None
    assert reason in recovery.notes[-1]
    assert (await prove(tmp_path))[0] == events
    aside = [path.read_bytes() for path in snapshot_file(tmp_path).parent.glob("*.invalid")]
    assert aside == ([wrong] if kept else [])
    assert (await recovered(tmp_path)).notes == ()


async def test_a_snapshot_of_another_run_is_made_again(tmp_path: Path) -> None:
    other = RUN[:-1] + "e"
    await usual(tmp_path, events=OPEN_ENDED)
    await usual(tmp_path, run_id=other)
    shutil.copy(snapshot_file(tmp_path, other), snapshot_file(tmp_path))
    assert f"it is of run {other}" in (await recovered(tmp_path)).notes[-1]
    await prove(tmp_path)


async def test_a_run_that_is_well_is_left_as_it_is(tmp_path: Path) -> None:
    await usual(tmp_path, events=OPEN_ENDED)
    before, written = contents(tmp_path), snapshot_file(tmp_path).stat().st_mtime_ns
    recovery = await recovered(tmp_path)
    assert (recovery.notes, recovery.failed) == ((), None)
    assert contents(tmp_path) == before
    assert snapshot_file(tmp_path).stat().st_mtime_ns == written


async def test_nobody_recovers_the_run_of_another_tenant(tmp_path: Path) -> None:
    await usual(tmp_path, events=OPEN_ENDED)
    async with await FolderStore.open(tmp_path) as store:
        writer = Writer(store)
        with pytest.raises(NotFound):
            await store.recover(writer.new_id(), RUN, context=writer.context())


async def test_a_signal_that_was_not_told_is_told(tmp_path: Path) -> None:
    """The run's end and its signal's are two files: a crash can come in between."""
    await usual(tmp_path)
    async with await FolderStore.open(tmp_path) as store:
        run = await store.run(TENANT, RUN)
    assert run is not None
    signal = tmp_path / "signals" / run.signal_id / "events.ndjson"
    lines = signal.read_bytes().splitlines(keepends=True)
    signal.write_bytes(b"".join(lines[:1]))
    await recovered(tmp_path)
    async with await FolderStore.open(tmp_path) as store:
        told = [event.event_type for event in await store.fetch(TENANT, run.signal_id)]
    assert told == ["SIGNAL_RECEIVED", "SIGNAL_PROCESSING_STARTED", "SIGNAL_PROCESSED"]


async def test_a_file_cannot_be_a_folder_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match="is a file"):
        await FolderStore.open(tmp_path / "file")


async def test_an_illegal_event_is_refused_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    events = await usual(tmp_path, events=OPEN_ENDED)
    async with await FolderStore.open(tmp_path) as store:
        writer = Writer(store, seed=3)
        for wrong in (
            payloads.RunStateChanged(from_state="DONE", to_state="CREATED"),
            payloads.WorkItemCompleted(item="nobody began it"),
            payloads.RunCreated(signal_id=RUN, run_type="HUMAN_TRIGGERED", plan_id="x"),
        ):
            with pytest.raises(Exception, match=r"Invalid transition|There is no work item"):
                await writer.record(wrong)
        await writer.record(EVENTS[-3])
    assert (await prove(tmp_path))[0][:-1] == events
