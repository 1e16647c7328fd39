"""What a worker logs of exceptions that users' code raised: history keeps their text, and no traceback."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import runstone as rs
from tests.integration.engine.lab import FAST, within

app = rs.App("shaky", version="1")


NOBODY: dict[int, str] = {}


def deep(number: int) -> str:
    return NOBODY[number]


@app.tool(retry=rs.Retry(max_attempts=2, initial=rs.seconds(0.001)))
async def look_up(number: int) -> str:
    return deep(number)


@app.specialist
def judge(number: int) -> str:
    return deep(number)


@app.tool(retry=rs.Retry(max_attempts=2, initial=rs.seconds(0.001)))
async def knows_why() -> None:
    if rs.current_step().logical_attempt == 1:
        raise rs.RetryableError("not now")
    raise rs.TerminalError("the account is closed")


@app.on()
async def looks_up(run: rs.Run, number: int) -> str:
    return await run.call(look_up, number)


@app.on()
async def asks(run: rs.Run, number: int) -> str:
    return await run.call(judge, number)


@app.on()
async def stumbles(run: rs.Run, number: int) -> str:
    return deep(number)


@app.on()
async def gives_up(run: rs.Run, number: int) -> None:
    await run.call(knows_why)


async def failed(handler: rs.Handler[int, Any], path: str) -> str:
    """The id of a run of it that has failed."""
    async with app.running(path, poll=FAST):
        handle = await app.start(handler, 7)
        with pytest.raises(rs.RunFailed):
            await within(handle.result())
        return handle.id


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name == "runstone.execution" and one.levelno == level]


def raised_by(record: logging.LogRecord) -> list[str]:
    """The functions that its traceback leads through."""
    assert record.exc_info is not None
    frames, trace = [], record.exc_info[2]
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return frames


async def test_each_attempt_at_a_step_tells_where_it_failed(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await failed(looks_up, path)
    first, second = told(caplog, logging.WARNING)
    where = f"run {run_id} of looks_up: attempt"
    assert first.getMessage() == f"{where} 1 at look_up#1 will be tried again: 7 (KeyError)"
    assert second.getMessage() == f"{where} 2 at look_up#1 failed: 7 (KeyError)"
    for record in (first, second):
        assert raised_by(record)[-2:] == ["look_up", "deep"]


async def test_a_plain_function_tells_where_it_failed(path: str, caplog: pytest.LogCaptureFixture) -> None:
    run_id = await failed(asks, path)
    (record,) = told(caplog, logging.WARNING)
    assert record.getMessage() == f"run {run_id} of asks: attempt 1 at judge#1 failed: 7 (KeyError)"
    assert raised_by(record)[-2:] == ["judge", "deep"]


async def test_a_handler_tells_where_it_failed(path: str, caplog: pytest.LogCaptureFixture) -> None:
    run_id = await failed(stumbles, path)
    (record,) = told(caplog, logging.WARNING)
    assert record.getMessage() == f"run {run_id} of stumbles: its handler failed: 7 (KeyError)"
    assert raised_by(record)[-2:] == ["stumbles", "deep"]


async def test_what_was_raised_on_purpose_is_one_line_and_no_warning(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "runstone.execution")
    run_id = await failed(gives_up, path)
    assert told(caplog, logging.WARNING) == []
    again, closed, last = told(caplog, logging.INFO)
    assert "attempt 1 at knows_why#1 will be tried again: not now" in again.getMessage()
    assert "attempt 2 at knows_why#1 failed: the account is closed" in closed.getMessage()
    assert last.getMessage().startswith(
        f"run {run_id} of gives_up: its handler failed: knows_why#1: the account"
    )
    assert not any(record.exc_info for record in (again, closed, last))
