"""A `sys.exit` of a user's code, and one that a signal handler calls in the middle of that code."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runstone.ports.exits import stops_the_process


class Desk:
    def close(self, *_: object) -> None:
        self._leave()

    def __call__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        sys.exit(0)


def leave(*_: object) -> None:
    sys.exit(0)


@pytest.fixture
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    "handler", [leave, lambda *_: sys.exit(0), Desk().close, Desk(), functools.partial(leave, "now")]
)
def test_a_signal_handler_stops_the_process(handler: Callable[..., Any]) -> None:
    signal.signal(signal.SIGTERM, handler)
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert stops_the_process(ended.value)


@pytest.mark.usefixtures("restored")
def test_other_code_does_not() -> None:
    signal.signal(signal.SIGTERM, leave)
    with pytest.raises(SystemExit) as ended:
        Desk().close()
    assert not stops_the_process(ended.value)
    assert not stops_the_process(SystemExit(1))
    assert not stops_the_process(ValueError())


def test_ctrl_c_does() -> None:
    assert stops_the_process(KeyboardInterrupt())
