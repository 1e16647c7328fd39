"""Pydantic models through the log: as arguments, results, decisions, answers; under a strict type checker."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from mypy import api

import runstone as rs
from tests.integration.engine import newsroom
from tests.integration.engine.lab import FAST, data, process, suspended, within
from tests.integration.engine.newsroom import Printed, Source, Spiked, Story, Verdict, app, edit, publish

STORY = Story(title="rain again", price=Decimal("1.50"))


def test_a_project_with_pydantic_type_checks_strictly() -> None:
    path = newsroom.__file__
    assert path is not None
    output, errors, code = api.run(["--strict", "--no-error-summary", path])
    assert (output, errors, code) == ("", "", 0)


async def test_models_come_back_as_what_they_were_on_another_day_too(path: str) -> None:
    async with process(app, path):
        handle = await app.start(publish, STORY)
        await suspended(app, handle)
    async with process(app, path) as later:  # everything is read from the log now
        handle = later.handle(handle)
        await handle.answer("verdict", Verdict.model_validate({"isApproved": True, "editor": "ada"}))
        found = await within(app.handle(publish, handle.id).result())
        assert found == Printed(page=1)
        assert isinstance(found, Printed)
        (_, edited, _, page) = await data(handle, "STEP_COMPLETED")
        kept = edited["output_result"]["specialist_reasoning"]
        assert (kept["title"], kept["price"]) == ("Rain Again", "1.50")
        assert set(kept["sources"][0]) == {"from", "seenAt"}, "by its aliases, as its own JSON"
        assert "weight" not in kept, "what is computed is not kept"
        assert page["output_result"]["decision"] == {"kind": "printed", "page": 1}


@pytest.mark.parametrize(
    "answer",
    [
        {"approved": False, "by": "bob"},
        {"isApproved": False, "editor": "bob"},
        Verdict.model_validate({"isApproved": False, "editor": "bob"}),
    ],
    ids=["by the names of its fields", "by its aliases", "as a model"],
)
async def test_a_model_that_reads_by_other_names_than_it_writes(path: str, answer: object) -> None:
    """It is kept by the names of its fields, and read by either; so is what the handler returns."""
    async with process(app, path):
        handle = await app.start(publish, STORY)
        await handle.answer("verdict", answer)  # before its wait: nobody has checked it yet
        found = await within(handle.result())
        assert found == Spiked(why="bob said no to Rain Again")
        (returned,) = await data(handle, "RUN_HANDLER_RETURNED")
        assert returned["result"]["why"] == "bob said no to Rain Again"


async def test_an_answer_that_is_not_the_model_does_not_end_its_wait(path: str) -> None:
    """§ENG-22: the wait holds the model's own schema."""
    async with process(app, path, poll=FAST):
        handle = await app.start(publish, STORY)
        await suspended(app, handle)
        for wrong in ({"approved": "perhaps"}, {}, 7):
            with pytest.raises(rs.ControlRefused, match="ANSWER was refused"):
                await handle.answer("verdict", wrong)
        await handle.answer("verdict", {"approved": False})
        assert await within(handle.result()) == Spiked(why="nobody said no to Rain Again")


async def test_an_argument_that_is_not_the_model_fails_its_step(path: str) -> None:
    desk = rs.App("desk")

    @desk.on()
    async def handle(run: rs.Run) -> str:
        try:
            await run.call(edit, {"title": 7}, sources=[])  # type: ignore[arg-type]
        except rs.StepFailed as failure:
            return f"{failure.category} {failure.reason}"
        return "fine"

    async with process(desk, path):
        said = await within((await desk.start(handle)).result())
        assert said.startswith("VALIDATION")
        assert "title" in said


def test_the_models_are_what_the_tests_say_they_are() -> None:
    """Strict models take their own JSON, and one of these refuses what it does not know."""
    source = Source.model_validate({"from": "x", "seenAt": datetime(2026, 1, 1, tzinfo=UTC)})
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Source.model_validate({**source.model_dump(by_alias=True), "more": 1})
    assert Story(title="a", sources=[source]).model_dump(mode="json")["weight"] == 1
