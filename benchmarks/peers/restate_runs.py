"""Runs of five steps with Restate. Executed by the interpreter of its own environment.

It is asked for rounds with `url`, `processes`, `at_once` and `runs`, and says at last what the server holds
and how durable it is.

Restate is a server with a log of its own. A new one is started for each round, as it comes, with its data
in the folder that `url` names; its path is this program's argument. Each result of `ctx.run` is
acknowledged by it before the next step begins, and its log server syncs what it writes: its configuration
is asked. The service and its clients are in one process, or in two.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import restate  # type: ignore[import-not-found]
from hypercorn.asyncio import serve  # type: ignore[import-not-found]
from hypercorn.config import Config  # type: ignore[import-not-found]

from benchmarks.conversation import Conversation

STEPS = 5
PATIENCE = 60.0
MODULE = "benchmarks.peers.restate_runs"
service = restate.Service("benchmark")


@service.handler("five_steps")  # type: ignore[untyped-decorator]
async def five_steps(context: restate.Context, question: int) -> str:
    for number in range(STEPS):
        await context.run_typed("ask", _answer, number=number)
    return "done"


async def _answer(number: int) -> dict[str, Any]:
    return {"value": number, "text": "what a specialist has to say about it"}


class Line:
    """A connection to the server, kept for many requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: Any) -> Any:
        sent = json.dumps(body).encode()
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"accept: application/json\r\ncontent-length: {len(sent)}\r\n\r\n".encode()
            + sent
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = head.partition("content-length:")[2].split()
        body = await self._reader.readexactly(int(length[0])) if length else await self._chunks()
        if not head.split()[1].startswith("2"):
            raise RuntimeError(f"{path}: {head.splitlines()[0]} {body!r}")
        return json.loads(body)

    async def _chunks(self) -> bytes:
        found = b""
        while size := int(await self._reader.readline(), 16):
            found += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return found

    def close(self) -> None:
        self._writer.close()


@contextmanager
def _server(program: str, folder: Path) -> Iterator[tuple[int, int, str]]:
    """Ports for requests and for administration, for as long as this is open; and whether its log syncs."""
    node, ingress, admin = (_free_port() for _ in range(3))
    environment = {
        **os.environ,
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }
    folder.mkdir(parents=True, exist_ok=True)
    command = [program, "--base-dir", str(folder / "data")]
    said = subprocess.run([*command, "--dump-config"], env=environment, capture_output=True, check=True)
    config = tomllib.loads(said.stdout.decode())
    syncs = (
        config["bifrost"]["default-provider"] == "replicated"
        and not (config["log-server"]["rocksdb-disable-wal-fsync"])
    )
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server,
    ):
        try:
            yield ingress, admin, "on" if syncs else "off"
        finally:
            server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _serve(port: int, until: asyncio.Event) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"
    await serve(restate.app([service]), config, shutdown_trigger=until.wait)


@asynccontextmanager
async def _in_one(port: int) -> AsyncIterator[None]:
    """The service beside its clients, on one event loop."""
    over = asyncio.Event()
    serving = asyncio.create_task(_serve(port, over))
    try:
        yield
    finally:
        over.set()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def _in_two(port: int) -> AsyncIterator[None]:
    """The service in a process of its own."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", MODULE, "serve", str(port))
    try:
        yield
    finally:
        process.kill()
        await process.wait()


PROCESSES = {1: _in_one, 2: _in_two}


async def take_round(
    talk: Conversation, program: str, url: str, processes: int, place: int, at_once: int, runs: int
) -> dict[str, Any]:
    with _server(program, Path(url)) as (ingress, admin, syncs):
        port = _free_port()
        async with PROCESSES[processes](port):
            await _register(admin, port)
            await _client(ingress, iter((0,)))
            left = iter(range(runs))
            await asyncio.to_thread(talk.pause, warm=1)
            began = perf_counter()
            await asyncio.gather(*(_client(ingress, left) for _ in range(at_once)))
            await asyncio.to_thread(talk.pause, began=began, ended=perf_counter())
            held = await _held(admin)
    return {"fsync": syncs, **held}


async def _register(admin: int, port: int) -> None:
    """Tells the server of the service, as soon as both are there."""
    deadline = monotonic() + PATIENCE
    while True:
        try:
            line = await Line.open(admin)
            await line.post("/deployments", {"uri": f"http://127.0.0.1:{port}"})
            return line.close()
        except (OSError, EOFError, RuntimeError):
            if monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def _client(ingress: int, left: Iterator[int]) -> None:
    line = await Line.open(ingress)
    for question in left:
        found = await line.post("/benchmark/five_steps", question)
        assert found == "done"
    line.close()


async def _held(admin: int) -> dict[str, int]:
    """What became durable: runs that ended, and their steps."""
    line = await Line.open(admin)
    ended = await line.post(
        "/query",
        {"query": "SELECT count(*) AS n FROM sys_invocation WHERE completion_result = 'success'"},
    )
    steps = await line.post(
        "/query", {"query": "SELECT count(*) AS n FROM sys_journal WHERE entry_type = 'Notification: Run'"}
    )
    line.close()
    return {"ended": ended["rows"][0]["n"], "steps": steps["rows"][0]["n"]}


def main(program: str) -> None:
    talk = Conversation()
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    number = f"{said.stdout.split()[-1]}, Python SDK {version('restate-sdk')}"
    for question in talk.questions():
        talk.answer(**asyncio.run(take_round(talk, program, **question)), version=number)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(_serve(int(sys.argv[2]), asyncio.Event()))
    else:
        main(sys.argv[1])
