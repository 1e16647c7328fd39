"""The audit finds what is wrong, names the place and both values, and nothing else (§STO-41, §STO-42)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from runstone.core.chain import GENESIS, event_hash
from runstone.core.events import Event
from runstone.core.rows import Row, all_rows
from runstone.core.run import QueueEntry, Run
from runstone.core.step import Step
from runstone.core.stream import Stream
from runstone.core.verify import Finding, verify_causes, verify_events, verify_stream
from tests.unit.core.build import Story, an_id, handed_over, raw
from tests.unit.core.stories import STORIES


def stream_of(story: Story, kind: str = "RUN") -> Stream:
    """One of the story's streams."""
    if kind == "RUN":
        return handed_over(story.case.run, story.run_events)
    return handed_over(story.case.signal, story.signal_events)


def chained(stream: Stream, events: Sequence[Event]) -> Stream:
    """The same stream with these events, as somebody would leave it who knows how to hash."""
    linked: list[Event] = []
    expected = GENESIS
    for event in events:
        linked.append(replace(event, prev_hash=expected))
        expected = event_hash(linked[-1])
    head = replace(stream.head, head=expected, last_seq=len(linked), last_at=linked[-1].occurred_at)
    return Stream(head=head, events=tuple(linked))


def rows_of(stream: Stream) -> list[Row]:
    return list(all_rows(stream.fold()))


def working() -> Story:
    story = Story.running()
    story.step("work", {"paid": "19.90"})
    story.failed_step("broken")
    return story


def checks(findings: Sequence[Finding]) -> set[str]:
    return {finding.check for finding in findings}


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_nothing_is_found_where_nothing_is_wrong(tell: Callable[[], Story]) -> None:
    story = tell()
    streams = [stream_of(story, "SIGNAL")] if story.signal_events else []
    streams += [stream_of(story)] if story.run_events else []
    for stream in streams:
        assert verify_stream(stream, rows_of(stream)) == []
    assert verify_causes(streams) == []


class TestTheLog:
    def test_a_changed_payload_breaks_the_chain_behind_it(self) -> None:
        stream = stream_of(working())
        changed = [
            replace(event, event_data=raw({"broken": True})) if event.run_seq == 4 else event
            for event in stream.events
        ]
        findings = verify_events(replace(stream, events=tuple(changed)))
        assert ("hash chain", "run_seq 5") in {(finding.check, finding.place) for finding in findings}

    def test_the_last_event_is_held_by_the_head(self) -> None:
        stream = stream_of(working())
        last = replace(stream.events[-1], actor="mallory")
        (finding,) = verify_events(replace(stream, events=(*stream.events[:-1], last)))
        assert (finding.check, finding.place) == ("hash chain", "the head")

    def test_a_missing_event(self) -> None:
        stream = stream_of(working())
        findings = verify_events(replace(stream, events=(*stream.events[:2], *stream.events[3:])))
        assert {"sequence", "hash chain", "fold"} <= checks(findings)

    def test_a_missing_end(self) -> None:
        stream = stream_of(working())
        findings = verify_events(replace(stream, events=stream.events[:-1]))
        assert ("sequence", "the end") in {(finding.check, finding.place) for finding in findings}

    def test_an_event_of_another_stream(self) -> None:
        stream = stream_of(working())
        foreign = [
            replace(event, tenant_id=an_id(900)) if event.run_seq == 2 else event for event in stream.events
        ]
        assert "stream" in checks(verify_events(chained(stream, foreign)))

    def test_a_repeated_id_and_a_repeated_key(self) -> None:
        stream = stream_of(working())
        first, second, *rest = stream.events
        twin = replace(second, id=first.id, idempotency_key=first.idempotency_key)
        assert {"event id", "event key"} <= checks(verify_events(chained(stream, [first, twin, *rest])))

    def test_a_time_that_goes_back(self) -> None:
        stream = stream_of(working())
        late = stream.events[-1].occurred_at + timedelta(hours=1)
        events = [
            replace(event, occurred_at=late) if event.run_seq == 2 else event for event in stream.events
        ]
        assert "time" in checks(verify_events(chained(stream, events)))

    def test_a_head_with_another_time(self) -> None:
        stream = stream_of(working())
        head = replace(stream.head, last_at=stream.head.last_at + timedelta(seconds=1))
        (finding,) = verify_events(replace(stream, head=head))
        assert (finding.check, finding.place) == ("time", "the head")

    def test_an_empty_stream_is_not_what_its_head_says(self) -> None:
        stream = stream_of(working())
        assert {"sequence", "hash chain"} <= checks(verify_events(replace(stream, events=())))


class TestRows:
    def test_a_changed_column_is_named_with_both_values(self) -> None:
        stream = stream_of(working())
        rows = [
            replace(row, step_key="other#1") if isinstance(row, Step) and row.step_key == "work" else row
            for row in rows_of(stream)
        ]
        (finding,) = verify_stream(stream, rows)
        assert finding.place.endswith("column step_key")
        assert (finding.expected, finding.found) == ('"work"', '"other#1"')

    def test_a_missing_row_and_one_too_many(self) -> None:
        stream = stream_of(working())
        rows = rows_of(stream)
        without = [row for row in rows if not isinstance(row, QueueEntry)]
        (missing,) = verify_stream(stream, without)
        assert (missing.expected, missing.found) == ("a row", "none")
        run = next(row for row in rows if isinstance(row, Run))
        (added,) = verify_stream(stream, [*rows, replace(run, id=an_id(901), total_steps=2, failed_steps=1)])
        assert (added.expected, added.found) == ("no row", "one")

    def test_counters_are_counted_again(self) -> None:
        stream = stream_of(working())
        rows = [replace(row, failed_steps=0) if isinstance(row, Run) else row for row in rows_of(stream)]
        assert checks(verify_stream(stream, rows)) == {"rows", "counters"}

    def test_rows_of_a_log_that_does_not_fold_are_not_compared(self) -> None:
        stream = stream_of(working())
        damaged = replace(stream, events=(*stream.events[:2], *stream.events[3:]))
        assert "rows" not in checks(verify_stream(damaged, ()))

    def test_whatever_breaks_the_fold_is_a_finding(self) -> None:
        stream = stream_of(working())
        nameless = [
            replace(event, event_type="NOBODY_KNOWS") if event.run_seq == 3 else event
            for event in stream.events
        ]
        (finding,) = verify_stream(chained(stream, nameless), ())
        assert (finding.check, finding.place) == ("fold", "the log")
        assert "NOBODY_KNOWS" in finding.found


class TestCauses:
    def test_a_cause_that_is_not_there(self) -> None:
        story = working()
        (finding, *_) = verify_causes([stream_of(story)])
        assert finding.check == "causation"
        assert story.signal_events[0].id in finding.found

    def test_a_circle(self) -> None:
        story = working()
        stream = stream_of(story)
        first, *rest = stream.events
        circle = replace(first, causation_id=rest[-1].id)
        findings = verify_causes([stream_of(story, "SIGNAL"), replace(stream, events=(circle, *rest))])
        assert any("a cycle through" in finding.found for finding in findings)


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_a_log_that_names_the_event_before_as_cause_is_whole_and_folds_to_the_same(
    tell: Callable[[], Story],
) -> None:
    """§ORD-42: as logs were written before that clause."""
    story = tell()
    stream = stream_of(story)
    before: dict[str, str] = {}
    events: list[Event] = []
    for event in stream.events:
        cause = before.get(event.aggregate_id, event.causation_id)
        events.append(replace(event, causation_id=cause))
        before[event.aggregate_id] = event.id
    older = chained(stream, events)
    assert verify_stream(older, rows_of(stream)) == []
    assert verify_causes([older, stream_of(story, "SIGNAL")]) == []


def test_a_finding_is_readable_and_long_values_are_cut() -> None:
    finding = Finding(stream_id="s", check="rows", place="runs 1", expected="x" * 500, found="y")
    lines = str(finding).splitlines()
    assert lines[0] == "rows at runs 1 of stream s"
    assert lines[1].endswith("… (500 characters)")
    assert lines[2] == "  found    y"
