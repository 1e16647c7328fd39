"""Results and their annotations: checked before they are history, and never again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.errors import InvalidPayload
from runstone.testing import Simulator, assert_replays, virtual_time
from tests.integration.engine.lab import FAST, data, types, within


def loose() -> rs.App:
    """The code of old: it promises nothing."""
    app = rs.App("desk")

    @app.on()
    async def count(run: rs.Run) -> Any:
        await run.decide("first", 1)
        return "many"

    return app


def strict() -> rs.App:
    """The code of now: its result is no number, as it says it is."""
    app = rs.App("desk")

    @app.on()
    async def count(run: rs.Run) -> int:
        await run.decide("first", 1)
        return "many"  # type: ignore[return-value]

    return app


async def test_a_result_that_is_not_what_the_handler_promises_fails_the_run(path: str) -> None:
    app = strict()
    async with app.running(path, poll=FAST):
        handle = await app.start(app.handlers["count"])
        with pytest.raises(rs.RunFailed, match="the result of count -> int: Expected `int`, got `str`"):
            await within(handle.result())
        (failed,) = await data(handle, "RUN_FAILED")
        assert failed["error"]["code"] == "INVALID_PAYLOAD"
        assert "RUN_HANDLER_RETURNED" not in await types(handle)


async def test_a_result_on_record_stands(path: str) -> None:
    old, new = loose(), strict()
    async with old.running(path, poll=FAST):
        handle = await old.start(old.handlers["count"], key="k")
        assert await within(handle.result()) == "many"
    async with new.running(path, poll=FAST):
        again = await new.find(new.handlers["count"], "k")
        assert again is not None
        assert (await again.status()).status == "COMPLETED"
        with pytest.raises(InvalidPayload, match="the result of count -> int: Expected `int`, got `str`"):
            await within(again.result())


@pytest.mark.parametrize("written_by", [loose, strict])
def test_old_histories_replay_whether_results_were_checked_then_or_not(
    written_by: Any, tmp_path: Path
) -> None:
    @virtual_time
    async def record() -> None:
        app = written_by()
        async with Simulator(app) as sim:
            await sim.start(app.handlers["count"])
            await sim.settle()
            sim.record(tmp_path)

    record()
    assert assert_replays(strict(), tmp_path) == 1
