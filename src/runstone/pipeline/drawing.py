"""A graph for people: lines for a terminal, an SVG for a page. The same graph gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from runstone.core.pipeline import PipelineState
from runstone.pipeline.graph import CANCELLED, FAILED, Graph, State

_WIDTH: Final = 220
_HEIGHT: Final = 34
_GAP: Final = 26
_LANE: Final = 22
_MARGIN: Final = 24
_BASELINE: Final = 5
"""How far below a line's middle its letters stand; not every viewer knows `dominant-baseline`."""
_STYLE: Final = """
    text { font: 13px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle; }
    .note { font-size: 11px; fill: #57606a; }
    rect { fill: #ffffff; stroke: #57606a; stroke-width: 1.2; }
    .stable rect { fill: #dafbe1; stroke: #1a7f37; }
    .transitional rect { fill: #fff8c5; stroke: #9a6700; stroke-dasharray: 5 3; }
    .terminal rect { fill: #eaeef2; }
    .visited text { font-weight: 600; }
    .here rect { stroke: #0969da; stroke-width: 3; stroke-dasharray: none; }
    .edge { fill: none; stroke: #57606a; stroke-width: 1.2; }
    .taken { stroke: #0969da; }
""".strip("\n")


@dataclass(frozen=True)
class Line:
    """One state in a terminal: its mark, its name, and what there is to say of it."""

    mark: str
    name: str
    note: str
    style: str


def lines(graph: Graph, state: PipelineState) -> list[Line]:
    """The states in their order, what the run has passed, and where it is."""
    return [_line(graph, graph[name], state) for name in graph.names]


def _line(graph: Graph, shown: State, state: PipelineState) -> Line:
    here = shown.name == state.run_state
    visits = state.visits.get(shown.name, 0)
    mark, style = ("▶", "bold cyan") if here else ("✓", "green") if visits else ("·", "dim")
    if here and shown.name == FAILED:
        mark, style = "✗", "bold red"
    return Line(mark, shown.name, "; ".join(_notes(graph, shown, visits)), style)


def _notes(graph: Graph, shown: State, visits: int) -> Iterator[str]:
    follows = graph.names[graph.place(shown.name) + 1 : graph.place(shown.name) + 2]
    if shown.targets and shown.targets != follows:
        yield "→ " + ", ".join(shown.targets)
    if shown.stable:
        yield "stable"
    if shown.transitional:
        yield "transitional"
    if shown.limit is not None:
        yield f"{visits} of {shown.limit} attempts"
    elif visits > 1:
        yield f"entered {visits} times"


def svg(graph: Graph, state: PipelineState | None = None, *, title: str = "State graph") -> str:
    """The graph as a drawing; with a run's state, what it has passed and where it is."""
    state = state or PipelineState()
    jumps = [
        (name, target)
        for name in graph.names
        for target in graph[name].targets
        if graph.place(target) != graph.place(name) + 1
    ]
    forward = [jump for jump in jumps if graph.place(jump[1]) > graph.place(jump[0])]
    back = [jump for jump in jumps if jump not in forward]
    left = _MARGIN + _LANE * len(back)
    width = left + _WIDTH + _LANE * len(forward) + _MARGIN
    height = 2 * _MARGIN + len(graph.names) * (_HEIGHT + _GAP) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title">',
        f'  <title id="title">{escape(title)}</title>',
        f"  <style>\n{_STYLE}\n  </style>",
        '  <defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="#57606a"/></marker></defs>',
        *(_straight(graph, state, left, name) for name in graph.names if _goes_on(graph, name)),
        *(
            _curve(graph, state, left, jump, lane, 1)
            for lane, jump in enumerate(_short_first(graph, forward))
        ),
        *(_curve(graph, state, left, jump, lane, -1) for lane, jump in enumerate(_short_first(graph, back))),
        *(_box(graph, state, left, name) for name in graph.names),
        *_notes_below(graph, left + _WIDTH // 2, height - _MARGIN),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _notes_below(graph: Graph, middle: int, bottom: int) -> Iterator[str]:
    notes = [f"Any other may also end {FAILED} or {CANCELLED}."]
    if any(state.stable for state in graph.states.values()):
        notes.insert(0, "Green: stable. Dashed: goes back to it on resume.")
    for line, note in enumerate(reversed(notes)):
        yield f'  <text class="note" x="{middle}" y="{bottom - 16 * line}">{note}</text>'


def _goes_on(graph: Graph, name: str) -> bool:
    return any(graph.place(target) == graph.place(name) + 1 for target in graph[name].targets)


def _short_first(graph: Graph, jumps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(
        jumps, key=lambda jump: (abs(graph.place(jump[1]) - graph.place(jump[0])), graph.place(jump[0]))
    )


def _top(graph: Graph, name: str) -> int:
    return _MARGIN + graph.place(name) * (_HEIGHT + _GAP)


def _taken(state: PipelineState, *names: str) -> str:
    return "edge taken" if all(name in state.visits for name in names) else "edge"


def _straight(graph: Graph, state: PipelineState, left: int, name: str) -> str:
    start = _top(graph, name) + _HEIGHT
    after = graph.names[graph.place(name) + 1]
    middle = left + _WIDTH // 2
    return (
        f'  <path class="{_taken(state, name, after)}" d="M{middle} {start} V{start + _GAP}" '
        'marker-end="url(#arrow)"/>'
    )


def _curve(graph: Graph, state: PipelineState, left: int, jump: tuple[str, str], lane: int, side: int) -> str:
    edge = left + _WIDTH if side > 0 else left
    reach = edge + side * _LANE * (lane + 1)
    start = _top(graph, jump[0]) + _HEIGHT // 2 + 6
    end = _top(graph, jump[1]) + _HEIGHT // 2 - 6
    return (
        f'  <path class="{_taken(state, *jump)}" marker-end="url(#arrow)" '
        f'd="M{edge} {start} C{reach} {start} {reach} {end} {edge} {end}"/>'
    )


def _box(graph: Graph, state: PipelineState, left: int, name: str) -> str:
    shown = graph[name]
    classes = [
        *(["stable"] if shown.stable else []),
        *(["transitional"] if shown.transitional else []),
        *(["terminal"] if name in graph.terminal else []),
        *(["visited"] if name in state.visits else []),
        *(["here"] if name == state.run_state else []),
    ]
    top = _top(graph, name)
    label = escape(name if shown.limit is None else f"{name} (at most {shown.limit})")
    marked = f' class="{" ".join(classes)}"' if classes else ""
    return (
        f'  <g{marked}><rect x="{left}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="{left + _WIDTH // 2}" y="{top + _HEIGHT // 2 + _BASELINE}">{label}</text></g>'
    )
