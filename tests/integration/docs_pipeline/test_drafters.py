"""Drafting is a port: what a writer leaves out is found and mended, and only so often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples.docs_pipeline.draft import PlainDrafter
from examples.docs_pipeline.facts import Facts
from examples.docs_pipeline.pipeline import docs_pipeline
from examples.docs_pipeline.plan import Page
from examples.docs_pipeline.validate import Problem
from runstone.core.pipeline import PipelineState
from tests.integration.pipeline.press import files, opened
from tests.repository import repository


class Careless(PlainDrafter):
    """Has written, as a language model might, about something else; is told, and listens from then on."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()

    async def draft(self, page: Page, facts: Facts | None) -> str:
        if page.path == "shop/orders":
            return "# Orders\n\nSee [nothing](nothing.md) and [no name](prices.md#Nobody).\n"
        return "" if page.path == "shop/prices" else await super().draft(page, facts)

    async def mend(self, page: Page, facts: Facts | None, text: str, problems: Sequence[Problem]) -> str:
        self.told.update(problem.kind for problem in problems)
        if page.path == "shop/prices":
            text = await super().draft(page, facts)
        return await super().mend(page, facts, text, [p for p in problems if p.kind != "MissingPage"])


class Deaf(Careless):
    """Does not listen."""

    async def mend(self, page: Page, facts: Facts | None, text: str, problems: Sequence[Problem]) -> str:
        self.told.update(problem.kind for problem in problems)
        return text


async def document(tmp_path: Path, drafter: Careless, attempts: int = 3) -> tuple[PipelineState, Path]:
    place = repository(tmp_path / "shop")
    async with opened(tmp_path) as pipelines:
        pipeline = docs_pipeline(drafter, max_fix_attempts=attempts)
        outcome = await pipelines.run(pipeline, params={"repository": str(place)})
        _, state = await pipelines.look(outcome.run_id)
        return state, pipelines.folders.folder(outcome.run_id)


async def test_what_a_writer_leaves_out_is_mended(tmp_path: Path) -> None:
    drafter = Careless()
    state, folder = await document(tmp_path, drafter)
    assert (state.run_state, state.visits["FIXING"]) == ("DONE", 1)
    assert drafter.told == Counter(MissingPage=1, MissingName=3, DeadLink=2)
    made = files(folder)
    orders = made["site/shop/orders.md"].decode()
    assert "See nothing and no name." in orders
    assert '<a id="Order.pay"></a>' in orders
    assert '<a id="Price"></a>' in made["site/shop/prices.md"].decode()
    assert "[`Price`](prices.md#Price)" in orders
    assert state.section_states["shop/orders"] == "MENDED"
    assert not [i for i in state.issues.values() if i.status == "OPEN" and i.severity == "ERROR"]


@pytest.mark.parametrize("attempts", [1, 2])
async def test_it_is_tried_only_so_often(tmp_path: Path, attempts: int) -> None:
    drafter = Deaf()
    state, _ = await document(tmp_path, drafter, attempts)
    assert (state.run_state, state.visits["FIXING"]) == ("FAILED", attempts)
    assert drafter.told["MissingPage"] == attempts
    assert [i.code for i in state.issues.values() if i.severity == "BLOCKER"] == ["LoopLimitReached"]
    assert not (tmp_path / "docs.git").exists()
