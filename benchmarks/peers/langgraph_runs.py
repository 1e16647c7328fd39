"""Runs of five nodes with LangGraph on PostgreSQL. Executed by the interpreter of its own environment.

It is asked for rounds with `url`, `way`, `place`, `at_once` and `runs`, and says at last what the database
holds and how durable its connections were: the weakest of each setting, should they differ. With several
processes on one database, `place` gives each threads of its own.

The state is written with `durability="sync"`: a node's result is on disk before the next node begins, as a
step's is with us. There is a pool of as many connections as runs are under way, up to `CONNECTIONS`. A
checkpointer lets one caller in at a time, however many connections it has; so each client has one of its
own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import pairwise
from time import perf_counter
from typing import Any, TypedDict

import psycopg  # type: ignore[import-not-found]
from langgraph.checkpoint.postgres import PostgresSaver  # type: ignore[import-not-found]
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # type: ignore[import-not-found]
from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found]
from psycopg.rows import dict_row  # type: ignore[import-not-found]
from psycopg_pool import AsyncConnectionPool, ConnectionPool  # type: ignore[import-not-found]

from benchmarks.conversation import Conversation

STEPS = 5
CONNECTIONS = 64
OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")
QUESTION: dict[str, Any] = {"question": 1}
_settings: dict[str, str] = {}


class State(TypedDict, total=False):
    question: int
    answer: dict[str, Any]


def _graph(checkpointer: Any, *, in_tasks: bool) -> Any:
    def ask(number: int) -> Any:
        answer = {"value": number, "text": "what a specialist has to say about it"}

        def node(state: State) -> State:
            return {"answer": answer}

        async def node_async(state: State) -> State:
            return {"answer": answer}

        return node_async if in_tasks else node

    graph = StateGraph(State)
    for number in range(STEPS):
        graph.add_node(f"ask{number}", ask(number))
    places = [START, *(f"ask{number}" for number in range(STEPS)), END]
    for first, second in pairwise(places):
        graph.add_edge(first, second)
    return graph.compile(checkpointer=checkpointer)


def _config(place: int, run: int) -> dict[str, Any]:
    return {"configurable": {"thread_id": f"run-{place}-{run}"}}


def _note(name: str, found: str) -> None:
    if _settings.setdefault(name, found) != found:
        _settings[name] = f"{_settings[name]} or {found}"


def _look(connection: Any) -> None:
    """Asks every connection that is opened how durable it is."""
    for name in SETTINGS:
        _note(name, connection.execute(f"SHOW {name}").fetchone()[name])


async def _look_async(connection: Any) -> None:
    for name in SETTINGS:
        _note(name, (await (await connection.execute(f"SHOW {name}")).fetchone())[name])


def in_threads(talk: Conversation, url: str, place: int, at_once: int, runs: int) -> None:
    """Each run in a thread of its own, over the checkpointer for plain functions."""
    size = min(at_once, CONNECTIONS)
    with ConnectionPool(url, min_size=size, max_size=size, kwargs=OPTIONS, configure=_look) as pool:
        pool.wait()
        PostgresSaver(pool).setup()
        graphs = [_graph(PostgresSaver(pool), in_tasks=False) for _ in range(at_once)]

        def client(graph: Any, left: Iterator[int]) -> None:
            for run in left:
                found = graph.invoke(QUESTION, _config(place, run), durability="sync")
                assert found["answer"]["value"] == STEPS - 1

        client(graphs[0], iter((-1,)))
        left = iter(range(runs))
        with ThreadPoolExecutor(at_once) as threads:
            talk.pause(warm=1)
            began = perf_counter()
            list(threads.map(client, graphs, [left] * at_once))
            talk.pause(began=began, ended=perf_counter())


def in_tasks(talk: Conversation, url: str, place: int, at_once: int, runs: int) -> None:
    """Runs on one event loop, over the checkpointer for coroutines."""
    asyncio.run(_clients(talk, url, place, at_once, runs))


async def _clients(talk: Conversation, url: str, place: int, at_once: int, runs: int) -> None:
    size = min(at_once, CONNECTIONS)
    options: dict[str, Any] = {"kwargs": OPTIONS, "configure": _look_async, "open": False}
    async with AsyncConnectionPool(url, min_size=size, max_size=size, **options) as pool:
        await pool.wait()
        await AsyncPostgresSaver(pool).setup()
        graphs = [_graph(AsyncPostgresSaver(pool), in_tasks=True) for _ in range(at_once)]

        async def client(graph: Any, left: Iterator[int]) -> None:
            for run in left:
                found = await graph.ainvoke(QUESTION, _config(place, run), durability="sync")
                assert found["answer"]["value"] == STEPS - 1

        await client(graphs[0], iter((-1,)))
        left = iter(range(runs))
        await asyncio.to_thread(talk.pause, warm=1)
        began = perf_counter()
        await asyncio.gather(*(client(graph, left) for graph in graphs))
        await asyncio.to_thread(talk.pause, began=began, ended=perf_counter())


WAYS = {"threads": in_threads, "tasks": in_tasks}


def take_round(talk: Conversation, url: str, way: str, place: int, at_once: int, runs: int) -> dict[str, Any]:
    _settings.clear()
    WAYS[way](talk, url, place, at_once, runs)
    return {"version": version("langgraph"), **_settings, **_held(url)}


def _held(url: str) -> dict[str, int]:
    """What became durable, by whichever process: a checkpoint after each node."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT count(DISTINCT thread_id) FILTER (WHERE (metadata->>'step')::int = %s), "
            "count(*) FILTER (WHERE (metadata->>'step')::int > 0) FROM checkpoints",
            [STEPS],
        ).fetchone()
    return {"ended": found[0], "steps": found[1]}


def main() -> None:
    talk = Conversation()
    for question in talk.questions():
        talk.answer(**take_round(talk, **question))


if __name__ == "__main__":
    main()
