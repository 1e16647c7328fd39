"""Files that were damaged: whatever is read is right, or it is an error."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from runstone.errors import StoreCorrupt
from runstone.ports.store import Place
from runstone.stores.sqlite import SqliteStore, reads
from runstone.testing.clock import VirtualClock
from tests.integration.stores.sqlite import scene

PAGE = 4096


async def everything(path: Path) -> list[Any]:
    """All that can be read from a store."""
    async with await SqliteStore.open(path, inline=True) as store:
        found: list[Any] = [
            await store.feed(limit=10_000),
            await store.list_runs(scene.TENANT),
            await store.list_effects(scene.TENANT),
        ]
        async for tenant_id, correlation_id in store.correlations():
            for stream in await store.correlation(tenant_id, correlation_id):
                stream_id = stream.head.stream_id
                found += [
                    stream,
                    await store.rows(tenant_id, stream_id),
                    await store.load_many([Place(tenant_id, stream_id)]),
                    await store.fetch(tenant_id, stream_id),
                    await store.snapshot(tenant_id, stream_id),
                    await store.get_run(tenant_id, stream_id),
                    await store.get_signal(tenant_id, stream_id),
                ]
        return found


@pytest.fixture
async def whole(path: Path) -> bytes:
    """The bytes of a store's file, some tables of which have several pages."""
    async with await SqliteStore.open(path, inline=True) as store:
        for seed in range(4):
            await scene.write(store, scene.usual(seed))
        await scene.write(store, [*scene.wild(1), scene.received(1, payload=scene.large(20_000))])
    return scene.content(path)


@pytest.mark.parametrize("filling", ["noise", "zeros", "ones"])
async def test_a_page_of_rubbish_is_an_error_or_does_not_matter(
    filling: str, whole: bytes, path: Path
) -> None:
    right = await everything(path)
    noise = Random(7)
    found_out = 0
    for page in range(0, len(whole), PAGE):
        rubbish = {"noise": noise.randbytes(PAGE), "zeros": bytes(PAGE), "ones": b"\xff" * PAGE}[filling]
        scene.overwrite(path, whole[:page] + rubbish + whole[page + PAGE :])
        try:
            assert await everything(path) == right, f"page {page // PAGE + 1}"
        except StoreCorrupt:
            found_out += 1
    assert found_out > 20


NO_TEXT = "CAST(x'22ff22' AS TEXT)"
LOST = "CAST(x'22000022' AS TEXT)"
NEVER = str(2**62)


def damage(path: Path, table: str, column: str, value: str, where: str = "true") -> None:
    """Gives a column of these rows a value, past all that guards it."""
    with closing(sqlite3.connect(path)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}")
        connection.commit()


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("orchestration_events", "actor", NO_TEXT),
        ("orchestration_events", "event_data", NO_TEXT),
        ("orchestration_events", "event_data", LOST),
        ("orchestration_events", "occurred_at", NEVER),
        ("streams", "head", NO_TEXT),
        ("streams", "last_at", NEVER),
    ],
)
async def test_who_loads_many_streams_is_told_as_who_loads_one(
    table: str, column: str, value: str, inline: bool, path: Path
) -> None:
    commits = scene.usual(1)[:3]
    async with await SqliteStore.open(path) as store:
        await scene.write(store, commits)
    damage(path, table, column, value)
    stream_id = commits[-1].writes[-1].stream_id
    async with await SqliteStore.open(path, inline=inline) as store:
        with pytest.raises(StoreCorrupt, match=column) as one:
            await store.load(scene.TENANT, stream_id)
        with pytest.raises(StoreCorrupt, match=column) as many:
            await store.load_many([Place(scene.TENANT, stream_id)])
        assert str(many.value) == str(one.value)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    ("column", "value", "mended"),
    [("effect_spec", NO_TEXT, "'{}'"), ("effect_spec", LOST, "'{}'"), ("requested_at", NEVER, "0")],
)
async def test_a_claim_says_what_is_damaged_and_can_be_put_back(
    column: str, value: str, mended: str, inline: bool, path: Path
) -> None:
    """It is read when it is taken already: it is the worker's own then, who knows nothing of it (§OUT-76)."""
    clock = VirtualClock()
    async with await SqliteStore.open(path) as store:
        effect = await scene.asked_for(store)
    damage(path, "effects", column, value)
    clock.set(effect.requested_at)
    async with await SqliteStore.open(path, inline=inline, clock=clock) as store:
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match=column):
                await store.claim_effects("w", types=[effect.effect_type], limit=9, lease=scene.LEASE)
            assert await store.release_stray_effects("w", keeping=[], since=clock.now()) == 1
        damage(path, "effects", column, mended)
        (claim,) = await store.claim_effects("w", types=[effect.effect_type], limit=9, lease=scene.LEASE)
        assert claim.claims == 1, "what nobody was told of does not count"


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("value", [NO_TEXT, LOST])
async def test_a_damaged_effect_holds_up_no_other(
    value: str, inline: bool, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """§OUT-79: those that are whole are claimed; it stays leased, and is not claimed at once again."""
    clock = VirtualClock()
    async with await SqliteStore.open(path) as store:
        for seed in (1, 2, 3):
            await scene.ask(store, seed)
        effects = await store.list_effects(scene.TENANT)
    first, damaged, last = sorted(effect.id for effect in effects)
    damage(path, "effects", "effect_spec", value, f"id = '{damaged}'")
    clock.set(max(effect.requested_at for effect in effects))
    async with await SqliteStore.open(path, inline=inline, clock=clock) as store:
        types = [effects[0].effect_type]
        claims = await store.claim_effects("w", types=types, limit=9, lease=scene.LEASE)
        assert sorted(claim.effect.id for claim in claims) == [first, last]
        assert list(claims) == sorted(claims, key=reads.due)
        assert damaged in caplog.text
        assert await store.claim_effects("other", types=types, limit=9, lease=scene.LEASE) == []
        held = await store.extend_effects("w", [first, damaged, last], lease=scene.LEASE)
        assert sorted(claim.effect.id for claim in held) == [first, last]


def test_what_sqlite_says_of_a_number_without_end_is_damage() -> None:
    """A damaged page may hold one, whatever the column's type; JSON may not."""
    assert reads.streams_of(("[]", "[[0,Inf]]"), []) is None
    with pytest.raises(StoreCorrupt, match="effects cannot be read"):
        reads.claims_of("[[1,Inf]]")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
async def test_a_file_that_was_cut_short_is_found_out(kept: float, whole: bytes, path: Path) -> None:
    scene.overwrite(path, whole[: int(len(whole) * kept) // PAGE * PAGE])
    with pytest.raises(StoreCorrupt):
        await everything(path)


async def test_a_write_to_a_damaged_page_changes_nothing(whole: bytes, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'streams'")
    start = (root - 1) * PAGE
    damaged = whole[:start] + bytes(PAGE) + whole[start + PAGE :]
    scene.overwrite(path, damaged)
    async with await SqliteStore.open(path) as store:
        with pytest.raises(StoreCorrupt, match="Restore a backup"):
            await store.commit(scene.received(99))
    assert scene.content(path) == damaged


async def test_a_log_that_was_cut_short_loses_nothing_but_its_end(path: Path, tmp_path: Path) -> None:
    """Where a log ends in the middle of a commit, that commit was never acknowledged."""
    async with await SqliteStore.open(path) as store:
        await scene.write(store, scene.usual(1))
        file, log = scene.content(path), scene.content(scene.wal(path))
    lengths = []
    for place in range(20):
        copy = tmp_path / f"{place}.db"
        scene.overwrite(copy, file)
        scene.overwrite(scene.wal(copy), log[: len(log) * place // 19])
        async with await SqliteStore.open(copy, inline=True) as store:
            assert await scene.problems(store) == []
            lengths.append(await store.count_events())
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5
    assert lengths[-1] == sum(len(commit.events) for commit in scene.usual(1))
