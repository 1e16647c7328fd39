"""Structs to rows and back, and batches in powers of two."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from runstone.core.ids import DEFAULT_TENANT
from runstone.errors import StoreCorrupt
from runstone.stores.sqlite.rows import EVENTS, ROWS, SIZES, Table, chunks, from_micros, to_micros
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.histories import five_step_history
from runstone.testing.hostile import PAYLOADS, TEXTS


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """A field of every kind."""

    id: str
    number: int
    share: float
    blob: bytes
    flag: bool
    moment: datetime
    payload: Raw
    anything: Any = None
    maybe_flag: bool | None = None
    maybe_moment: datetime | None = None
    maybe_payload: Raw | None = None


THINGS = Table("things", Thing)
moments = st.datetimes(timezones=st.just(UTC))
payloads = st.sampled_from(PAYLOADS)

things = st.builds(
    Thing,
    id=st.sampled_from(TEXTS),
    number=st.integers(-(2**63), 2**63 - 1),
    share=st.floats(allow_nan=False),
    blob=st.binary(),
    flag=st.booleans(),
    moment=moments,
    payload=payloads,
    anything=st.none() | st.dictionaries(st.sampled_from(TEXTS), st.integers(-(2**53) + 1, 2**53 - 1)),
    maybe_flag=st.none() | st.booleans(),
    maybe_moment=st.none() | moments,
    maybe_payload=st.none() | payloads,
)


@given(things)
def test_what_is_packed_unpacks_to_the_same(thing: Thing) -> None:
    packed = THINGS.pack(thing)
    assert {type(value) for value in packed} <= {str, int, float, bytes, type(None)}
    assert THINGS.unpack(packed) == thing


@given(moments)
def test_times_are_microseconds(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment
    elsewhere = moment.replace(year=2024, day=3).astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert from_micros(to_micros(elsewhere)) == elsewhere


def test_times_before_1970_and_their_last_microsecond() -> None:
    assert to_micros(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    assert from_micros(-1) == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert to_micros(datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)) % 1_000_000 == 999_999


def test_every_row_of_a_run_goes_in_and_comes_out() -> None:
    clock = VirtualClock()
    history = five_step_history(tenant_id=DEFAULT_TENANT, clock=clock, new_id=SeededIds(1, clock))
    commits = [decision.commit for decision in history]
    rows = [row for commit in commits for write in commit.writes for row in write.rows]
    for row in rows:
        table = ROWS[type(row)]
        assert table.unpack(table.pack(row)) == row
    for event in (event for commit in commits for event in commit.events):
        assert EVENTS.unpack(EVENTS.pack(event)) == event
    assert len({type(row) for row in rows}) >= 6


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("flag", 2),
        ("moment", 2**62),
        ("moment", "yesterday"),
        ("payload", 7),
        ("payload", '"a lost page: \0\0\0\0"'),
        ("anything", "{"),
    ],
)
def test_what_the_store_cannot_have_written_is_damage(column: str, value: object) -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    row = THINGS.pack(
        Thing(id="a", number=1, share=0.5, blob=b"", flag=True, moment=moment, payload=Raw(b"{}"), anything=1)
    )
    row[THINGS.columns.index(column)] = value
    with pytest.raises(StoreCorrupt, match=f"things a: its {column} cannot be read"):
        THINGS.unpack(row)


def test_a_statement_has_a_mark_for_every_value() -> None:
    for rows in (1, 2, 64):
        assert THINGS.insert(rows).count("?") == rows * len(THINGS.columns)
        assert THINGS.upsert(rows).count("?") == rows * len(THINGS.columns)


@given(st.integers(0, 1000))
def test_chunks_are_few_and_hold_everything_once(count: int) -> None:
    rows = [[number, "x"] for number in range(count)]
    parts = list(chunks(rows))
    assert [row for part in parts for row in part if row != [None, None]] == rows
    assert all(len(part) in SIZES for part in parts)
    assert len(parts) == -(-count // SIZES[-1])
    assert sum(map(len, parts)) <= 1.5 * count + 1
