"""Histories are carried from store to store as bundles: unchanged, whole, once (§STO-43 to §STO-46)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from msgspec import Raw

from runstone.audit import bundles
from runstone.audit.bundles import export_bundle, import_bundle, read_bundle
from runstone.core import commands
from runstone.core.bundle import pack
from runstone.core.payloads import ErrorInfo, OutputResult
from runstone.errors import BundleInvalid, CommandRefused, CommitRefused, NotFound
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import START, SeededIds, VirtualClock
from runstone.testing.histories import five_step_history
from tests.integration.audit import scene
from tests.integration.audit.columns import Behind


async def exported(path: Path, status: str = "COMPLETED") -> bytes:
    """The bundle of the first run with this status."""
    async with await SqliteStore.open(path, inline=True) as store:
        runs = await store.list_runs(scene.TENANT, limit=100)
        run = next(run for run in runs if run.status == status)
        return await export_bundle(store, scene.TENANT, run.correlation_id)


async def test_what_is_imported_exports_to_the_same_bytes(pristine: Path, tmp_path: Path) -> None:
    async with (
        await SqliteStore.open(pristine, inline=True) as source,
        await SqliteStore.open(tmp_path / "target.db", inline=True) as target,
    ):
        carried = 0
        async for tenant_id, correlation_id in source.correlations():
            content = await export_bundle(source, tenant_id, correlation_id)
            assert await import_bundle(target, read_bundle(content), unfinished=True)
            assert await export_bundle(target, tenant_id, correlation_id) == content
            for head in await source.heads(tenant_id, correlation_id):
                assert await target.rows(tenant_id, head.stream_id) == await source.rows(
                    tenant_id, head.stream_id
                )
            carried += 1
        assert carried == scene.CORRELATIONS
        assert await target.count_events() == await source.count_events()
    assert await scene.findings(tmp_path / "target.db") == []


async def test_a_bundle_is_proven_without_a_store(pristine: Path) -> None:
    content = await exported(pristine)
    bundle = read_bundle(content)
    assert bundle.tenant_id == scene.TENANT
    assert bundle.events == content.count(b"\n") - 1 == 24
    assert len(bundle.runs) == 1


async def test_every_changed_byte_is_refused(pristine: Path) -> None:
    content = await exported(pristine)
    random = Random(1)
    for offset in range(len(content)):
        changed = bytearray(content)
        changed[offset] ^= random.randrange(1, 256)
        with pytest.raises(BundleInvalid):
            read_bundle(bytes(changed))


async def test_every_changed_bit_of_the_manifest_is_refused(pristine: Path) -> None:
    content = await exported(pristine)
    for offset in range(content.index(b"\n") + 1):
        for bit in range(8):
            changed = bytearray(content)
            changed[offset] ^= 1 << bit
            with pytest.raises(BundleInvalid):
                read_bundle(bytes(changed))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"{}",
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content + b"\n",
        lambda content: content.replace(b"\n", b"\r\n"),
        lambda content: b"\n" + content,
        lambda content: b"".join(content.splitlines(keepends=True)[:-1]),
        lambda content: content + content,
        lambda content: content.replace(b'"2.0.0"', b'"3.0.0"', 1),
        lambda content: content.replace(b'"2.0.0"', b'"2.9.0"', 1),
        lambda content: content.replace(b'"2.0.0"', b'"2.0"', 1),
        lambda content: content.replace(b'"events":', b'"events" :', 1),
    ],
)
async def test_other_damage_is_refused(damage: object, pristine: Path) -> None:
    content = await exported(pristine)
    assert callable(damage)
    with pytest.raises(BundleInvalid):
        read_bundle(damage(content))


@pytest.mark.parametrize("version", ["2.0.1", "2.10.0", "3.0.0", "1.9.9", "2.0", "two"])
async def test_a_bundle_of_a_contract_that_we_do_not_know_is_refused(
    version: str, pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole as it may be: what wrote it knew more than we do."""
    streams = read_bundle(await exported(pristine)).streams
    monkeypatch.setattr("runstone.core.bundle.CONTRACT_VERSION", version)
    with pytest.raises(BundleInvalid, match=f"written under contract {version}"):
        read_bundle(pack(streams))


async def test_a_bundle_of_an_older_contract_is_read(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§VER-7"""
    content = await exported(pristine)
    monkeypatch.setattr(bundles, "CONTRACT_VERSION", "2.1.0")
    assert read_bundle(content).events == 24


async def test_importing_again_changes_nothing(pristine: Path, tmp_path: Path) -> None:
    """Unfinished runs among them: there is nothing to refuse where nothing is to be done."""
    bundle = read_bundle(await exported(pristine, "RUNNING"))
    async with await SqliteStore.open(tmp_path / "target.db", inline=True) as target:
        assert await import_bundle(target, bundle, unfinished=True) is True
        assert await import_bundle(target, bundle) is False
        assert await target.count_events() == bundle.events


async def test_unfinished_runs_are_refused_unless_told_otherwise(pristine: Path, tmp_path: Path) -> None:
    bundle = read_bundle(await exported(pristine, "RUNNING"))
    async with await SqliteStore.open(tmp_path / "target.db", inline=True) as target:
        with pytest.raises(CommandRefused, match="--unfinished"):
            await import_bundle(target, bundle)
        assert await target.count_events() == 0
        await import_bundle(target, bundle, unfinished=True)
        claims = await target.claim(
            "w", handlers=["handler"], code_rank="zzz", limit=9, lease=timedelta(seconds=1)
        )
    assert len(claims) == 1
    assert claims[0].run_id in bundle.runs


async def test_an_ended_run_with_an_open_effect_is_unfinished(tmp_path: Path) -> None:
    """Its dispatcher here would send what the other one sends."""
    clock = VirtualClock()
    error = ErrorInfo(category="APPLICATION", code="E", message="m")
    story: list[tuple[commands.Command, ...]] = [
        (
            commands.ReceiveSignal(
                signal_type="EMAIL",
                source_channel="c",
                source_id="s",
                source_hash="0" * 64,
                normalized_payload=Raw(b"1"),
                received_at=clock.now(),
            ),
            commands.CreateRun(plan_id="p"),
            commands.StartRun(),
            commands.StartStep(step_key="s", step_type="EFFECT_REQUEST"),
            commands.RequestEffect(step_key="s", effect_type="SEND_EMAIL", spec={}),
            commands.CompleteStep(step_key="s", output=OutputResult(effect_spec=Raw(b"{}"))),
            commands.FailRun(error=error),
        )
    ]
    async with (
        await SqliteStore.open(tmp_path / "source.db", inline=True) as source,
        await SqliteStore.open(tmp_path / "target.db", inline=True) as target,
    ):
        case = await scene.tell(source, clock, SeededIds(1, clock), story)
        assert case.run.run is not None
        assert case.run.run.status == "FAILED"
        bundle = read_bundle(await export_bundle(source, scene.TENANT, case.run.run.correlation_id))
        with pytest.raises(CommandRefused, match="effect"):
            await import_bundle(target, bundle)
        assert await import_bundle(target, bundle, unfinished=True)


async def histories(seed: int) -> list[bytes]:
    """Bundles of the same run after each of its commits, the last first."""
    clock = VirtualClock()
    found: list[bytes] = []
    async with await SqliteStore.open(":memory:", clock=clock) as store:
        for decision in five_step_history(tenant_id=scene.TENANT, clock=clock, new_id=SeededIds(seed, clock)):
            await store.commit(decision.commit)
            run = decision.case.run.run
            assert run is not None
            found.append(await export_bundle(store, scene.TENANT, run.correlation_id))
    return found[::-1]


async def test_other_content_under_the_same_ids_is_refused(tmp_path: Path) -> None:
    """The same ids a microsecond earlier; and the same run, longer or shorter."""
    whole, *_, early = await histories(1)
    clock = VirtualClock(START - timedelta(microseconds=1))
    async with (
        await SqliteStore.open(":memory:", clock=clock) as elsewhere,
        await SqliteStore.open(tmp_path / "target.db", inline=True) as target,
    ):
        for decision in five_step_history(tenant_id=scene.TENANT, clock=clock, new_id=SeededIds(1, clock)):
            await elsewhere.commit(decision.commit)
        run = decision.case.run.run
        assert run is not None
        other = await export_bundle(elsewhere, scene.TENANT, run.correlation_id)
        await import_bundle(target, read_bundle(whole))
        before = await target.count_events()
        for content, said in ((other, "run_seq 1 has other content"), (early, "the store has")):
            with pytest.raises(CommitRefused, match=said):
                await import_bundle(target, read_bundle(content), unfinished=True)
        assert await target.count_events() == before
    async with await SqliteStore.open(":memory:") as target:
        await import_bundle(target, read_bundle(early), unfinished=True)
        with pytest.raises(CommitRefused, match="the store has"):
            await import_bundle(target, read_bundle(whole))


async def test_a_part_of_a_bundle_that_is_there_is_a_conflict(pristine: Path, store_path: Path) -> None:
    content = await exported(pristine, "RUNNING")
    with Behind(store_path) as connection:
        (child,) = connection.execute("SELECT id FROM runs WHERE plan_id = 'child'").fetchone()
        connection.execute("DELETE FROM streams WHERE id = ?", (child,))
    async with await SqliteStore.open(store_path, inline=True) as target:
        with pytest.raises(CommitRefused, match=f"stream {child} is not the same here: the store lacks it"):
            await import_bundle(target, read_bundle(content), unfinished=True)


class Late(SqliteStore):
    """A store in which somebody else is faster: what was not there is there when it is written."""

    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> None:
        return None


async def test_another_import_that_was_faster_is_met_with_the_same_answers(tmp_path: Path) -> None:
    whole, *_, early = map(read_bundle, await histories(1))
    async with await Late.open(tmp_path / "target.db", inline=True) as target:
        assert await import_bundle(target, early, unfinished=True) is True
        assert await import_bundle(target, early, unfinished=True) is False
        with pytest.raises(CommitRefused, match="somebody wrote to it just now"):
            await import_bundle(target, whole)


async def test_a_bundle_holds_one_correlation(pristine: Path) -> None:
    async with await SqliteStore.open(pristine, inline=True) as store:
        correlations = [found async for found in store.correlations(scene.TENANT)]
        streams = [stream for found in correlations for stream in await store.correlation(*found)]
    with pytest.raises(BundleInvalid, match="alone"):
        read_bundle(pack(streams))


async def test_a_source_id_that_another_signal_has_is_refused(tmp_path: Path) -> None:
    clock = VirtualClock()
    receive = commands.ReceiveSignal(
        signal_type="EMAIL",
        source_channel="c",
        source_id="the same",
        source_hash="0" * 64,
        normalized_payload=Raw(b"1"),
        received_at=clock.now(),
    )
    async with (
        await SqliteStore.open(tmp_path / "source.db", inline=True) as source,
        await SqliteStore.open(tmp_path / "target.db", inline=True) as target,
    ):
        case = await scene.tell(source, clock, SeededIds(1, clock), [(receive,)])
        await scene.tell(target, clock, SeededIds(2, clock), [(receive,)])
        assert case.signal.signal is not None
        content = await export_bundle(source, scene.TENANT, case.signal.signal.correlation_id)
        with pytest.raises(CommitRefused, match="source_id"):
            await import_bundle(target, read_bundle(content))
        assert await target.count_events() == 1


async def test_a_damaged_log_is_not_exported(store_path: Path) -> None:
    with Behind(store_path) as connection:
        connection.execute("UPDATE orchestration_events SET actor = 'mallory' WHERE run_seq = 2")
    with pytest.raises(BundleInvalid, match="runstone verify"):
        await exported(store_path)


async def test_an_unknown_correlation_is_not_found(pristine: Path) -> None:
    async with await SqliteStore.open(pristine, inline=True) as store:
        with pytest.raises(NotFound):
            await export_bundle(store, scene.TENANT, scene.OTHER_TENANT)
