"""The tree of causes and its drawing: every event once, chains straight down, branches aside (§ORD-22)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from msgspec import Raw

from runstone.audit.trace import draw, printable, trace
from runstone.core.events import Event, StreamKind
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.stream import Stream, StreamHead
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.histories import five_step_history

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def event(name: str, cause: str | None, run_seq: int, stream_id: str, step_key: str | None = None) -> Event:
    return Event(
        id=name,
        tenant_id=DEFAULT_TENANT,
        stream_id=stream_id,
        event_type=name.upper(),
        event_version=1,
        aggregate_type="RUN",
        aggregate_id=stream_id,
        event_data=Raw(b"{}"),
        idempotency_key=name,
        correlation_id="c",
        causation_id=cause,
        actor="a",
        occurred_at=NOON,
        step_key=step_key,
        trace_id="0" * 32,
        span_id="0" * 16,
        run_seq=run_seq,
        prev_hash="0" * 64,
    )


def stream(stream_id: str, kind: StreamKind, events: Sequence[Event]) -> Stream:
    head = StreamHead(
        stream_id=stream_id,
        tenant_id=DEFAULT_TENANT,
        kind=kind,
        last_seq=len(events),
        head="",
        last_at=NOON,
        fence=0,
    )
    return Stream(head=head, events=tuple(events))


def run(*links: tuple[str, str | None], stream_id: str = "r1") -> Stream:
    """A run's stream from pairs of an event and its cause."""
    return stream(stream_id, "RUN", [event(*link, place, stream_id) for place, link in enumerate(links, 1)])


def drawn(*streams: Stream) -> list[str]:
    """The drawing without times."""
    return [line.replace("  2026-03-01T12:00:00.000000Z", "") for line in draw(trace(streams))]


def test_a_chain_goes_straight_down() -> None:
    assert drawn(run(("a", None), ("b", "a"), ("c", "b"))) == [
        "run  r1",
        "● A  run #1",
        "● B  run #2",
        "● C  run #3",
    ]


def test_what_leads_less_far_stands_aside() -> None:
    tree = run(
        ("a", None), ("b", "a"), ("x", "a"), ("c", "b"), ("y", "x"), ("z", "y"), ("p", "y"), ("d", "c")
    )
    assert drawn(tree) == [
        "run  r1",
        "● A  run #1",
        "├─● B  run #2",
        "│ ● C  run #4",
        "│ ● D  run #8",
        "● X  run #3",
        "● Y  run #5",
        "├─● P  run #7",
        "● Z  run #6",
    ]


def test_branches_of_branches_keep_their_rails() -> None:
    links = ["a", "b:a", "c:b", "d:b", "e:d", "m:a", "n:m", "o:n", "q:o", "s:q"]
    tree = run(*((name, cause or None) for name, _, cause in (link.partition(":") for link in links)))
    assert drawn(tree)[1:] == [
        "● A  run #1",
        "├─● B  run #2",
        "│ ├─● C  run #3",
        "│ ● D  run #4",
        "│ ● E  run #5",
        "● M  run #6",
        "● N  run #7",
        "● O  run #8",
        "● Q  run #9",
        "● S  run #10",
    ]


def test_streams_are_named_once_and_numbered() -> None:
    signal = stream("s1", "SIGNAL", [event("in", None, 1, "s1")])
    lines = drawn(signal, run(("a", "in")), run(("b", "a"), stream_id="r2"))
    assert lines == ["signal  s1", "run  r1", "run 2  r2", "● IN  signal #1", "● A  run #1", "● B  run 2 #1"]


def test_a_cause_that_is_not_here_makes_a_root_that_says_so() -> None:
    assert drawn(run(("a", None), ("b", "gone"), ("c", "b")))[1:] == [
        "● A  run #1",
        "● B  run #2  (its cause gone is not here)",
        "● C  run #3",
    ]


def test_a_circle_is_opened() -> None:
    assert drawn(run(("a", "c"), ("b", "a"), ("c", "b"), ("self", "self")))[1:] == [
        "● A  run #1  (it is its own cause, through c)",
        "● B  run #2",
        "● C  run #3",
        "● SELF  run #4  (it is its own cause, through self)",
    ]


def test_a_long_history_needs_no_deep_stack() -> None:
    links = [("e0", None), *((f"e{place}", f"e{place - 1}") for place in range(1, 20_000))]
    lines = list(draw(trace([run(*links)])))
    assert len(lines) == 20_001
    assert lines[-1].startswith("● E19999 ")


def test_a_step_is_named_and_cannot_speak_to_the_terminal() -> None:
    named = stream("r1", "RUN", [event("a", None, 1, "r1", step_key="größe\x1b[31m\n")])
    assert drawn(named)[1] == "● A  größe\\x1b[31m\\n  run #1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain 日本語", "plain 日本語"), ("\x07", "\\x07"), ("a\u202eb", "a\\u202eb"), ("", "")],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_whole_history_is_drawn_with_every_event_once() -> None:
    clock = VirtualClock()
    decisions = five_step_history(tenant_id=DEFAULT_TENANT, clock=clock, new_id=SeededIds(1, clock))
    events = [event for decision in decisions for event in decision.commit.events]
    signal_id = events[0].stream_id
    streams = [
        stream(signal_id, "SIGNAL", [event for event in events if event.stream_id == signal_id]),
        stream(events[1].stream_id, "RUN", [event for event in events if event.stream_id != signal_id]),
    ]
    roots = trace(streams)
    assert len(roots) == 1
    assert roots[0].size == len(events) == 24
    lines = list(draw(roots))
    assert len(lines) == 26
    assert lines[2].startswith("● SIGNAL_RECEIVED  signal #1")
    assert sum("STEP_STARTED" in line for line in lines) == 5
