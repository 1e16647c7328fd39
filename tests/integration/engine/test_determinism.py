"""Code that is not the code which wrote the log: found out, paused, and resumed after a fix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

import runstone as rs
from tests.integration.engine.lab import FAST, NOW, data, status, suspended, within

Body: TypeAlias = Callable[[rs.Run], Awaitable[Any]]


class Deploys:
    """An app whose one handler is written anew between its deploys."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.calls: list[Any] = []
        self.body: Body = self._nothing
        self.app = rs.App("desk")

        @self.app.tool
        async def work(what: Any) -> Any:
            self.calls.append(what)
            return what

        @self.app.specialist
        async def think(what: Any) -> Any:
            self.calls.append(what)
            return what

        @self.app.on()
        async def handle(run: rs.Run) -> Any:
            return await self.body(run)

        self.work, self.think, self.handle = work, think, handle

    async def _nothing(self, run: rs.Run) -> None: ...

    async def until_it_rests(self, body: Body) -> None:
        self.body = body
        async with self.app.running(self._path, grace=NOW, poll=FAST):
            await suspended(self.app, await self.app.start(self.handle, key="k"))

    async def answered(self, body: Body) -> tuple[str, Any]:
        """What becomes of the run when its wait is answered and it goes on with this code."""
        self.body = body
        async with self.app.running(self._path, grace=NOW, poll=FAST):
            handle = await self.app.start(self.handle, key="k")
            await handle.answer("go")
            await status(handle, "PAUSED")
            (paused,) = await data(handle, "RUN_PAUSED")
            return paused["reason"], paused["details"]

    async def resumed(self, body: Body) -> Any:
        self.body = body
        async with self.app.running(self._path, grace=NOW, poll=FAST):
            handle = await self.app.start(self.handle, key="k")
            await handle.resume()
            return await within(handle.result())


@pytest.fixture
def deploys(path: str) -> Deploys:
    return Deploys(path)


async def test_another_argument_pauses_the_run_and_the_old_code_resumes_it(
    deploys: Deploys, caplog: pytest.LogCaptureFixture
) -> None:
    async def old(run: rs.Run) -> Any:
        first = await run.call(deploys.work, "a")
        await run.wait("go")
        return first

    async def new(run: rs.Run) -> Any:
        first = await run.call(deploys.work, "b")
        await run.wait("go")
        return first

    await deploys.until_it_rests(old)
    reason, details = await deploys.answered(new)
    assert reason == "NON_DETERMINISTIC"
    assert details["expected"].startswith("TOOL_SEQUENCE 'work#1' with input ")
    assert details["actual"].startswith("TOOL_SEQUENCE 'work#1' with input ")
    assert details["expected"] != details["actual"]
    assert "is paused: NON_DETERMINISTIC" in caplog.text, "the worker says so too"
    assert await deploys.resumed(old) == "a"
    assert deploys.calls == ["a"]


async def test_another_kind_of_step_under_the_same_name_is_a_difference(deploys: Deploys) -> None:
    async def old(run: rs.Run) -> None:
        await run.call(deploys.work.options(name="it"), "a")
        await run.wait("go")

    async def new(run: rs.Run) -> None:
        await run.call(deploys.think.options(name="it"), "a")
        await run.wait("go")

    await deploys.until_it_rests(old)
    _, details = await deploys.answered(new)
    assert details["expected"].startswith("TOOL_SEQUENCE 'it#1'")
    assert details["actual"].startswith("SPECIALIST_CALL 'it#1'")


async def test_a_step_in_front_of_recorded_ones_is_a_difference_and_is_not_done(deploys: Deploys) -> None:
    async def old(run: rs.Run) -> str:
        await run.call(deploys.work, "a")
        await run.wait("go")
        return "old"

    async def new(run: rs.Run) -> str:
        await run.call(deploys.think, "new")
        return await old(run)

    await deploys.until_it_rests(old)
    _, details = await deploys.answered(new)
    assert details == {"expected": "step 'work#1'", "actual": "SPECIALIST_CALL 'think#1'"}
    assert deploys.calls == ["a"]
    assert await deploys.resumed(old) == "old"


@pytest.mark.parametrize("how", ["returned", "raised ValueError"])
async def test_a_handler_that_ends_before_its_recorded_steps_is_a_difference(
    deploys: Deploys, how: str
) -> None:
    async def old(run: rs.Run) -> str:
        await run.decide("one", 1)
        await run.decide("two", 2)
        await run.wait("go")
        return "old"

    async def new(run: rs.Run) -> str:
        await run.decide("one", 1)
        if how != "returned":
            raise ValueError
        return "new"

    await deploys.until_it_rests(old)
    _, details = await deploys.answered(new)
    assert details == {"expected": "step 'two#1'", "actual": f"the handler {how}"}
    assert await deploys.resumed(old) == "old"


async def test_a_wait_that_is_open_and_no_longer_asked_for_is_a_difference(deploys: Deploys) -> None:
    async def old(run: rs.Run) -> str:
        async def other() -> None:
            await run.wait("other")

        async def going() -> None:
            await run.wait("go")

        await run.first(other(), going())
        return "old"

    async def new(run: rs.Run) -> str:
        async def going() -> None:
            await run.wait("go")

        await run.first(going())
        return "new"

    await deploys.until_it_rests(old)
    reason, _ = await deploys.answered(new)
    assert reason == "NON_DETERMINISTIC"


async def test_a_branch_that_is_gone_is_found_out_before_anything_new_is_done(deploys: Deploys) -> None:
    async def old(run: rs.Run) -> str:
        async def branch(name: str) -> None:
            await run.decide(name, 1)
            await run.wait("go")

        await run.gather(branch("a"), branch("b"))
        return "old"

    async def new(run: rs.Run) -> str:
        async def branch(name: str) -> None:
            await run.decide(name, 1)
            await run.wait("go")
            await run.call(deploys.work, "new")

        await run.gather(branch("a"))
        return "new"

    await deploys.until_it_rests(old)
    reason, details = await deploys.answered(new)
    assert reason == "NON_DETERMINISTIC"
    assert details == {"expected": "step 'gather#1.1/b#1'", "actual": "every branch waits for something else"}
    assert deploys.calls == []


async def test_steps_behind_the_end_of_the_log_may_change(deploys: Deploys) -> None:
    async def old(run: rs.Run) -> str:
        await run.call(deploys.work, "a")
        await run.wait("go")
        return "old"

    async def new(run: rs.Run) -> str:
        await run.call(deploys.work, "a")
        await run.wait("go")
        return str(await run.call(deploys.think, "new"))

    await deploys.until_it_rests(old)
    deploys.body = new
    async with deploys.app.running(deploys._path, poll=FAST):
        handle = await deploys.app.start(deploys.handle, key="k")
        await handle.answer("go")
        assert await within(handle.result()) == "new"


async def test_patched_keeps_old_runs_on_the_old_path_and_new_ones_on_the_new(deploys: Deploys) -> None:
    async def old(run: rs.Run) -> str:
        await run.call(deploys.work, "old")
        await run.wait("go")
        return "old"

    async def new(run: rs.Run) -> str:
        path = "new" if await run.patched("faster") else "old"
        await run.call(deploys.work, path)
        await run.wait("go")
        return path

    await deploys.until_it_rests(old)
    deploys.body = new
    async with deploys.app.running(deploys._path, grace=NOW, poll=FAST):
        before = await deploys.app.start(deploys.handle, key="k")
        after = await deploys.app.start(deploys.handle, key="k2")
        await suspended(deploys.app, after)
    async with deploys.app.running(deploys._path, grace=NOW, poll=FAST):
        for key, path in (("k", "old"), ("k2", "new")):
            handle = await deploys.app.start(deploys.handle, key=key)
            await handle.answer("go")
            assert await within(handle.result()) == path
        assert handle.id == after.id != before.id
    assert deploys.calls == ["old", "new"]


async def test_patched_is_true_for_a_run_that_comes_there_first_with_the_new_code(deploys: Deploys) -> None:
    async def old(run: rs.Run) -> str:
        await run.wait("go")
        return "old"

    async def new(run: rs.Run) -> str:
        await run.wait("go")
        return "new" if await run.patched("faster") else "old"

    await deploys.until_it_rests(old)
    deploys.body = new
    async with deploys.app.running(deploys._path, poll=FAST):
        handle = await deploys.app.start(deploys.handle, key="k")
        await handle.answer("go")
        assert await within(handle.result()) == "new"


@pytest.mark.parametrize("name", ["a/b", "a#1", ""])
async def test_names_that_would_be_mistaken_for_keys_are_refused(deploys: Deploys, name: str) -> None:
    async def body(run: rs.Run) -> None:
        await run.decide(name, 1)

    deploys.body = body
    async with deploys.app.running(deploys._path, poll=FAST):
        handle = await deploys.app.start(deploys.handle)
        with pytest.raises(rs.RunFailed, match="cannot be a name"):
            await within(handle.result())
