"""The example that the documentation opens with: it type-checks strictly, and it runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from mypy import api

import runstone as rs
from examples import support_desk
from examples.support_desk import Approval, answer, app
from tests.integration.engine.lab import FAST, data, suspended, types, within

REFUND = rs.Email(sender="ada@example.org", body="a refund, please")

MISTAKES = """
from __future__ import annotations
import runstone as rs
from examples.support_desk import Approval, Order, answer, app, lookup_order, triage

@app.on(rs.ChatMessage)
async def chat(run: rs.Run, message: rs.ChatMessage) -> str:
    await run.call(lookup_order, 42)  # wrong
    await run.call(lookup_order)  # wrong
    await run.call(lookup_order, "a", extra=1)  # wrong
    verdict: Order = await run.call(triage, rs.Email(sender="a"))  # wrong
    approval: str = await run.wait("approval", Approval)  # wrong
    number: str = await run.decide("number", 1)  # wrong
    await run.call(lookup_order.options(timeout=3), "a")  # wrong
    one, two = await run.gather(run.call(lookup_order, "a"), run.decide("x", 1))
    one.missing  # wrong
    return 1  # wrong

@app.on()
async def alone(run: rs.Run) -> int:
    return 1

async def main() -> None:
    await app.start(answer, "not a mail")  # wrong
    handle = await app.start(answer, rs.Email(sender="a"))
    result: int = await handle.result()  # wrong
    await app.start(answer)  # wrong
    number: int = await (await app.start(alone)).result()
    await app.start(alone, 3)  # wrong
"""


def test_it_type_checks_strictly() -> None:
    path = support_desk.__file__
    assert path is not None
    output, errors, code = api.run(["--strict", "--no-error-summary", path])
    assert (output, errors, code) == ("", "", 0)


def test_a_type_checker_finds_mistakes_in_calls(tmp_path: Path) -> None:
    """Not one of them may pass: the arguments of durable calls are checked like those of any other."""
    file = tmp_path / "mistakes.py"
    file.write_text(MISTAKES)
    output, _, code = api.run(["--strict", "--no-error-summary", "--no-pretty", str(file)])
    assert code == 1
    found = {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(MISTAKES.splitlines(), start=1) if "# wrong" in line}
    assert found == wrong, output


async def test_a_refund_waits_for_a_person(path: str) -> None:
    async with app.running(path, poll=FAST):
        handle = await app.start(answer, REFUND, key="order-42")
        await suspended(app, handle)
        assert [started["step_type"] for started in await data(handle, "STEP_STARTED")] == [
            "SPECIALIST_CALL",
            "TOOL_SEQUENCE",
            "DECISION",
            "WAIT",
        ]
        await handle.answer("approval", Approval(approved=True))
        assert await within(handle.result()) == "answered"
        (effect,) = await data(handle, "EFFECT_REQUESTED")
        assert effect["effect_spec"]["to"] == ["ada@example.org"]


@pytest.mark.parametrize(
    ("approval", "result"), [(Approval(approved=False), "declined"), (Approval(approved=True), "answered")]
)
async def test_the_person_decides(path: str, approval: Approval, result: str) -> None:
    async with app.running(path, poll=FAST):
        handle = await app.send(REFUND, channel="inbox", source_id="m-1")
        await handle.answer("approval", approval)
        assert await within(handle.result()) == result


async def test_a_question_is_answered_at_once(path: str) -> None:
    async with app.running(path, poll=FAST):
        handle = await app.start(answer, rs.Email(sender="ada@example.org", body="where is it?"))
        assert await within(handle.result()) == "answered"
        assert "RUN_SUSPENDED" not in await types(handle)


async def test_it_runs_by_itself() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.support_desk", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await within(process.communicate())
    assert (process.returncode, output) == (0, b"answered\n")
