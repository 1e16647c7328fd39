"""A trouble is told at once and then now and then, with how often it came."""

from __future__ import annotations

import logging

import pytest

from runstone.ports.troubles import EVERY, KNOWN, Troubles


class Watch:
    """The time, as a test sets it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_is_told_and_then_one_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    troubles = Troubles(logging.getLogger("runstone.test"), watch)
    for _ in range(4):
        troubles.warn("no connection")
    assert caplog.messages == ["no connection"]
    watch.now += EVERY
    troubles.warn("no connection")
    assert caplog.messages[1:] == ["no connection (3 times more since it was told last)"]
    watch.now += EVERY
    troubles.warn("no connection")
    assert caplog.messages[2:] == ["no connection"]


def test_another_one_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles(logging.getLogger("runstone.test"), Watch())
    for text in ("no connection", "read-only: 100 %", "no connection", "read-only: 100 %"):
        troubles.warn(text)
    assert caplog.messages == ["no connection", "read-only: 100 %"]


def test_it_remembers_no_more_than_it_has_to(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles(logging.getLogger("runstone.test"), Watch())
    for number in range(KNOWN + 1):
        troubles.warn(f"trouble {number}")
    troubles.warn(f"trouble {KNOWN}")
    troubles.warn("trouble 0")
    assert caplog.messages == [*(f"trouble {number}" for number in range(KNOWN + 1)), "trouble 0"]
