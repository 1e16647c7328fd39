"""Tombstones: what is left of a correlation, and when it may go (§STO-34 to §STO-37)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from runstone.core import commands
from runstone.core.stream import Stream, StreamHead
from runstone.core.tombstone import Resting, Tombstone, bury, check_whole, last_at, objection, unfinished
from runstone.errors import StaleSequence
from tests.unit.core.build import Story, error
from tests.unit.core.stories import completed
from tests.unit.core.test_verify import stream_of

replace = msgspec.structs.replace
NOW = datetime(2030, 1, 1, tzinfo=UTC)
ALWAYS = Resting(ended_before=NOW, received_before=NOW)


def streams_of(story: Story) -> list[Stream]:
    return [stream_of(story, "SIGNAL"), stream_of(story)]


def stones(story: Story) -> tuple[Tombstone, ...]:
    return bury(streams_of(story), archive="/archive", bundle="b.ndjson", bundle_sha256="a" * 64, now=NOW)


def test_a_tombstone_has_what_proves_its_stream_and_what_a_duplicate_is_known_by() -> None:
    story = completed()
    of_signal, of_run = stones(story)
    signal, run = story.case.signal.signal, story.case.run.run
    assert signal is not None
    assert run is not None
    for stone, stream in zip((of_signal, of_run), streams_of(story), strict=True):
        assert (stone.stream_id, stone.kind) == (stream.head.stream_id, stream.head.kind)
        assert (stone.last_seq, stone.head) == (stream.head.last_seq, stream.head.head)
        assert (stone.tenant_id, stone.correlation_id) == (run.tenant_id, run.correlation_id)
        assert (stone.where, stone.bundle_sha256, stone.removed_at) == ("/archive/b.ndjson", "a" * 64, NOW)
    assert (of_signal.source_channel, of_signal.source_id) == (signal.source_channel, signal.source_id)
    assert (of_signal.source_hash, of_signal.signal_id, of_signal.run_key) == (signal.source_hash, None, None)
    assert (of_run.source_channel, of_run.source_id, of_run.source_hash) == (None, None, None)
    assert (of_run.signal_id, of_run.run_key) == (signal.id, run.key)


def test_a_change_breaks_the_digest() -> None:
    for stone in stones(completed()):
        assert stone.sealed == stone
        for name in Tombstone.__struct_fields__:
            changed = replace(stone, **{name: NOW.replace(year=2031) if name == "removed_at" else "other"})
            assert changed.sealed != changed, name


def test_who_asks_for_the_stream_is_told_where_it_is() -> None:
    of_signal, of_run = stones(completed())
    assert str(of_run.error).startswith(f"Run {of_run.stream_id} was archived on 2030-01-01")
    assert "/archive/b.ndjson" in str(of_run.error)
    assert str(of_signal.error).startswith(f"Signal {of_signal.stream_id} was archived")


def test_two_tombstones_are_the_same_if_they_stand_for_the_same_events() -> None:
    stone, _ = stones(completed())
    assert stone.same(replace(stone, archive="/elsewhere", removed_at=NOW + timedelta(days=1)))
    assert not stone.same(replace(stone, head="b" * 64))
    assert not stone.same(replace(stone, last_seq=99))
    assert not stone.same(None)


def test_what_has_ended_and_rested_may_go() -> None:
    """§STO-34"""
    streams = streams_of(completed())
    latest = last_at(streams)
    assert latest == max(stream.head.last_at for stream in streams)
    exact = Resting(ended_before=latest, received_before=NOW - timedelta(days=365 * 50))
    assert objection(streams, exact) is None
    early = replace(exact, ended_before=latest - timedelta(microseconds=1))
    assert "something happened" in (objection(streams, early) or "")


def test_signals_without_a_run_have_a_limit_of_their_own() -> None:
    """§STO-34"""
    streams = streams_of(completed())[:1]
    latest = last_at(streams)
    never = NOW - timedelta(days=365 * 50)
    assert objection(streams, Resting(ended_before=never, received_before=latest)) is None
    assert objection(streams, Resting(ended_before=NOW, received_before=never)) is not None


def test_what_goes_on_stays() -> None:
    """§STO-35"""
    for story in (Story.queued(), Story.running()):
        assert "has not ended" in (unfinished(streams_of(story)) or "")
        assert objection(streams_of(story), ALWAYS) is not None


def test_an_open_effect_and_a_dead_letter_stay() -> None:
    """§STO-35: a failed run's effects go out all the same, and a dead letter waits for a person."""
    story = Story.running()
    effect = story.effect()
    story.do(commands.FailRun(error=error(), exit_reason="E1"))
    assert "is PENDING" in (unfinished(streams_of(story)) or "")
    story.not_sent(effect)
    assert "is DEAD_LETTER" in (unfinished(streams_of(story)) or "")
    story.do(commands.DiscardEffect(effect_id=effect))
    assert unfinished(streams_of(story)) is None


def test_tombstones_stand_for_a_whole_correlation() -> None:
    """§STO-39"""
    story = completed()
    heads = [stream.head for stream in streams_of(story)]
    of_signal, of_run = stones(story)
    check_whole([of_run, of_signal], heads)
    moved = [heads[0], replace(heads[1], last_seq=99)]
    wrong: list[tuple[list[Tombstone], list[StreamHead]]] = [
        ([of_signal], heads),
        ([of_signal, of_run], heads[:1]),
        ([of_signal, of_run], moved),
        ([of_signal, replace(of_run, head="b" * 64)], heads),
    ]
    for given, there in wrong:
        with pytest.raises(StaleSequence):
            check_whole(given, there)
