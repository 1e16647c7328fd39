"""The hash chain: what is hashed, byte for byte, and what is not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from runstone.core.chain import GENESIS, event_bytes, event_hash, portable, seal
from runstone.core.events import Event, EventDraft
from tests.unit.core.build import HASH, NOON, Story, an_id
from tests.unit.core.stories import STORIES

DRAFT = EventDraft(
    id=an_id(1),
    tenant_id=an_id(2),
    stream_id=an_id(3),
    event_type="RUN_VARIABLE_SET",
    event_version=1,
    aggregate_type="RUN",
    aggregate_id=an_id(3),
    event_data=Raw(b'{"value": 1e2,"name":"x","other":-0}'),
    idempotency_key=HASH,
    correlation_id=an_id(4),
    actor="ada",
    occurred_at=NOON,
    trace_id="0" * 32,
    span_id="1" * 16,
)


def test_a_stream_begins_with_zeros() -> None:
    """§ORD-14"""
    assert GENESIS == "0" * 64


def test_sealing_gives_a_draft_its_place_and_changes_nothing_else() -> None:
    sealed = seal(DRAFT, 7, HASH)
    assert (sealed.run_seq, sealed.prev_hash) == (7, HASH)
    for field in EventDraft.__struct_fields__:
        assert getattr(sealed, field) == getattr(DRAFT, field)
    assert (sealed.sequence_number, sealed.persisted_at) == (None, None)


def test_the_bytes_that_are_hashed() -> None:
    """§PAY-1 to §PAY-3: keys sorted, defaults left out, the payload exactly as it was stored."""
    assert event_bytes(seal(DRAFT, 1, GENESIS)).decode() == (
        f'{{"actor":"ada","aggregate_id":"{an_id(3)}","aggregate_type":"RUN","correlation_id":"{an_id(4)}",'
        '"event_data":{"value": 1e2,"name":"x","other":-0},"event_type":"RUN_VARIABLE_SET","event_version":1,'
        f'"id":"{an_id(1)}","idempotency_key":"{HASH}","occurred_at":"2026-03-01T12:00:00Z",'
        f'"prev_hash":"{GENESIS}","run_seq":1,"span_id":"{"1" * 16}","stream_id":"{an_id(3)}",'
        f'"tenant_id":"{an_id(2)}","trace_id":"{"0" * 32}"}}'
    )


def test_the_hash_is_sha_256_over_them() -> None:
    """§ORD-15"""
    sealed = seal(DRAFT, 1, GENESIS)
    assert event_hash(sealed) == hashlib.sha256(event_bytes(sealed)).hexdigest()


def test_a_time_is_told_in_utc_wherever_the_writer_sits() -> None:
    """§PAY-3"""
    there = datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert event_bytes(seal(replace(DRAFT, occurred_at=there), 1, GENESIS)) == event_bytes(
        seal(DRAFT, 1, GENESIS)
    )


def test_what_the_store_adds_is_outside_of_the_hash() -> None:
    """The same event has the same hash in every store."""
    sealed = seal(DRAFT, 1, GENESIS)
    stored = replace(sealed, sequence_number=99, persisted_at=datetime(2027, 1, 1, tzinfo=UTC))
    assert event_hash(stored) == event_hash(sealed)
    assert portable(stored) == sealed
    assert portable(replace(sealed, sequence_number=99)) == sealed
    assert portable(replace(sealed, persisted_at=NOON)) == sealed
    assert portable(sealed) is sealed


@pytest.mark.parametrize(
    "change",
    [
        {"prev_hash": HASH},
        {"run_seq": 2},
        {"actor": "eve"},
        {"event_data": Raw(b'{"value":1e2,"name":"x","other":-0}')},
        {"occurred_at": NOON + timedelta(microseconds=1)},
        {"step_key": "a"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_else_is_inside(change: dict[str, object]) -> None:
    sealed = seal(DRAFT, 1, GENESIS)
    assert event_hash(replace(sealed, **change)) != event_hash(sealed)


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_every_event_carries_the_hash_of_its_predecessor(tell: Callable[[], Story]) -> None:
    """§ORD-14, §ORD-17: in both streams of a case, up to the head."""
    story = tell()
    for events, state in ((story.signal_events, story.case.signal), (story.run_events, story.case.run)):
        carried = [event.prev_hash for event in events]
        hashes = [event_hash(event) for event in events]
        assert [*carried, state.head] == [GENESIS, *hashes]


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_the_hashed_bytes_can_be_read_back_as_the_event(tell: Callable[[], Story]) -> None:
    for event in tell().events:
        read = msgspec.json.decode(event_bytes(event), type=Event)
        assert event_bytes(read) == event_bytes(event)
        assert read.occurred_at == event.occurred_at
