"""Time stands still until a test moves it, and ids follow from a seed."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

from runstone.testing.clock import SeededIds, VirtualClock


def test_a_virtual_clock_moves_only_when_told() -> None:
    clock = VirtualClock()
    begin = clock.now()
    assert clock.now() == begin
    assert clock.advance(1.5) == begin + timedelta(seconds=1.5) == clock.now()
    assert clock.advance(timedelta(hours=-1)) < begin


def test_a_virtual_clock_tells_utc() -> None:
    clock = VirtualClock()
    assert clock.now().tzinfo is UTC
    clock.set(datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now() == datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.now().tzinfo is UTC


def test_ids_are_uuids_of_version_7_that_carry_the_time() -> None:
    clock = VirtualClock(datetime(2024, 1, 1, tzinfo=UTC))
    new_id = SeededIds(1, clock)
    earlier = new_id()
    clock.advance(0.001)
    later = new_id()
    assert UUID(earlier).version == 7
    assert earlier < later
    assert int(earlier.replace("-", "")[:12], 16) == 1_704_067_200_000


def test_the_same_seed_gives_the_same_ids() -> None:
    def first_ids(seed: int) -> list[str]:
        new_id = SeededIds(seed, VirtualClock())
        return [new_id() for _ in range(100)]

    assert first_ids(1) == first_ids(1)
    assert not set(first_ids(1)) & set(first_ids(2))
    assert len(set(first_ids(1))) == 100
