"""The lines of `runstone events`: whole for a program, what fits for a person."""

from __future__ import annotations

import sys
from datetime import timedelta

import msgspec
import pytest

from runstone.cli.events import _Table
from runstone.core.events import Event
from runstone.core.ids import DEFAULT_TENANT
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.histories import five_step_history

WORKER = "worker:host:17:01a1e11d-e848-7c44-8ac4-01933696803f"


@pytest.fixture
def events() -> list[Event]:
    """Of one day, by a worker."""
    clock = VirtualClock()
    history = five_step_history(tenant_id=DEFAULT_TENANT, clock=clock, new_id=SeededIds(7, clock))
    found = [event for one in history for event in one.commit.events if event.run_id == event.stream_id]
    moment = found[0].occurred_at.replace(hour=9, minute=8, second=7, microsecond=65_432)
    return [msgspec.structs.replace(event, actor=WORKER, occurred_at=moment) for event in found]


def test_a_program_gets_whole_times_and_actors(
    events: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    _Table()(events)
    first = capsys.readouterr().out.splitlines()[0].split("\t")
    assert first[1] == f"{events[0].occurred_at:%Y-%m-%d}T09:08:07.065432Z"
    assert first[4] == WORKER


def test_a_person_gets_the_time_of_day_and_a_short_name(
    events: list[Event], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # with 80 columns
    _Table()(events)
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["seq", f"{events[0].occurred_at:%Y-%m-%d}", "event", "step", "actor"]
    assert first.split()[1] == "09:08:07.065"
    assert first.split()[-1] == "worker:host:17"

    later = msgspec.structs.replace(events[1], occurred_at=events[1].occurred_at + timedelta(days=1))
    _Table()([events[0], later])
    heading, _, second = capsys.readouterr().out.splitlines()
    assert heading.split()[1] == "time"
    assert f"{later.occurred_at:%m-%d} 09:08:07.065" in second


def test_an_outcome_is_of_the_step_that_asked_for_it(
    events: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when it comes on a later page."""
    show = _Table()
    asked = [event for event in events if event.step_key is not None]
    show(asked)
    capsys.readouterr()
    show([msgspec.structs.replace(event, step_key=None) for event in asked])
    shown = [line.split("\t")[3] for line in capsys.readouterr().out.splitlines()]
    assert shown == [event.step_key for event in asked]
