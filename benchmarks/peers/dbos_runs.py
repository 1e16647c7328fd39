"""Runs of five steps with DBOS on SQLite or PostgreSQL. Executed by the interpreter of its own environment.

It is asked for rounds with `url`, `way`, `place`, `at_once` and `runs`, and says at last what the database
holds and how durable its connections were: the weakest of each setting, should they differ. With several
processes on one database, `place` makes each an executor of its own, which leaves the workflows of others
alone.

DBOS leaves SQLite's settings alone: a rollback journal with `synchronous=FULL`. Here its file is in WAL
mode, where it is faster, and every connection is told `synchronous=FULL`. On PostgreSQL it has as many
connections as runs are under way, at least its default of 20 and at most `CONNECTIONS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from time import perf_counter
from typing import Any

from dbos import DBOS  # type: ignore[import-not-found]
from sqlalchemy import (  # type: ignore[import-not-found]
    Engine,
    NullPool,
    create_engine,
    event,
    make_url,
    text,
)

from benchmarks.conversation import Conversation

STEPS = 5
DEFAULT_CONNECTIONS, CONNECTIONS = 20, 64
SETTINGS = {
    "sqlite": ("journal_mode", "synchronous"),
    "postgresql": ("fsync", "synchronous_commit", "full_page_writes"),
}
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


def _look(connection: Any, record: Any) -> None:
    """Asks every connection that is opened how durable it is."""
    kind = "sqlite" if type(connection).__module__.startswith("sqlite3") else "postgresql"
    cursor = connection.cursor()
    if kind == "sqlite":
        cursor.execute("PRAGMA synchronous = FULL")
    for name in SETTINGS[kind]:
        cursor.execute(f"PRAGMA {name}" if kind == "sqlite" else f"SHOW {name}")
        (found,) = cursor.fetchone()
        if _settings.setdefault(name, found) != found:
            _settings[name] = f"{_settings[name]} or {found}"
    cursor.close()
    if kind == "postgresql":
        connection.rollback()


def in_threads(talk: Conversation, at_once: int, runs: int) -> None:
    """Each run called in a thread of its own: what DBOS does fastest when it is alone."""
    five_steps(0)
    with ThreadPoolExecutor(at_once) as pool:
        talk.pause(warm=1)
        began = perf_counter()
        list(pool.map(five_steps, range(runs)))
        talk.pause(began=began, ended=perf_counter())


def in_tasks(talk: Conversation, at_once: int, runs: int) -> None:
    """Runs started and awaited on one event loop."""
    asyncio.run(_clients(talk, at_once, runs))


async def _clients(talk: Conversation, at_once: int, runs: int) -> None:
    await _client(iter((0,)))
    await asyncio.to_thread(talk.pause, warm=1)
    questions = iter(range(runs))
    began = perf_counter()
    await asyncio.gather(*(_client(questions) for _ in range(at_once)))
    await asyncio.to_thread(talk.pause, began=began, ended=perf_counter())


async def _client(questions: Iterator[int]) -> None:
    for question in questions:
        handle = await DBOS.start_workflow_async(five_steps_async, question)
        await handle.get_result()


WAYS = {"threads": in_threads, "tasks": in_tasks}


def take_round(talk: Conversation, url: str, way: str, place: int, at_once: int, runs: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "name": "peer",
        "system_database_url": url,
        "executor_id": f"executor-{place}",
        "log_level": "ERROR",
    }
    if make_url(url).get_backend_name() == "sqlite":
        _ask(url, "PRAGMA journal_mode = WAL")
    else:
        config["sys_db_pool_size"] = max(DEFAULT_CONNECTIONS, min(at_once, CONNECTIONS))
    _settings.clear()
    DBOS(config=config)
    DBOS.launch()
    try:
        WAYS[way](talk, at_once, runs)
    finally:
        DBOS.destroy()
    return {"version": version("dbos"), **_settings, **_held(url)}


def _held(url: str) -> dict[str, int]:
    """What became durable, by whichever process: runs that ended, and their steps."""
    schema = "" if url.startswith("sqlite") else "dbos."
    ended, steps = _ask(
        url,
        f"SELECT (SELECT count(*) FROM {schema}workflow_status WHERE status = 'SUCCESS'), "
        f"(SELECT count(*) FROM {schema}operation_outputs)",
    )
    return {"ended": ended, "steps": steps}


def _ask(url: str, query: str) -> Any:
    """The first row of an answer, over a connection that DBOS has no part in."""
    parts = make_url(url)
    driver = "postgresql+psycopg" if parts.get_backend_name() == "postgresql" else parts.drivername
    engine = create_engine(parts.set(drivername=driver), poolclass=NullPool)
    with engine.connect() as connection:
        return connection.execute(text(query)).fetchone()


def main() -> None:
    talk = Conversation()
    event.listen(Engine, "connect", _look)
    for question in talk.questions():
        talk.answer(**take_round(talk, **question))


if __name__ == "__main__":
    main()
