"""Plots as SVG, written by hand: bars or lines over named places, with axes and a legend.

A plot brings its own paper, and changes it with the reader's colour scheme, so it can be read on
any page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Final, Literal

import msgspec

WIDTH: Final = 720
HEIGHT: Final = 400
LEFT, RIGHT, TOP, BOTTOM = 96, 24, 84, 56
WIDEST: Final = 96
"""A bar is no wider than this, however few there are."""
LINES: Final = 5
"""About how many lines the grid has."""

STYLE: Final = """\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.value { font-size: 11px }
.paper { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d0d7de }
.mark { stroke: #24292f; stroke-dasharray: 6 4 }
.line { fill: none; stroke-width: 2.5 }
.s0 { fill: #0a6ebd; stroke: #0a6ebd } .s1 { fill: #d1730b; stroke: #d1730b }
.s2 { fill: #2f8132; stroke: #2f8132 } .s3 { fill: #8250df; stroke: #8250df }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .paper { fill: #0d1117; stroke: #30363d }
  .grid { stroke: #30363d }
  .mark { stroke: #e6edf3 }
  .s0 { fill: #58a6ff; stroke: #58a6ff } .s1 { fill: #f0983e; stroke: #f0983e }
  .s2 { fill: #56d364; stroke: #56d364 } .s3 { fill: #bc8cff; stroke: #bc8cff }
}"""
COLOURS: Final = 4


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """What to draw."""

    name: str
    """Of its file, without the ending."""
    title: str
    kind: Literal["bars", "lines"]
    x_label: str
    y_label: str
    places: tuple[str, ...]
    """The names along the x axis."""
    series: Mapping[str, tuple[float, ...]]
    """For each name in the legend, one value for each place."""
    feet: Mapping[str, tuple[str, ...]] = {}
    """For some of those names, something short to say below each bar."""
    mark: tuple[str, float] | None = None
    """A level to compare with, such as a target."""


def svg(plot: Plot) -> str:
    """The plot as a file's content."""
    if len(plot.series) > COLOURS:
        raise ValueError(f"{plot.name}: more than {COLOURS} series cannot be told apart")
    step, top = _scale(max([*(value for values in plot.series.values() for value in values), _level(plot)]))
    draw = _bars if plot.kind == "bars" else _lines
    parts = [*_frame(plot), *_grid(step, top), *draw(plot, top), *_mark(plot, top), *_legend(plot)]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{escape(plot.title)}</title>\n<style>\n{STYLE}\n</style>\n{body}\n</svg>\n"
    )


def _level(plot: Plot) -> float:
    return plot.mark[1] if plot.mark else 0.0


def _scale(highest: float) -> tuple[float, float]:
    """The step of the grid, a round number, and the top of the axis, with room for a number above."""
    if highest <= 0:
        return 1.0, 1.0
    rough = highest / LINES
    magnitude: float = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough)
    return step, step * math.ceil(highest * 1.04 / step)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)


def _slot(plot: Plot) -> float:
    return (WIDTH - LEFT - RIGHT) / len(plot.places)


def _middle(plot: Plot, place: int) -> float:
    return LEFT + _slot(plot) * (place + 0.5)


def _text(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _frame(plot: Plot) -> Iterator[str]:
    yield f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>'
    yield _text(LEFT, 32, plot.title, "start", ' class="title"')
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, plot.x_label)
    height = (TOP + HEIGHT - BOTTOM) / 2
    yield _text(20, height, plot.y_label, extra=f' transform="rotate(-90 20 {height:.1f})"')
    for place, name in enumerate(plot.places):
        yield _text(_middle(plot, place), HEIGHT - BOTTOM + (26 if plot.feet else 20), name)


def _grid(step: float, top: float) -> Iterator[str]:
    for number in range(round(top / step) + 1):
        y = _y(number * step, top)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield _text(LEFT - 8, y + 4, _number(number * step), "end")


def _bars(plot: Plot, top: float) -> Iterator[str]:
    width = min(WIDEST, _slot(plot) * 0.84 / len(plot.series))
    for order, values in enumerate(plot.series.values()):
        for place, value in enumerate(values):
            x, y = _bar_corner(plot, order, place, width), _y(value, top)
            yield (
                f'<rect class="s{order}" x="{x + 1:.1f}" y="{y:.1f}" width="{width - 2:.1f}" '
                f'height="{HEIGHT - BOTTOM - y:.1f}"/>'
            )
    for order, values in enumerate(plot.series.values()):
        for place, value in enumerate(values):
            x = _bar_corner(plot, order, place, width)
            yield _text(x + width / 2, _y(value, top) - 5, _number(value), extra=' class="value"')
    for order, name in enumerate(plot.series):
        for place, foot in enumerate(plot.feet.get(name, ())):
            x = _bar_corner(plot, order, place, width)
            yield _text(x + width / 2, HEIGHT - BOTTOM + 12, foot, extra=' class="value"')


def _bar_corner(plot: Plot, order: int, place: int, width: float) -> float:
    return _middle(plot, place) + (order - len(plot.series) / 2) * width


def _lines(plot: Plot, top: float) -> Iterator[str]:
    for order, values in enumerate(plot.series.values()):
        points = [(_middle(plot, place), _y(value, top)) for place, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline class="line s{order}" style="fill: none" points="{path}"/>'
        for (x, y), value in zip(points, values, strict=True):
            yield f'<circle class="s{order}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            yield _text(x, y - 10, _number(value), extra=' class="value"')


def _mark(plot: Plot, top: float) -> Iterator[str]:
    if plot.mark is not None:
        name, level = plot.mark
        y = _y(level, top)
        yield f'<path class="mark" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield _text(WIDTH - RIGHT, y - 6, name, "end")


def _legend(plot: Plot) -> Iterator[str]:
    x = float(LEFT)
    for order, name in enumerate(plot.series):
        yield f'<rect class="s{order}" x="{x:.1f}" y="48" width="12" height="12" rx="2"/>'
        yield _text(x + 18, 59, name, "start")
        x += 42 + 7.2 * len(name)
