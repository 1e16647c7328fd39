"""Bundles prove themselves, and the same history always gives the same bytes (§STO-43 to §STO-46)."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from runstone.core import codec
from runstone.core.bundle import import_commit, pack, unfinished_runs, unpack
from runstone.core.commands import FailRun, SetVariable
from runstone.core.rows import all_rows
from runstone.core.run import QueueEntry
from runstone.errors import BundleInvalid, InvalidPayload
from tests.unit.core.build import Story, an_id, error
from tests.unit.core.test_verify import chained, stream_of


def finished() -> Story:
    story = Story.running()
    story.step("work", {"paid": "19.90"})
    story.returned()
    return story


def bundle(story: Story) -> bytes:
    return pack([stream_of(story, "SIGNAL"), stream_of(story)])


def rewritten(content: bytes, lines: list[bytes] | None = None, **manifest: Any) -> bytes:
    """A bundle whose manifest was adapted to what was done to it."""
    head, *events = content.splitlines()
    events = events if lines is None else lines
    body = b"".join(line + b"\n" for line in events)
    changed = {**json.loads(head), "sha256": "", "events": len(events), **manifest}
    changed["sha256"] = sha256(codec.encode(changed) + b"\n" + body).hexdigest()
    return codec.encode(changed) + b"\n" + body


def test_what_goes_in_comes_out() -> None:
    story = finished()
    streams = unpack(bundle(story))
    assert [stream.head.kind for stream in streams] == ["SIGNAL", "RUN"]
    assert [event for stream in streams for event in stream.events] == [
        *story.signal_events,
        *story.run_events,
    ]
    assert pack(streams) == bundle(story)


def test_what_the_store_added_is_left_out() -> None:
    story = finished()
    stored = [
        replace(stream, events=tuple(replace(event, sequence_number=7) for event in stream.events))
        for stream in (stream_of(story, "SIGNAL"), stream_of(story))
    ]
    assert pack(stored) == bundle(story)


def test_every_changed_byte_is_noticed() -> None:
    content = bundle(finished())
    for place in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 1
        with pytest.raises(BundleInvalid):
            unpack(bytes(damaged))


class TestRefused:
    def test_nothing(self) -> None:
        with pytest.raises(BundleInvalid, match="nothing to put"):
            pack([])

    @pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b"{}\n"])
    def test_no_bundle_at_all(self, content: bytes) -> None:
        with pytest.raises(BundleInvalid, match="no Runstone bundle"):
            unpack(content)

    @pytest.mark.parametrize(
        ("left", "where"),
        [
            (lambda head, events: head[:-9], "in line 1:"),
            (lambda head, events: head, "in line 1:"),
            (lambda head, events: head + b"\n", "behind line 1, with 0 of its 9 events:"),
            (lambda head, events: b"\n".join([head, *events[:3], b""]), "behind line 4, with 3 of its 9 "),
            (lambda head, events: b"\n".join([head, *events[:3], b"{"]), "in line 5, with 3 of its 9 "),
            (lambda head, events: b"\n".join([head, *events]), "in line 10, with 8 of its 9 "),
            (lambda head, events: b"\n".join([head, *events])[:-9] + b"\n", "in line 10:"),
        ],
    )
    def test_one_that_is_cut_off(self, left: Callable[[bytes, list[bytes]], bytes], where: str) -> None:
        head, *events = bundle(finished()).splitlines()
        with pytest.raises(BundleInvalid, match=f"The bundle seems to be cut off {where}"):
            unpack(left(head, events))

    @pytest.mark.parametrize("more", [b"x", b"x\n", b"{}\n"])
    def test_one_that_goes_on(self, more: bytes) -> None:
        with pytest.raises(BundleInvalid, match="its hash does not fit its content"):
            unpack(bundle(finished()) + more)

    def test_another_format(self) -> None:
        with pytest.raises(BundleInvalid, match="its format is 'zip'"):
            unpack(rewritten(bundle(finished()), format="zip"))

    def test_a_newer_format(self) -> None:
        with pytest.raises(BundleInvalid, match="upgrade"):
            unpack(rewritten(bundle(finished()), format_version=2))

    def test_a_line_that_is_no_event(self) -> None:
        content = bundle(finished())
        lines = content.splitlines()[1:]
        with pytest.raises(BundleInvalid, match="Line 3 of the bundle is no event"):
            unpack(rewritten(content, [lines[0], b"{}", *lines[2:]]))

    def test_a_line_in_another_form(self) -> None:
        content = bundle(finished())
        first, *rest = content.splitlines()[1:]
        with pytest.raises(BundleInvalid, match="canonical form"):
            unpack(rewritten(content, [first.replace(b'":', b'": ', 1), *rest]))

    def test_another_number_of_events(self) -> None:
        with pytest.raises(BundleInvalid, match="its manifest says 99"):
            unpack(rewritten(bundle(finished()), events=99))

    def test_a_stream_without_events(self) -> None:
        content = bundle(finished())
        streams = [*json.loads(content.splitlines()[0])["streams"]]
        empty = {"id": an_id(902), "kind": "RUN", "last_seq": 0, "head": "0" * 64}
        with pytest.raises(BundleInvalid, match="no events of stream"):
            unpack(rewritten(content, streams=[*streams, empty]))

    def test_events_of_no_stream(self) -> None:
        content = bundle(finished())
        streams = json.loads(content.splitlines()[0])["streams"]
        with pytest.raises(BundleInvalid, match="streams that its manifest does not name"):
            unpack(rewritten(content, streams=streams[:1]))

    def test_a_history_that_never_was(self) -> None:
        """Whoever hashes everything again still has to tell a story that folds."""
        story = finished()
        stream = stream_of(story)
        illegal = chained(stream, [stream.events[0], *stream.events[2:]])
        renumbered = chained(
            stream, [replace(event, run_seq=place) for place, event in enumerate(illegal.events, 1)]
        )
        with pytest.raises(BundleInvalid, match="does not add up"):
            unpack(pack([stream_of(story, "SIGNAL"), renumbered]))

    def test_a_cause_that_was_left_out(self) -> None:
        with pytest.raises(BundleInvalid, match="causation"):
            unpack(pack([stream_of(finished())]))


def test_a_payload_with_line_breaks_would_not_be_one_line() -> None:
    """§STO-44: so it is refused before it is an event."""
    story = Story.running()
    with pytest.raises(InvalidPayload, match="line breaks"):
        story.do(SetVariable(name="a", value=Raw(b"[1,\n2]")))


def test_an_ended_run_with_effects_under_way_would_go_on() -> None:
    story = Story.running()
    story.effect()
    story.do(FailRun(error=error()))
    assert unfinished_runs([stream_of(story)]) == [story.run_id]


def test_runs_that_would_go_on_are_named() -> None:
    story = Story.running()
    assert unfinished_runs([stream_of(story, "SIGNAL"), stream_of(story)]) == [story.run_id]
    assert unfinished_runs([stream_of(finished())]) == []


class TestImport:
    def test_it_makes_the_streams_as_they_are(self) -> None:
        story = finished()
        commit = import_commit(unpack(bundle(story)))
        signal, run = commit.writes
        assert (signal.expected_seq, run.expected_seq, run.fence) == (0, 0, 0)
        assert (run.last_seq, run.head) == (story.state.last_seq, story.state.head)
        assert run.rows == all_rows(story.state)
        assert (run.queue, run.queue_changed) == (None, False)

    def test_causes_come_first_in_the_feed(self) -> None:
        """§ORD-21"""
        seen: set[str | None] = {None}
        for event in import_commit(unpack(bundle(finished()))).events:
            assert event.causation_id in seen
            seen.add(event.id)

    def test_a_run_that_goes_on_is_queued(self) -> None:
        story = Story.running()
        _, run = import_commit([stream_of(story, "SIGNAL"), stream_of(story)]).writes
        assert isinstance(run.queue, QueueEntry)
        assert run.queue_changed
        assert QueueEntry not in map(type, run.rows)
