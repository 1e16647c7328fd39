"""A graph drawn: as lines for a terminal, as an SVG that is the same every time."""

from __future__ import annotations

from xml.etree import ElementTree

from runstone.core.pipeline import PipelineState
from runstone.pipeline import drawing
from runstone.pipeline.graph import DOCS_GRAPH, Graph, State

SVG = "{http://www.w3.org/2000/svg}"
FIXING = PipelineState(
    run_state="FIXING", visits={"CREATED": 1, "LINKING": 1, "VALIDATING": 2, "FIXING": 2, "DRAFT_READY": 1}
)


def test_lines_show_where_the_run_is_and_was() -> None:
    shown = {line.name: line for line in drawing.lines(DOCS_GRAPH, FIXING)}
    assert list(shown) == list(DOCS_GRAPH.names)
    assert (shown["FIXING"].mark, shown["LINKING"].mark, shown["DONE"].mark) == ("▶", "✓", "·")
    assert shown["FIXING"].note == "→ VALIDATING; transitional; 2 of 3 attempts"
    assert shown["VALIDATING"].note == "→ READY_FOR_PR, FIXING; transitional; entered 2 times"
    assert shown["PLAN_READY"].note == "stable"
    assert shown["CREATED"].note == ""


def test_a_failure_is_marked() -> None:
    shown = drawing.lines(DOCS_GRAPH, PipelineState(run_state="FAILED", visits={"FAILED": 1}))
    assert [line.mark for line in shown if line.name == "FAILED"] == ["✗"]


def boxes(drawn: str) -> dict[str, str]:
    """Each box's text and its classes."""
    groups = ElementTree.fromstring(drawn).findall(f"{SVG}g")
    return {"".join(group.itertext()): group.get("class") or "" for group in groups}


def test_the_drawing_has_every_state_and_every_way() -> None:
    drawn = drawing.svg(DOCS_GRAPH, title="docs <1>")
    root = ElementTree.fromstring(drawn)
    assert root.findtext(f"{SVG}title") == "docs <1>"
    assert list(boxes(drawn)) == [
        name if name != "FIXING" else "FIXING (at most 3)" for name in DOCS_GRAPH.names
    ]
    ways = sum(len(DOCS_GRAPH[name].targets) for name in DOCS_GRAPH.names)
    assert len(root.findall(f"{SVG}path")) == ways


def test_a_run_is_shown_on_it() -> None:
    drawn = boxes(drawing.svg(DOCS_GRAPH, FIXING))
    assert drawn["FIXING (at most 3)"] == "transitional visited here"
    assert drawn["DRAFT_READY"] == "stable visited"
    assert drawn["DONE"] == "terminal"
    assert drawn["INGESTED"] == ""


def test_the_same_graph_gives_the_same_bytes() -> None:
    again = Graph.described(DOCS_GRAPH.describe())
    assert drawing.svg(again, FIXING) == drawing.svg(DOCS_GRAPH, FIXING)


def test_names_are_escaped() -> None:
    drawn = drawing.svg(Graph(State("<A&B>", to="END"), State("END")))
    assert "<A&B>" in boxes(drawn)
