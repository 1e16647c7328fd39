"""What a benchmark found: a table for people, ratios and targets for programs, plots for the README.

Ratios have the same keys in every benchmark that measures the same thing:

    limit@64    share of the bare limit, at 64 runs at once
    limit       the same, where there is one writer or reader only
    replay      events replayed from a log per second over the 100,000 to reach
    dbos        times DBOS, each with as many runs at once, and in the style, that suit it best
    dbos@64     times DBOS, both at 64 runs at once, each in the style that suits it best
    langgraph   times LangGraph, in the same way; so `restate`
    best        times the best peer, each with as many runs at once as suits it best
    best@64     times the best peer with as many runs at once as suits it best, at 64 runs at once
    bare        one step's or commit's latency over one bare durable commit of the same rows
    step        one step's latency over the same, where `bare` is of a commit
    insert      one commit's latency over a bare insert of one event
    grown       commits per second to a grown log over those to an empty one
    feed        events read per second over the 50,000 to reach
    recovery    time from kill -9 of all workers until their runs are done, in leases
    linear      ratio of times over ratio of sizes
    fold        events folded per second over the 200,000 to reach
    memory      what a worker's memory grows by, over the 50 MB it may
    http        share of the same through HTTP without storage
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from benchmarks.plots import Plot


class Target(msgspec.Struct, frozen=True):
    """What a ratio has to reach, or must not pass."""

    bound: Literal["at least", "at most"]
    value: float

    def met_by(self, figure: float) -> bool:
        return figure >= self.value if self.bound == "at least" else figure <= self.value


def at_least(value: float) -> Target:
    return Target("at least", value)


def at_most(value: float) -> Target:
    return Target("at most", value)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark's findings."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The table, as it is printed."""
    ratios: Mapping[str, float]
    targets: Mapping[str, Target]
    """By the key of the ratio that each is about."""
    figures: Mapping[str, float]
    """What was measured in units of this machine: good for a comparison with itself only."""
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader has to know to understand the figures, such as a peer that could not be measured."""

    @property
    def missed(self) -> list[str]:
        """The keys of the targets that were not met."""
        return [key for key, target in self.targets.items() if not target.met_by(self.ratios[key])]


def as_json(report: Report, machine: Mapping[str, Any], *, quick: bool) -> dict[str, Any]:
    """What a program reads."""
    return {
        "name": report.name,
        "ratios": dict(report.ratios),
        "targets": {key: target.value for key, target in report.targets.items()},
        "verdicts": {
            key: {"bound": target.bound, "met": target.met_by(report.ratios[key])}
            for key, target in report.targets.items()
        },
        "figures": dict(report.figures),
        "machine": dict(machine),
        "notes": list(report.notes),
        "quick": quick,
    }


def as_text(report: Report) -> str:
    """What a person reads: the table, a line for each ratio, and the notes."""
    table = _table((report.columns, *report.rows))
    notes = ["", *(f"  {note}" for note in report.notes)] if report.notes else []
    return "\n".join([report.name, "", *table, "", *_verdicts(report), *notes])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for number, row in enumerate(rows):
        first, *others = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(["", first, *others])
        if number == 0:
            yield "  ".join(["", *("-" * width for width in widths)])


def _verdicts(report: Report) -> Iterator[str]:
    width = max(map(len, report.ratios), default=0)
    for key, figure in report.ratios.items():
        line = f"  {key.ljust(width)}  {figure:8.3f}"
        target = report.targets.get(key)
        if target is not None:
            verdict = "met" if target.met_by(figure) else "MISSED"
            line += f"  {verdict}: the target is {target.bound} {target.value:g}"
        yield line
