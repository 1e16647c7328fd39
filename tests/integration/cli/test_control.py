"""`runstone control` and `runstone show`: a process of its own, beside an app that works on the runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.handle import Handle
from tests.servers import programs

ENOUGH = 120.0
PATIENCE = rs.seconds(ENOUGH)

app = rs.App("desk", version="3.1")
closed = False
BYTES = os.fsdecode(b"a\xffb")


@app.tool(on_exhausted="park")
async def charge(amount: int) -> int:
    if closed:
        raise rs.TerminalError("the bank is \x1b[31mclosed")
    return amount


@app.tool
async def broken(amount: int) -> int:
    raise rs.TerminalError(f"never {amount}")


@app.on()
async def ask(run: rs.Run, _: None) -> str:
    run.set("stage", "asking")
    return await run.wait("reply", str, timeout=rs.days(3))


@app.on()
async def pay(run: rs.Run, amount: int) -> str:
    try:
        return f"paid {await run.call(charge, amount)}"
    except rs.StepFailed as failure:
        return f"not paid: {failure.reason}"


@app.on()
async def fail(run: rs.Run, _: None) -> None:
    await run.call(broken, 7)


@app.tool
async def fine() -> int:
    return 1


@app.on()
async def fail_after_a_step(run: rs.Run, _: None) -> None:
    await run.call(fine)
    raise ValueError("mine")


@app.on()
async def fail_after_a_failure(run: rs.Run, _: None) -> None:
    with suppress(rs.StepFailed):
        await run.call(broken, 7)
    raise ValueError("mine")


@app.on()
async def fail_in_a_branch(run: rs.Run, _: None) -> None:
    async def work() -> None:
        await run.call(broken, 7)

    async def rest() -> None:
        await run.sleep(rs.days(3))

    await run.gather(work(), rest())


@app.on()
async def fail_to_fit(run: rs.Run, _: None) -> int:
    return str(await run.call(fine))  # type: ignore[return-value]


@app.on(approval=True)
async def guarded(run: rs.Run, _: None) -> str:
    return "let in"


class Desk:
    """A store, an app that works on it, and the program that others start beside them."""

    def __init__(self, place: str, folder: Path) -> None:
        self.place = place
        self._folder = folder

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with app.running(self.place):
            yield

    async def call(
        self, *arguments: str, stdin: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        return await asyncio.to_thread(
            programs.run,
            arguments,
            cwd=self._folder,
            env=kept | {"RUNSTONE_STORE": self.place} | environment,
            input=stdin,
            timeout=ENOUGH,
        )

    async def do(self, *arguments: str, stdin: bytes = b"") -> str:
        done = await self.call(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode()

    async def refused(self, *arguments: str, stdin: bytes = b"") -> str:
        done = await self.call(*arguments, stdin=stdin)
        assert (done.returncode, done.stdout) == (2, b"")
        (line,) = done.stderr.decode().splitlines()
        return line

    async def page(self, run: str) -> dict[str, Any]:
        page: dict[str, Any] = json.loads(await self.do("show", run, "--json"))
        return page


@pytest.fixture
def file(tmp_path: Path) -> Desk:
    return Desk(str(tmp_path / "desk.db"), tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    if request.param == "sqlite":
        return Desk(str(tmp_path / "desk.db"), tmp_path)
    return Desk(request.getfixturevalue("postgres_url"), tmp_path)


@pytest.fixture(autouse=True)
def open_bank() -> Iterator[None]:
    global closed
    closed = False
    yield
    closed = False


async def until_waiting(handle: Handle[Any]) -> None:
    """Until the handler has come to its wait, and has left memory."""
    async with asyncio.timeout(ENOUGH):
        async for event in handle.events(follow=True):
            if event.event_type == "RUN_SUSPENDED":
                return
    raise AssertionError("it has ended, and never waited")


async def until_paused(handle: Handle[Any]) -> None:
    async with asyncio.timeout(ENOUGH):
        while await handle.paused() is None:  # noqa: ASYNC110  (only the log knows)
            await asyncio.sleep(0.02)


async def told(handle: Handle[Any], kind: str) -> dict[str, Any]:
    """What the log has of an accepted control signal."""
    async for event in handle.events():
        data: dict[str, Any] = json.loads(bytes(event.event_data))
        if event.event_type == "SIGNAL_ACCEPTED" and data["kind"] == kind:
            assert data["sender"] == event.actor
            return data
    raise AssertionError(f"no {kind} in the log")


async def test_a_run_is_paused_resumed_and_answered(desk: Desk) -> None:
    async with desk.open():
        handle = await app.start(ask, None, key="ask-1")
        await until_waiting(handle)
        said = await desk.do("control", "pause", "ask-1", "--reason", "LUNCH")
        assert said == f"{handle.id} is paused; steps that are under way end\n"
        page = await desk.page("ask-1")
        assert (page["status"], page["paused"]["reason"]) == ("PAUSED", "LUNCH")
        assert page["paused"]["by"].startswith("operator:")
        assert f"runstone control resume {handle.id}" in page["to_do"][0]

        assert await desk.do("control", "resume", handle.id[:23]) == f"{handle.id} goes on\n"
        assert (await told(handle, "RESUME"))["sender"].startswith("operator:")
        said = await desk.do("control", "answer", "ask-1", "reply", '"yes"')
        assert said == f"{handle.id} has its answer to reply\n"
        assert await handle.result(timeout=PATIENCE) == "yes"
        ended = await desk.page("ask-1")
    assert (ended["status"], ended["result"], ended["to_do"]) == ("COMPLETED", "yes", [])


async def test_a_parked_step_is_tried_again(desk: Desk) -> None:
    global closed
    closed = True
    async with desk.open():
        handle = await app.start(pay, 5, key="pay-5")
        await until_paused(handle)
        page = await desk.page("pay-5")
        assert page["paused"]["reason"] == "PARKED"
        assert page["retryable_steps"] == ["charge#1"]
        line = await desk.refused("control", "retry", "pay-5", "charge")
        assert "there is no step 'charge'" in line
        assert line.count("charge#1") == 1, "it is named, once"

        closed = False
        assert await desk.do("control", "retry", "pay-5", "charge#1") == f"{handle.id} tries charge#1 again\n"
        assert await handle.result(timeout=PATIENCE) == "paid 5"
        (step,) = (await desk.page("pay-5"))["steps"]
    assert (step["status"], step["attempts"]) == ("COMPLETED", 2)


async def test_a_run_is_cancelled(desk: Desk) -> None:
    async with desk.open():
        handle = await app.start(ask, None)
        await until_waiting(handle)
        said = await desk.do("control", "cancel", handle.id, "--reason", "no longer needed")
        assert said == f"{handle.id} is cancelled\n"
        with pytest.raises(rs.RunCancelled) as cancelled:
            await handle.result(timeout=PATIENCE)
    assert cancelled.value.exit_reason == "no longer needed"


async def test_a_run_is_approved(desk: Desk) -> None:
    async with desk.open():
        handle = await app.start(guarded, None)
        assert (await desk.page(handle.id))["approval_required"] is True
        assert await desk.do("control", "approve", handle.id) == f"{handle.id} is approved\n"
        assert await handle.result(timeout=PATIENCE) == "let in"


async def test_a_resumed_run_sees_the_failure_that_parked_it(file: Desk) -> None:
    global closed
    closed = True
    async with file.open():
        handle = await app.start(pay, 5)
        await until_paused(handle)
        await file.do("control", "resume", handle.id)
        assert await handle.result(timeout=PATIENCE) == "not paid: the bank is \x1b[31mclosed"


async def test_a_refusal_says_what_could_be_done(file: Desk) -> None:
    async with file.open():
        handle = await app.start(ask, None)
        waits_for_approval = await app.start(guarded, None)
        await until_waiting(handle)
        assert await file.refused("control", "resume", handle.id) == (
            "runstone: RESUME was refused: the run is RUNNING, not paused. "
            "What it takes now: pause, answer, cancel"
        )
        assert await file.refused("control", "pause", waits_for_approval.id) == (
            "runstone: PAUSE was refused: the run is PENDING, not running. What it takes now: approve, cancel"
        )
        line = await file.refused("control", "retry", handle.id, "reply#1")
        assert "is RUNNING, not failed. Steps that can be tried again: none" in line
        assert "There is no run with the id or key 'nobody'" in await file.refused(
            "control", "cancel", "nobody"
        )
        await file.do("control", "cancel", handle.id)
        for arguments in (["cancel", handle.id], ["answer", handle.id, "reply", "1"]):
            line = await file.refused("control", *arguments)
            assert "the run has ended (CANCELLED). Nothing can be told to a run that has ended" in line


async def test_an_answer_has_to_be_json_and_to_fit_a_wait(file: Desk) -> None:
    async with file.open():
        handle = await app.start(ask, None)
        await until_waiting(handle)
        line = await file.refused("control", "answer", handle.id, "reply", "yes")
        assert "The answer is not valid JSON" in line
        assert "A text needs quotes of its own" in line
        line = await file.refused("control", "answer", handle.id, "reply", '{"a": 1, "a": 2}')
        assert "quotes of its own" not in line
        line = await file.refused("control", "answer", handle.id, "reply", "17")
        assert "ANSWER was refused: it is not of type string. Open waits: reply" in line
        line = await file.refused("control", "answer", handle.id, "repyl", '"yes"')
        assert "is called 'repyl' now. Open waits: reply. With --early the answer is kept" in line
        await file.do("control", "answer", handle.id, "later", "null", "--early")
        await file.do("control", "answer", handle.id, "reply", "-", stdin=b' "from\\na pipe" ')
        assert await handle.result(timeout=PATIENCE) == "from\na pipe"


async def test_a_signal_that_is_sent_again_is_one_signal(file: Desk) -> None:
    async with file.open():
        handle = await app.start(ask, None)
        await until_waiting(handle)
        again = ("control", "answer", handle.id, "reply", '"yes"', "--id", "message 17")
        assert await file.do(*again) == await file.do(*again)
        assert await handle.result(timeout=PATIENCE) == "yes"
        line = await file.refused("control", "answer", handle.id, "reply", '"no"', "--id", "message 17")
        assert "with other content: the first one stands" in line


async def test_a_page_is_for_people_to_read(file: Desk) -> None:
    global closed
    closed = True
    async with file.open():
        waiting = await app.start(ask, None, key="ask-1")
        failed = await app.start(fail, None, key="fail-1")
        parked = await app.start(pay, 5, key="pay-5")
        with pytest.raises(rs.RunFailed):
            await failed.result(timeout=PATIENCE)
        await until_waiting(waiting)
        await until_paused(parked)
        shown = (await file.do("show", "ask-1")).splitlines()
        assert f"run          {waiting.id}" in shown
        assert "handler      ask, code version 3.1" in shown
        assert 'variable     stage = "asking"' in shown
        assert any(line.startswith("waits for    an answer to reply, until ") for line in shown)
        assert f"  answer a wait: `runstone control answer {waiting.id} reply JSON`" in shown

        shown = (await file.do("show", "fail-1")).splitlines()
        assert "status       FAILED (TerminalError)" in shown
        assert "error        TerminalError: never 7 (step broken#1)" in shown
        assert (await file.page("fail-1"))["error"]["step"] == "broken#1"
        rows = [line.split("\t") for line in (await file.do("events", "fail-1")).splitlines()]
        assert [row[3] for row in rows if row[2].startswith("TOOL_")] == ["broken#1", "broken#1"]

        page = await file.do("show", "pay-5")
        assert "\x1b" not in page
        assert "charge#1\tTOOL_SEQUENCE\tFAILED\t1\t" in page
        assert f"`runstone control retry {parked.id} 'charge#1'` tries it again" in page


@pytest.mark.parametrize(
    ("handler", "code", "step"),
    [
        (fail_after_a_step, "ValueError", None),
        (fail_after_a_failure, "ValueError", None),
        (fail_in_a_branch, "TerminalError", "gather#1.0/broken#1"),
        (fail_to_fit, "INVALID_PAYLOAD", None),
    ],
)
async def test_a_page_blames_the_step_that_failed_the_run_or_none(
    file: Desk, handler: rs.Handler[None, Any], code: str, step: str | None
) -> None:
    async with file.open():
        with pytest.raises(rs.RunFailed):
            await (await app.start(handler, None, key="x")).result(timeout=PATIENCE)
        error = (await file.page("x"))["error"]
        assert (error["code"], error["step"]) == (code, step)
        (line,) = [one for one in (await file.do("show", "x")).splitlines() if one.startswith("error ")]
        assert line.endswith(f" (step {step})") if step else "(step" not in line


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("pause", "x", "--reason", BYTES), "/reason"),
        (("pause", "x", "--id", BYTES), "/id"),
        (("retry", "x", BYTES), "/target"),
        (("answer", "x", BYTES, "1", "--early"), "/target"),
    ],
)
async def test_bytes_that_are_no_text_are_refused_in_one_line(
    file: Desk, arguments: tuple[str, ...], place: str
) -> None:
    async with file.open():
        handle = await app.start(ask, None, key="x")
        await until_waiting(handle)
        line = await file.refused("control", *arguments)
        assert line == f"runstone: text holds a lone surrogate (at '{place}')"
        assert (await file.page("x"))["status"] == "RUNNING"


async def test_bytes_that_are_no_text_name_no_run(file: Desk) -> None:
    async with file.open():
        line = await file.refused("show", BYTES)
    assert line.startswith("runstone: There is no run with the id or key 'a\\udcffb'")


async def test_verbs_of_control_are_completed(file: Desk) -> None:
    done = await file.call(
        COMP_WORDS="runstone control re", COMP_CWORD="2", _RUNSTONE_COMPLETE="bash_complete"
    )
    assert done.stdout.decode().split() == ["plain,resume", "plain,retry"]


async def test_a_folder_of_runs_can_be_shown_and_not_controlled(file: Desk, tmp_path: Path) -> None:
    async with file.open():
        handle = await app.start(guarded, None, key="guarded-1")
        await file.do("control", "approve", handle.id)
        await handle.result(timeout=PATIENCE)
    await file.do("export", handle.id, "-o", "guarded.ndjson")
    folder = Desk(str(tmp_path / "folder"), tmp_path)
    (tmp_path / "folder").mkdir()
    await folder.do("import", "guarded.ndjson")
    assert await folder.page("guarded-1") == await file.page("guarded-1")
    assert "is a folder of runs" in await folder.refused("control", "cancel", "guarded-1")
