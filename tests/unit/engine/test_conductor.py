"""The conductor: outcomes in the order of the log, and only while every branch waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runstone.engine.conductor import Conductor, Finish
from runstone.engine.scope import Scope, current_scope

START = datetime(2024, 2, 29, tzinfo=UTC)


class Stage:
    """A conductor and the outcomes that branches ask it for, by name."""

    def __init__(self, recorded: dict[str, int] | None = None) -> None:
        self.idled = 0
        self.conductor = Conductor(self._idle)
        self.recorded = recorded or {}
        self.waiting: dict[str, tuple[Scope, asyncio.Future[Any]]] = {}
        self.notes: list[str] = []

    def _idle(self) -> None:
        self.idled += 1

    async def ask(self, name: str) -> str:
        """Waits for the outcome of that name, in the calling branch."""
        scope = current_scope()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if name in self.recorded:
            self.conductor.arrive(self.recorded[name], scope, future, name)
        else:
            self.waiting[name] = (scope, future)
        self.notes.append(f"asks {name}")
        outcome: str = await self.conductor.block(scope, future)
        self.notes.append(f"has {name}")
        scope.saw(START + timedelta(seconds=len(self.notes)), name)
        return outcome

    def live(self, name: str, run_seq: int) -> None:
        scope, future = self.waiting.pop(name)
        self.conductor.arrive(run_seq, scope, future, name)
        self.conductor.pump()

    async def play(self, *branches: Coroutine[Any, Any, Any], finish: Finish = "all") -> Any:
        """Runs branches below a root, as a handler would."""
        scope = Scope("run", "", START, None)
        self.root = scope

        async def root() -> Any:
            self.conductor.enter(scope)
            return await self.conductor.branches(scope, scope.key("gather"), branches, finish)

        self.conductor.running = 1
        return await asyncio.wait_for(asyncio.create_task(root()), 60)


async def test_recorded_outcomes_are_delivered_in_their_order_and_one_at_a_time() -> None:
    stage = Stage({"a1": 7, "a2": 8, "b1": 3, "b2": 9})

    async def branch(name: str) -> str:
        return await stage.ask(f"{name}1") + await stage.ask(f"{name}2")

    assert await stage.play(branch("a"), branch("b")) == ["a1a2", "b1b2"]
    assert stage.notes == [
        "asks a1",
        "asks b1",
        "has b1",
        "asks b2",
        "has a1",
        "asks a2",
        "has a2",
        "has b2",
    ]


async def test_a_branch_that_runs_holds_every_delivery_back() -> None:
    stage = Stage({"a": 1})
    gate = asyncio.Event()

    async def asks() -> None:
        await stage.ask("a")

    async def computes() -> None:
        await gate.wait()
        stage.notes.append("computed")

    playing = asyncio.create_task(stage.play(asks(), computes()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert stage.notes == ["asks a"]
    gate.set()
    await playing
    assert stage.notes == ["asks a", "computed", "has a"]


async def test_it_says_when_nothing_is_left_to_deliver() -> None:
    stage = Stage()

    async def asks() -> str:
        return await stage.ask("live")

    playing = asyncio.create_task(stage.play(asks()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert stage.idled == 1
    assert stage.conductor.quiet
    assert not stage.conductor.has_arrivals
    stage.live("live", 5)
    assert await playing == ["live"]


async def test_nothing_is_delivered_once_it_is_closed() -> None:
    stage = Stage()

    async def asks() -> None:
        await stage.ask("live")

    playing = asyncio.create_task(stage.play(asks()))
    for _ in range(5):
        await asyncio.sleep(0)
    stage.conductor.closed = True
    stage.live("live", 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert stage.notes == ["asks live"]
    assert stage.conductor.has_arrivals
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)


async def test_the_first_branch_decides_and_the_others_unwind_before_the_parent_goes_on() -> None:
    stage = Stage({"fast": 1})

    async def fast() -> str:
        return await stage.ask("fast")

    async def slow() -> str:
        try:
            return await stage.ask("never")
        finally:
            await asyncio.sleep(0)
            stage.notes.append("slow unwound")

    assert await stage.play(slow(), fast(), finish="first") == ["fast"]
    assert stage.notes[-1] == "slow unwound"
    assert stage.conductor.running == 1, "the parent runs, and nobody else"


async def test_an_error_in_one_branch_ends_the_others_and_is_the_parents() -> None:
    stage = Stage({"x": 1})

    async def fails() -> None:
        await stage.ask("x")
        raise ValueError("broken")

    async def waits() -> None:
        await stage.ask("never")

    with pytest.raises(ValueError, match="broken"):
        await stage.play(waits(), fails())
    assert stage.conductor.running == 1


async def test_a_branch_that_was_not_begun_when_the_others_decided_is_closed() -> None:
    stage = Stage()

    async def at_once() -> str:
        return "at once"

    async def never_begun() -> str:
        raise AssertionError("begun")

    assert await stage.play(at_once(), never_begun(), finish="first") == ["at once"]


async def test_a_branch_that_cancels_itself_is_an_error_of_the_group() -> None:
    stage = Stage({"x": 1})

    async def cancels() -> None:
        raise asyncio.CancelledError

    async def other() -> str:
        return await stage.ask("x")

    caught: list[BaseException] = []

    async def play() -> None:
        try:
            await stage.play(cancels(), other())
        except asyncio.CancelledError as error:
            caught.append(error)

    await asyncio.create_task(play())
    assert len(caught) == 1


async def test_a_parent_has_seen_what_its_branches_saw() -> None:
    stage = Stage({"a": 1, "b": 2})

    async def branch(name: str) -> None:
        await stage.ask(name)

    await stage.play(branch("a"), branch("b"))
    assert stage.root.now == START + timedelta(seconds=4)
    assert stage.root.cause == "b"


async def test_a_cancelled_scope_opens_no_branches() -> None:
    conductor = Conductor(lambda: None)
    scope = Scope("run", "", START, None)
    scope.cancelled = True

    async def branch() -> None:
        raise AssertionError("begun")

    with pytest.raises(asyncio.CancelledError):
        await conductor.branches(scope, "gather#1", [branch()], "all")


async def test_no_branches_are_done_at_once() -> None:
    assert await Conductor(lambda: None).branches(Scope("run", "", START, None), "gather#1", [], "all") == []
