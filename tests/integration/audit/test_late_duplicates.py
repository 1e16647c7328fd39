"""What comes late for a run that was archived: known, answered, and not done again (§STO-52)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.audit.archive import Archive
from runstone.audit.bundles import import_bundle, read_bundle
from runstone.audit.retention import rest, retain
from runstone.core.ids import DEFAULT_TENANT
from runstone.errors import NotFound, RunArchived
from runstone.ports.clock import SystemClock
from runstone.ports.store import Store

PATIENCE = 60.0
NOW = timedelta(0)


class Desk:
    """An app that counts what it does."""

    def __init__(self) -> None:
        self.app = rs.App("desk")
        self.calls: list[str] = []

        @self.app.on(rs.Webhook)
        async def answer(run: rs.Run, hook: rs.Webhook) -> str:
            self.calls.append(hook.webhook_id)
            return hook.webhook_id.upper()

        @self.app.on()
        async def start(run: rs.Run, text: str) -> str:
            self.calls.append(text)
            return text.upper()

        self.start: Any = start
        self.hook = rs.Webhook(webhook_id="w-1", event_type="paid", payload={"amount": 1})

    async def send(self, hook: rs.Webhook | None = None) -> rs.Handle[Any]:
        return await self.app.send(hook or self.hook, channel="shop", source_id="w-1")


async def archive_everything(store: Store, folder: Path) -> None:
    now = SystemClock().now()
    done = [one async for one in retain(store, Archive(folder), rest(now, NOW, NOW), now=now)]
    assert done
    assert all(one.removed for one in done)


async def test_a_signal_that_comes_again_is_answered_as_the_first(tmp_path: Path) -> None:
    desk = Desk()
    async with desk.app.running(str(tmp_path / "s.db")):
        first = await desk.send()
        assert await asyncio.wait_for(first.result(), PATIENCE) == "W-1"
        await archive_everything(desk.app.runtime.store, tmp_path / "archive")
        again = await desk.send()
        assert again.id == first.id
        with pytest.raises(RunArchived, match="archive"):
            await again.result()
        with pytest.raises(RunArchived):
            await again.status()
        with pytest.raises(RunArchived):
            await again.paused()
        with pytest.raises(RunArchived):
            await again.cancel()
        assert await desk.app.runtime.store.count_events() == 0
    assert desk.calls == ["w-1"]


async def test_other_content_under_its_id_is_still_a_conflict(tmp_path: Path) -> None:
    desk = Desk()
    async with desk.app.running(str(tmp_path / "s.db")):
        first = await desk.send()
        await asyncio.wait_for(first.result(), PATIENCE)
        await archive_everything(desk.app.runtime.store, tmp_path / "archive")
        with pytest.raises(rs.SignalConflict, match="came before with other content"):
            await desk.send(rs.Webhook(webhook_id="w-1", event_type="paid", payload={"amount": 2}))
    assert desk.calls == ["w-1"]


async def test_another_value_under_its_key_is_still_a_conflict(tmp_path: Path) -> None:
    desk = Desk()
    async with desk.app.running(str(tmp_path / "s.db")):
        first = await desk.app.start(desk.start, "a", key="order-7")
        await asyncio.wait_for(first.result(), PATIENCE)
        await archive_everything(desk.app.runtime.store, tmp_path / "archive")
        with pytest.raises(rs.SignalConflict, match=r"^Key 'order-7' belongs to a run with .* archived in"):
            await desk.app.start(desk.start, "b", key="order-7")


async def test_a_key_finds_the_run_that_was_archived(tmp_path: Path) -> None:
    desk = Desk()
    async with desk.app.running(str(tmp_path / "s.db")):
        first = await desk.app.start(desk.start, "a", key="order-7")
        await asyncio.wait_for(first.result(), PATIENCE)
        await archive_everything(desk.app.runtime.store, tmp_path / "archive")
        again = await desk.app.start(desk.start, "a", key="order-7")
        assert again.id == first.id
        found = await desk.app.find(desk.start, "order-7")
        assert found is not None
        with pytest.raises(RunArchived):
            await found.result()
        assert await desk.app.find(desk.start, "order-8") is None
    assert desk.calls == ["a"]


async def test_a_run_that_never_was_is_not_said_to_be_archived(tmp_path: Path) -> None:
    desk = Desk()
    async with desk.app.running(str(tmp_path / "s.db")):
        nobody = desk.app.handle(desk.start, "00000000-0000-7000-8000-00000000000f")
        with pytest.raises(NotFound) as told:
            await nobody.status()
        assert not isinstance(told.value, RunArchived)


async def test_what_was_brought_back_answers_again(tmp_path: Path) -> None:
    desk = Desk()
    async with desk.app.running(str(tmp_path / "s.db")):
        store = desk.app.runtime.store
        first = await desk.send()
        await asyncio.wait_for(first.result(), PATIENCE)
        await archive_everything(store, tmp_path / "archive")
        (path,) = (tmp_path / "archive").rglob("*.ndjson")
        assert await import_bundle(store, read_bundle(path.read_bytes()))
        again = await desk.send()
        assert again.id == first.id
        assert await asyncio.wait_for(again.result(), PATIENCE) == "W-1"
        assert await store.find_tombstone(DEFAULT_TENANT, stream_id=first.id) is None
    assert desk.calls == ["w-1"]
