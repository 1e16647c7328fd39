"""Values on their way through the log: whatever a user's annotations say, or a clear refusal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from pydantic import BaseModel

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from tests.integration.engine.lab import data, status, types, within


class Line(msgspec.Struct, frozen=True):
    sku: str
    count: int


@dataclass
class Basket:
    lines: list[Line]
    at: datetime


class Model(BaseModel):
    name: str


async def test_structs_dataclasses_and_models_come_back_as_what_they_were(path: str) -> None:
    app = rs.App("desk")
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)

    @app.tool
    async def count(basket: Basket) -> list[Line]:
        assert isinstance(basket, Basket)
        assert basket.at == moment
        return [Line(line.sku, line.count + 1) for line in basket.lines]

    @app.tool
    async def rename(model: Model) -> Model:
        assert isinstance(model, Model)
        return Model(name=model.name.upper())

    @app.on()
    async def handle(run: rs.Run, basket: Basket) -> Model:
        assert await run.call(count, basket) == [Line("a", 2)]
        renamed = await run.call(rename, Model(name="ada"))
        assert isinstance(renamed, Model)
        return renamed

    async with app.running(path):
        handle_ = await app.start(handle, Basket([Line("a", 1)], moment))
        result = await within(handle_.result())
        assert isinstance(result, Model)
        assert result.name == "ADA"


async def test_a_value_that_was_just_computed_looks_as_it_will_on_replay(path: str) -> None:
    app = rs.App("desk")

    @app.tool
    async def pair() -> Any:
        return (1, {"b": 2, "a": 1})

    @app.on()
    async def handle(run: rs.Run) -> Any:
        found = await run.call(pair)
        assert type(found) is list
        return found

    async with app.running(path):
        assert await within((await app.start(handle)).result()) == [1, {"a": 1, "b": 2}]


async def test_large_results_stand_once_in_their_events(path: str) -> None:
    app = rs.App("desk")

    @app.tool
    async def write(length: int) -> str:
        return "x" * length

    @app.on()
    async def handle(run: rs.Run, opening: str) -> str:
        text = await run.call(write, 100_000)
        await run.wait("go")
        return opening + text

    async with app.running(path, poll=0.02):
        handle_ = await app.start(handle, "y" * 5000)
        await status(handle_, "RUNNING")
        await handle_.answer("go")
        assert await within(handle_.result()) == "y" * 5000 + "x" * 100_000
        run = await handle_.status()
        assert run.result is not None
        assert len(bytes(run.result)) < 400


async def test_arguments_that_cannot_be_stored_say_where(path: str) -> None:
    app = rs.App("desk")

    @app.tool
    async def take(given: Any) -> None: ...

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            await run.call(take, {"a": [1, float("nan")]})
        except rs.RunstoneError as error:
            return str(error)
        return "taken"

    @app.on()
    async def careless(run: rs.Run) -> None:
        await run.call(take, {"deep": {"value": object()}})

    async with app.running(path):
        handle_ = await app.start(handle)
        assert "/given/a/1" in await within(handle_.result())
        assert "STEP_STARTED" not in await types(handle_)
        failing = await app.start(careless)
        await status(failing, "FAILED")
        (failed,) = await data(failing, "RUN_FAILED")
        assert failed["error"]["category"] == "VALIDATION"
        assert "/given/deep/value" in failed["error"]["message"]


async def test_results_that_cannot_be_stored_or_read_back_fail_the_step(path: str) -> None:
    app = rs.App("desk")

    @app.tool
    async def impossible() -> Any:
        return {"socket": object()}

    @app.tool
    async def liar() -> Line:
        return {"sku": 1}  # type: ignore[return-value]

    @app.on()
    async def handle(run: rs.Run) -> list[str]:
        codes = []
        for tool in (impossible, liar):
            try:
                await run.call(tool)
            except rs.StepFailed as failure:
                codes.append(failure.category)
        return codes

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == ["VALIDATION", "VALIDATION"]
        failed = await data(handle_, "STEP_FAILED")
        assert [event["error"]["code"] for event in failed] == ["INVALID_PAYLOAD", "INVALID_PAYLOAD"]
        assert "/socket" in failed[0]["error"]["message"]
        assert "STEP_COMPLETED" not in await types(handle_)


async def test_a_result_of_the_handler_that_cannot_be_stored_fails_the_run(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return {"number": 2**60}

    async with app.running(path):
        handle_ = await app.start(handle)
        await status(handle_, "FAILED")
        (failed,) = await data(handle_, "RUN_FAILED")
        assert failed["error"]["category"] == "VALIDATION"


async def test_an_input_that_does_not_fit_fails_the_run_and_not_the_worker(path: str) -> None:
    """As it is when a run was started with other code."""
    older, app = rs.App("desk"), rs.App("desk")

    @older.on(name="handle")
    async def handle_anything(run: rs.Run, line: Any) -> str:
        return str(line)

    @app.on()
    async def handle(run: rs.Run, line: Line) -> str:
        return line.sku

    async with older.running(path, worker=False):
        started = await older.start(handle_anything, {"sku": 7})
    async with app.running(path):
        bad = app.handle(handle, started.id)
        await status(bad, "FAILED")
        good = await app.start(handle, Line("a", 1))
        assert await within(good.result()) == "a"
        signal = await app.runtime.store.get_signal(DEFAULT_TENANT, (await bad.status()).signal_id)
        assert signal is not None
        assert signal.status == "FAILED"


async def test_nothing_is_a_value_too(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, value: int | None) -> str:
        return f"got {value}"

    async with app.running(path):
        assert await within((await app.start(handle, None)).result()) == "got None"
        assert await within((await app.start(handle, 3)).result()) == "got 3"
