"""Telemetry over real HTTP: told of runs and commits, asked for them, and never in a run's way."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runstone.core.chain import event_bytes
from runstone.core.events import Event
from runstone.errors import RunstoneError, SettingsInvalid
from runstone.telemetry.http import HttpTelemetry
from tests.integration.pipeline.press import COMMIT, Press, opened
from tests.servers.telemetry import serving


async def run_told(root: Path, telemetry: HttpTelemetry) -> list[Event]:
    async with opened(root, telemetry=telemetry) as pipelines:
        outcome = await pipelines.run(Press().pipeline)
        events = await pipelines.events(outcome.run_id)
    await telemetry.close()
    assert outcome.run_state == "DONE"
    return events


async def test_a_run_is_told_and_can_be_asked_for_by_run_and_by_commit(tmp_path: Path) -> None:
    """§PIP-42"""
    with serving() as endpoint:
        telemetry = HttpTelemetry(endpoint.url, grace=30)
        events = await run_told(tmp_path, telemetry)
        run_id = events[0].stream_id
        told = await asyncio.to_thread(telemetry.of_run, run_id)
        assert list(map(event_bytes, told)) == list(map(event_bytes, events))
        (commit,) = await asyncio.to_thread(telemetry.of_commit, COMMIT)
        assert (commit.run_id, commit.event_type) == (run_id, "COMMIT_RECORDED")
        assert await asyncio.to_thread(telemetry.of_commit, "d" * 40) == []
    assert telemetry.lost == 0


async def test_events_go_in_batches(tmp_path: Path) -> None:
    with serving() as endpoint:
        events = await run_told(tmp_path, HttpTelemetry(endpoint.url, grace=30))
        assert len(endpoint.events) == len(events)
        assert endpoint.requests <= len(events)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def test_an_endpoint_that_is_down_never_stops_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = HttpTelemetry(f"http://127.0.0.1:{unused_port()}", grace=0.05)
    events = await run_told(tmp_path, telemetry)
    assert telemetry.lost == len(events)
    assert any("does not answer" in record.message for record in caplog.records)
    assert any(f"did not take {len(events)} events" in record.message for record in caplog.records)


async def test_one_that_answers_with_errors_is_tried_again(tmp_path: Path) -> None:
    with serving() as endpoint:
        endpoint.failing = True
        telemetry = HttpTelemetry(endpoint.url, grace=30)
        async with opened(tmp_path, telemetry=telemetry) as pipelines:
            outcome = await pipelines.run(Press().pipeline)
            events = await pipelines.events(outcome.run_id)
        await asyncio.to_thread(wait_until, lambda: endpoint.requests > 0)
        endpoint.failing = False
        await asyncio.to_thread(wait_until, lambda: len(endpoint.events) == len(events))
        await telemetry.close()
        assert list(endpoint.events) == [event.id for event in events]
        assert telemetry.lost == 0


async def test_one_that_never_answers_holds_nobody_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        telemetry = HttpTelemetry(
            f"http://127.0.0.1:{silent.getsockname()[1]}", grace=0.05, timeout=0.2, queue=10
        )
        events = await run_told(tmp_path, telemetry)
    assert telemetry.lost == len(events)


async def test_what_was_missed_is_told_when_the_run_is_resumed(tmp_path: Path) -> None:
    async with opened(tmp_path) as pipelines:
        run_id = (await pipelines.run(Press().pipeline)).run_id
    with serving() as endpoint:
        for _ in range(2):
            telemetry = HttpTelemetry(endpoint.url, grace=30)
            async with opened(tmp_path, telemetry=telemetry) as pipelines:
                await pipelines.resume(Press().pipeline, run_id)
                events = await pipelines.events(run_id)
            await telemetry.close()
        assert list(endpoint.events) == [event.id for event in events]


async def test_asking_an_endpoint_that_is_down(tmp_path: Path) -> None:
    telemetry = HttpTelemetry(f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(RunstoneError, match="cannot be asked"):
        await asyncio.to_thread(telemetry.of_run, "x")
    await telemetry.close()


@pytest.mark.parametrize("url", ["", "ftp://x", "file:///etc/passwd", "http://", "localhost:80"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(SettingsInvalid, match="no telemetry endpoint"):
        HttpTelemetry(url)
