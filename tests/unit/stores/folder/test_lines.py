"""The lines of a folder's log: which is the next, and what is behind the last (§PIP-43, §PIP-44)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest
from msgspec import Raw

from runstone.core import codec, payloads
from runstone.core.chain import event_bytes, event_hash
from runstone.core.events import Event
from runstone.errors import InvalidPayload
from runstone.stores.folder.lines import (
    Chain,
    NotChained,
    NotInPlace,
    classify,
    describe,
    is_strict,
    line_of,
    vouches,
)
from tests.unit.core.build import Story


def events() -> list[Event]:
    story = Story.running()
    story.record(payloads.RunStateChanged(to_state="CREATED"), payloads.WorkItemStarted(item="i", worker="w"))
    return [event for event in story.events if event.run_id is not None]


EVENTS = events()
LINES = [event_bytes(event) for event in EVENTS]
SAME_CALL = event_bytes(msgspec.structs.replace(EVENTS[3], occurred_at=EVENTS[2].occurred_at))
LATER_CALL = event_bytes(
    msgspec.structs.replace(EVENTS[3], occurred_at=EVENTS[2].occurred_at + timedelta(microseconds=1))
)


def chain(lines: Sequence[bytes]) -> Chain:
    """A chain that has these lines in it."""
    made = Chain(EVENTS[0].stream_id)
    assert len(list(made.follow(lines))) == len(lines)
    return made


def test_a_chain_follows_lines_quickly_and_strictly_to_the_same_end() -> None:
    quick, strict = chain(LINES), Chain(EVENTS[0].stream_id)
    assert [strict.take(line) for line in LINES] == EVENTS
    assert (quick.count, quick.head) == (strict.count, strict.head) == (len(LINES), event_hash(EVENTS[-1]))
    assert quick.tenant_id == EVENTS[0].tenant_id


def test_a_line_that_is_read_quickly_is_encoded_as_it_was() -> None:
    read = [event for event, _ in Chain(EVENTS[0].stream_id).follow(LINES)]
    assert [event_bytes(event) for event in read] == LINES
    assert [event_hash(event) for event in read] == [event_hash(event) for event in EVENTS]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_seq": 7}, "expected run_seq 2, found 7"),
        ({"prev_hash": "f" * 64}, "the line before it has the hash"),
        ({"stream_id": "0" * 8 + EVENTS[0].stream_id[8:]}, "it belongs to stream 00000000"),
        ({"tenant_id": "0" * 8 + EVENTS[0].tenant_id[8:-1] + "9"}, "it belongs to tenant"),
        ({"id": "no id"}, "this is no event"),
    ],
)
def test_a_line_that_is_not_the_next_is_refused_and_stops_those_who_follow(
    changes: dict[str, object], said: str
) -> None:
    line = event_bytes(msgspec.structs.replace(EVENTS[1], **changes))
    here = chain(LINES[:1])
    with pytest.raises(NotInPlace, match=said):
        here.check(line)
    if "id" not in changes:
        assert list(here.follow([line])) == []
    assert here.count == 1


def test_ids_are_looked_at_only_by_strict_readers() -> None:
    """Its hash would prove it, if it were there: whoever wrote it had it read strictly."""
    line = event_bytes(msgspec.structs.replace(EVENTS[1], id="no id"))
    assert len(list(chain(LINES[:1]).follow([line]))) == 1
    assert not is_strict(line)


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"garbage", b"\0", b"\xff", LINES[1][:-1]])
def test_what_is_no_event_is_refused(line: bytes) -> None:
    here = chain(LINES[:1])
    with pytest.raises(NotInPlace, match="this is no event"):
        here.check(line)
    assert list(here.follow([line, *LINES[1:]])) == []
    assert not is_strict(line)
    assert not vouches(line, LINES[0])


def test_a_line_vouches_for_the_one_before() -> None:
    assert vouches(LINES[1], LINES[0])
    assert not vouches(LINES[2], LINES[0])
    with pytest.raises(NotChained):
        chain(LINES[:1]).check(event_bytes(msgspec.structs.replace(EVENTS[1], prev_hash="f" * 64)))


def test_a_chain_further_up_believes_the_next_line() -> None:
    here = Chain.at(chain(LINES), 2)
    assert here.take(LINES[2]) == EVENTS[2]
    with pytest.raises(NotChained):
        here.check(event_bytes(msgspec.structs.replace(EVENTS[3], prev_hash="f" * 64)))
    assert Chain.at(chain(LINES), 0).take(LINES[0]) == EVENTS[0]


@pytest.mark.parametrize(
    ("rest", "called"),
    [
        (b"", "NOTHING"),
        (LINES[1], "WHOLE"),
        (LINES[1][:-1], "TORN"),
        (LINES[1].replace(b'{"', b'{ "', 1), "TORN"),
        (LINES[2], "TORN"),
        (b"\0", "TORN"),
        (b"garbage", "TORN"),
        (b"\0" * 7 + b"\n", "TORN"),
        (b'{"actor"' + b"\0" * 7 + b'"}\n' + b"\0" * 9, "TORN"),
        (b"garbage\n", "BAD"),
        (b"\n", "BAD"),
        (LINES[2] + b"\n", "BAD"),
        (b"\0\n" + LINES[1] + b"\n", "TORN"),
        (b"\0\n" + LINES[2] + b"\n\0\n" + SAME_CALL + b"\n" + LINES[3][:9], "TORN"),
        (b"\0\n" + LINES[2] + b"\n" + LATER_CALL + b"\n", "BAD"),
        (b"\0\ngarbage\n", "BAD"),
        (b"garbage\n" + LINES[2] + b"\n\0\n", "BAD"),
        (b"garbage\ngarbage", "BAD"),
        (b"garbage\n\0", "TORN"),
    ],
)
def test_what_is_behind_the_last_line(rest: bytes, called: str) -> None:
    assert classify(rest, chain(LINES[:1])) == called


@pytest.mark.parametrize(
    ("torn", "said"),
    [
        (b"\0\0", "zeros"),
        (LINES[0][:9], "the beginning of an event"),
        (b"{", "no part of an event"),
        (b"\0{", "no part of an event"),
    ],
)
def test_what_is_torn_is_described(torn: bytes, said: str) -> None:
    assert describe(torn) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trace_id": "none"}, "RUN_STARTED cannot be stored"),
        ({"event_data": Raw(b'{"a":')}, "RUN_STARTED cannot be stored"),
        ({"engine_run_ref": float("inf")}, "RUN_STARTED would not be read back"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidPayload, match=said):
        line_of(msgspec.structs.replace(EVENTS[1], **changes))


def test_a_line_is_the_bytes_that_are_hashed() -> None:
    assert line_of(msgspec.structs.replace(EVENTS[1], sequence_number=7)) == LINES[1]
    assert codec.parse(LINES[1])["event_type"] == "RUN_STARTED"
