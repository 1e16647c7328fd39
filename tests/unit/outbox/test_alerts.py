"""Alerts: the first of a group at once, the rest counted, and nobody waits for them (§OUT-29, §OUT-47)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.outbox import alerts
from runstone.outbox.alerts import Alerts
from runstone.testing.clock import VirtualClock
from tests.unit.core.build import Story


def dead_letter(**given: Any) -> Effect:
    story = Story.running()
    effect_id = story.effect(**given)
    story.not_sent(effect_id)
    return story.effect_row(effect_id)


def error(code: str = "GONE") -> ErrorInfo:
    return ErrorInfo(category="EXTERNAL", code=code, message="no such user")


class Operators:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, title: str, text: str) -> None:
        await self.gate.wait()
        if self.broken:
            raise ConnectionError("nobody there")
        self.heard.append((title, text))


async def calm() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_goes_out_at_once_with_all_there_is_to_know() -> None:
    operators = Operators()
    alarm = Alerts(operators, clock=VirtualClock())
    effect = dead_letter()
    alarm.dead_letter(effect, error())
    await calm()
    ((title, text),) = operators.heard
    assert title == "Dead letter: SEND_EMAIL"
    for part in (effect.id, effect.run_id, "after 1 try", "no such user", "GONE"):
        assert part in text


async def test_those_that_follow_are_counted_and_go_out_as_one() -> None:
    operators, clock = Operators(), VirtualClock()
    alarm = Alerts(operators, clock=clock, pause=timedelta(minutes=5))
    for _ in range(4):
        alarm.dead_letter(dead_letter(), error())
    alarm.dead_letter(dead_letter(), error("OTHER"))
    alarm.flush()
    await calm()
    assert len(operators.heard) == 2, "one of each group"
    clock.advance(timedelta(minutes=5))
    alarm.dead_letter(dead_letter(), error())
    alarm.flush()
    await calm()
    assert operators.heard[-1][0] == "4 more dead letters: SEND_EMAIL, GONE"
    clock.advance(timedelta(minutes=5))
    alarm.flush()
    alarm.dead_letter(dead_letter(), error())
    await calm()
    assert operators.heard[-1][0] == "Dead letter: SEND_EMAIL", (
        "after a quiet time the first goes at once again"
    )


async def test_nobody_waits_for_them_and_a_failure_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    operators = Operators()
    operators.broken = True
    alarm = Alerts(operators, clock=VirtualClock())
    alarm.dead_letter(dead_letter(), error())
    await calm()
    assert "cannot send an alert" in caplog.text
    operators.broken = False
    alarm.dead_letter(dead_letter(), error("OTHER"))
    await calm()
    assert len(operators.heard) == 1


async def test_too_many_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "WAITING", 2)
    operators = Operators()
    operators.gate.clear()
    alarm = Alerts(operators, clock=VirtualClock())
    for number in range(6):
        alarm.dead_letter(dead_letter(), error(f"E{number}"))
        await calm()
    assert alarm.dropped == 3, "one is being sent, two wait"
    await alarm.close(timedelta(0))


async def test_without_operators_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    alarm = Alerts(None, clock=VirtualClock())
    alarm.dead_letter(dead_letter(), error())
    assert "dead letter: Effect " in caplog.text
    await alarm.close()
