"""Runs of five steps with DBOS on SQLite. Executed by the interpreter of DBOS's own environment.

For each line of JSON with `path`, `style`, `at_once` and `runs` it writes one: how many seconds
the runs took, what the file holds then, and how durable its connections were.

DBOS leaves SQLite's settings alone: a rollback journal with `synchronous=FULL`. Here its file is
in WAL mode, where it is faster, and every connection is told `synchronous=FULL`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import version
from time import perf_counter
from typing import Any

from dbos import DBOS  # type: ignore[import-not-found]
from sqlalchemy import Engine, event  # type: ignore[import-not-found]

STEPS = 5
_settings: dict[str, Any] = {}


def _answer(number: int) -> dict[str, Any]:
    return {"value": number, "text": "what a specialist has to say about it"}


async def _answer_async(number: int) -> dict[str, Any]:
    return _answer(number)


ask = DBOS.step(name="ask")(_answer)
ask_async = DBOS.step(name="ask_async")(_answer_async)


def _five_steps(question: int) -> str:
    for number in range(STEPS):
        ask(number)
    return "done"


async def _five_steps_async(question: int) -> str:
    for number in range(STEPS):
        await ask_async(number)
    return "done"


five_steps = DBOS.workflow(name="five_steps")(_five_steps)
five_steps_async = DBOS.workflow(name="five_steps_async")(_five_steps_async)


def _make_durable(connection: Any, record: Any) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    for name in ("journal_mode", "synchronous"):
        (_settings[name],) = connection.execute(f"PRAGMA {name}").fetchone()


def in_threads(at_once: int, runs: int) -> float:
    """Each run called in a thread of its own: what DBOS does fastest when it is alone."""
    five_steps(0)
    with ThreadPoolExecutor(at_once) as pool:
        began = perf_counter()
        list(pool.map(five_steps, range(runs)))
        return perf_counter() - began


def in_tasks(at_once: int, runs: int) -> float:
    """Runs started and awaited on one event loop."""
    return asyncio.run(_clients(at_once, runs))


async def _clients(at_once: int, runs: int) -> float:
    await _client(iter((0,)))
    questions = iter(range(runs))
    began = perf_counter()
    await asyncio.gather(*(_client(questions) for _ in range(at_once)))
    return perf_counter() - began


async def _client(questions: Iterator[int]) -> None:
    for question in questions:
        handle = await DBOS.start_workflow_async(five_steps_async, question)
        await handle.get_result()


STYLES = {"threads": in_threads, "tasks": in_tasks}


def take_round(path: str, style: str, at_once: int, runs: int) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    DBOS(config={"name": "peer", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    DBOS.launch()
    try:
        seconds = STYLES[style](at_once, runs)
    finally:
        DBOS.destroy()
    return {"seconds": seconds, "version": version("dbos"), **_settings, **_held(path)}


def _held(path: str) -> dict[str, int]:
    """What became durable, the run that warmed it up left out."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'), "
            "(SELECT count(*) FROM operation_outputs)"
        )
        ended, steps = found.fetchone()
    return {"ended": ended - 1, "steps": steps - STEPS}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    event.listen(Engine, "connect", _make_durable)
    for line in sys.stdin:
        answers.write(json.dumps(take_round(**json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
