"""What a user of Pydantic writes: models in, models out, an answer that is a model."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

import runstone as rs

app = rs.App("newsroom", version="1")


class Source(BaseModel):
    """By its aliases in JSON, as an API of another language would have it."""

    model_config = ConfigDict(extra="forbid")

    from_: str = Field(alias="from")
    seen_at: datetime = Field(alias="seenAt")


class Story(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    title: str
    sources: list[Source] = []
    price: Decimal = Decimal("0.10")

    @computed_field
    def weight(self) -> int:
        return len(self.sources)


class Printed(BaseModel):
    kind: Literal["printed"] = "printed"
    page: int


class Spiked(BaseModel):
    kind: Literal["spiked"] = "spiked"
    why: str = Field(serialization_alias="reason")


class Verdict(BaseModel):
    approved: bool = Field(alias="isApproved")
    by: str = Field(default="nobody", validation_alias="editor")


@app.tool(timeout=rs.seconds(30))
async def research(title: str, since: datetime) -> list[Source]:
    return [Source.model_validate({"from": "the archive", "seenAt": since})]


@app.specialist
def edit(story: Story, *, sources: list[Source]) -> Story:
    return story.model_copy(update={"title": story.title.title(), "sources": sources})


@app.on()
async def publish(run: rs.Run, story: Story) -> Printed | Spiked:
    sources = await run.call(research, story.title, run.now())
    edited = await run.call(edit, story, sources=sources)
    verdict = await run.wait("verdict", Verdict, timeout=rs.days(1))
    if not verdict.approved:
        return Spiked(why=f"{verdict.by} said no to {edited.title}")
    return await run.decide("page", Printed(page=len(edited.sources)))
