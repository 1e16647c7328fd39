"""What becomes of a runtime one of whose parts ends that nobody told to."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest

import runstone as rs
from runstone.outbox.services import Service, as_executor
from runstone.ports.clock import SystemClock
from runstone.runtime import Runtime
from runstone.testing.memory import MemoryData, MemoryStore


class Notice(rs.EffectSpec, frozen=True, kw_only=True):
    EFFECT_TYPE: ClassVar[str] = "NOTIFY_USER"


async def send(spec: Notice) -> None: ...


async def nothing(run: rs.Run) -> None: ...


def runtime_on(store: MemoryStore) -> Runtime:
    app = rs.App("desk")
    app.on()(nothing)
    services = [Service(spec=Notice, executor=as_executor(send))]
    return Runtime(store, app.handlers, services=services, grace=timedelta(0))


@pytest.mark.parametrize(
    ("part", "statement"),
    [
        ("worker", "claim"),
        ("worker", "heartbeat"),
        ("dispatcher", "claim_effects"),
        ("scheduler", "due_schedules"),
    ],
)
async def test_a_part_that_ends_is_heard_of(
    part: str, statement: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(MemoryData(), clock=SystemClock())

    async def mistaken(*given: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(store, statement, mistaken)
    runtime = runtime_on(store)
    if statement == "heartbeat":
        monkeypatch.setattr(runtime.worker, "_lease", timedelta(milliseconds=1))
    runtime.start()
    async with asyncio.timeout(60):
        await runtime.broken.wait()
    assert f"the {part} has ended" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(ZeroDivisionError):
        await runtime.stop()
    assert runtime.threads is not None
    with pytest.raises(RuntimeError, match="shutdown"):
        runtime.threads.submit(print)


async def test_one_that_is_told_to_stop_is_not_broken() -> None:
    runtime = runtime_on(MemoryStore(MemoryData(), clock=SystemClock()))
    runtime.start()
    await asyncio.sleep(0)
    await runtime.stop()
    assert not runtime.broken.is_set()
