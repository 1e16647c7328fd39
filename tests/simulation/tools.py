"""The tools and specialists of the corpus: some take their time, some fail as planned."""

from __future__ import annotations

import asyncio
from typing import Any

import runstone as rs
from tests.simulation.world import World


class Tools:
    """All of them, by name."""

    def __init__(self, app: rs.App, world: World) -> None:
        @app.tool
        async def echo(value: Any) -> Any:
            return value

        @app.tool
        def echo_inline(value: str) -> str:
            return value

        @app.tool
        async def work(value: str, seconds: float) -> str:
            await asyncio.sleep(seconds)
            return value

        @app.tool
        async def vary(value: str) -> str:
            """Takes its time: another one each time."""
            await asyncio.sleep(world.random.random())
            return value

        @app.specialist
        async def think(subject: str) -> str:
            await asyncio.sleep(0.7)
            return f"deep {subject}"

        @app.specialist
        def guess(subject: str) -> str:
            return f"quick {subject}"

        @app.tool(retry=rs.Retry(max_attempts=4, initial=rs.seconds(0.5), on=(ConnectionError,)))
        async def flaky(key: str) -> str:
            if world.begin(f"flaky {key}") < 3:
                raise ConnectionError("not yet")
            return "third time lucky"

        @app.tool(retry=rs.Retry(max_attempts=9))
        async def busy(key: str) -> str:
            if world.begin(f"busy {key}") < 3:
                raise rs.RetryableError("later", retry_after=rs.seconds(4))
            return "worked"

        @app.tool(retry=rs.Retry(max_attempts=5, never=(ValueError,)))
        async def wrong(key: str) -> str:
            world.begin(f"wrong {key}")
            raise ValueError("wrong")

        @app.tool(retry=rs.Retry(max_attempts=3, initial=rs.seconds(0.4)))
        async def hopeless(key: str) -> str:
            raise ConnectionError("nobody there")

        @app.tool(timeout=rs.seconds(0.5))
        async def slow() -> str:
            await asyncio.sleep(60)
            return "done at last"

        @app.tool(on_exhausted="park")
        async def broken(key: str) -> str:
            if world.begin(f"broken {key}") < 2:
                raise OSError("broken")
            return "repaired"

        @app.tool(at_most_once=True)
        async def charge(key: str) -> str:
            world.begin(f"charge {key}")
            await asyncio.sleep(0.4)
            return "charged"

        self.echo = echo
        self.echo_inline = echo_inline
        self.work = work
        self.vary = vary
        self.think = think
        self.guess = guess
        self.flaky = flaky
        self.busy = busy
        self.wrong = wrong
        self.hopeless = hopeless
        self.slow = slow
        self.broken = broken
        self.charge = charge
