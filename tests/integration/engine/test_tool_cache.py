"""Results that hold for a while: asked for once, recorded every time, apart for each tenant."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import runstone as rs
from runstone.engine.cache import ResultCache
from tests.integration.engine.lab import FAST, NOW, data, process, suspended, types, within

OTHER_TENANT = "018e0000-0000-7000-8000-000000000001"


async def test_a_cached_result_is_recorded_like_any_other(path: str) -> None:
    app = rs.App("desk")
    asked: list[str] = []

    @app.tool(cache_ttl=rs.minutes(5))
    async def look_up(order_id: str) -> dict[str, Any]:
        asked.append(order_id)
        return {"id": order_id, "asked": len(asked)}

    @app.on()
    async def handle(run: rs.Run, order_id: str) -> int:
        return int((await run.call(look_up, order_id))["asked"])

    async with app.running(path, poll=FAST):
        first = await app.start(handle, "a")
        assert await within(first.result()) == 1
        second = await app.start(handle, "a")
        assert await within(second.result()) == 1
        assert await within((await app.start(handle, "b")).result()) == 2
        assert await within((await app.start(handle, "a", tenant_id=OTHER_TENANT)).result()) == 3
        assert (await data(first, "TOOL_COMPLETED"))[0].get("cache_hit", False) is False
        (hit,) = await data(second, "TOOL_COMPLETED")
        assert hit["cache_hit"] is True
        assert hit["result"] == {"id": "a", "asked": 1}
    assert asked == ["a", "b", "a"]


async def test_results_without_a_lifetime_failures_and_old_results_are_not_kept(path: str) -> None:
    app = rs.App("desk")
    asked: list[str] = []

    @app.tool
    async def fresh() -> int:
        asked.append("fresh")
        return len(asked)

    @app.tool(cache_ttl=rs.seconds(0))
    async def stale() -> int:
        asked.append("stale")
        return len(asked)

    @app.tool(cache_ttl=rs.minutes(5), retry=rs.Retry(max_attempts=2, initial=rs.seconds(0)))
    async def failing() -> int:
        asked.append("failing")
        raise OSError

    @app.on()
    async def handle(run: rs.Run) -> None:
        for tool in (fresh, fresh, stale, stale):
            await run.call(tool)
        with suppress(rs.StepFailed):
            await run.call(failing)

    async with app.running(path):
        handle_ = await app.start(handle)
        await within(handle_.result())
        assert not any(call.get("cache_hit") for call in await data(handle_, "TOOL_COMPLETED"))
        assert (await types(handle_)).count("TOOL_FAILED") == 2
    assert asked == ["fresh", "fresh", "stale", "stale", "failing", "failing"]


async def test_replay_reads_the_record_and_does_not_ask_the_cache(path: str) -> None:
    app = rs.App("desk")
    asked: list[int] = []

    @app.tool(cache_ttl=rs.minutes(5))
    async def look_up() -> int:
        asked.append(1)
        return len(asked)

    @app.on()
    async def handle(run: rs.Run) -> list[int]:
        first = await run.call(look_up)
        await run.wait("go")
        return [first, await run.call(look_up)]

    async with app.running(path, grace=NOW, poll=FAST):
        await suspended(app, await app.start(handle, key="k"))
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await handle_.answer("go")
        assert await within(handle_.result()) == [1, 2], "the cache was lost with its process"


async def test_an_error_of_the_engines_own_gives_the_run_back_instead_of_hanging(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = rs.App("desk")
    errors: list[Exception] = [LookupError("a mistake in the cache")]
    find = ResultCache.find

    def stumble(cache: ResultCache, *asked: Any) -> Any:
        if errors:
            raise errors.pop()
        return find(cache, *asked)

    @app.tool(cache_ttl=rs.minutes(5))
    async def work() -> str:
        return "worked"

    @app.on()
    async def handle(run: rs.Run) -> str:
        return await run.call(work)

    monkeypatch.setattr(ResultCache, "find", stumble)
    async with process(app, path):
        assert await within((await app.start(handle)).result()) == "worked"
    assert "stops here: a mistake in the cache" in caplog.text
