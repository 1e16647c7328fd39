"""Processes that make runs together: of one system, on one file or database, each with its share.

A Python program has the use of one core, so one that is bound by the processor is asked how much it does in
two processes as well. They are prepared one after the other and begin together; what counts is the time
from the first beginning to the last end. Both are read from a clock that all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.companion import Companion

PROCESSES: Final = {1: "one process", 2: "two processes"}


class Style(msgspec.Struct, frozen=True, order=True):
    """How runs are made."""

    processes: int
    way: str = ""
    """Such as threads or tasks, where a system can do both."""

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.way, PROCESSES[self.processes])))


def styles(at_once: int, ways: Sequence[str] = ("",)) -> list[Style]:
    """Every style for so many runs at once: who has a single client needs a single process."""
    return [Style(count, way) for count in PROCESSES if count <= at_once for way in ways]


class Turn(msgspec.Struct, frozen=True):
    """What came of a round."""

    seconds: float
    """From the first beginning to the last end."""
    warm: int
    """How many runs went before and are not counted."""
    found: Sequence[dict[str, Any]]
    """What each process said when all of them had ended."""


class Team:
    """Companions that are asked together."""

    def __init__(self, companions: Sequence[Companion]) -> None:
        self._companions = companions

    def take_turn(self, processes: int, at_once: int, runs: int, /, **question: Any) -> Turn:
        """One round in so many of its processes; `CompanionFailed` if one of them did not come through."""
        members = self._companions[:processes]
        shares = zip(members, share(at_once, processes), share(runs, processes), strict=True)
        prepared = [
            member.ask(**question, place=place, at_once=clients, runs=own)
            for place, (member, clients, own) in enumerate(shares)
        ]
        for member in members:
            member.tell()
        ran = [member.hear() for member in members]
        return Turn(
            max(each["ended"] for each in ran) - min(each["began"] for each in ran),
            sum(each["warm"] for each in prepared),
            [member.ask() for member in members],
        )

    def kill(self) -> None:
        for companion in self._companions:
            companion.kill()


def share(count: int, processes: int) -> list[int]:
    """So many of something for each process, as equally as can be."""
    return [count // processes + (place < count % processes) for place in range(processes)]


@contextmanager
def open_team(command: Sequence[str | Path], folder: Path, size: int = max(PROCESSES)) -> Iterator[Team]:
    """Processes of one command, for as long as this is open."""
    with ExitStack() as stack:
        companions = []
        for place in range(size):
            own = folder / f"process-{place}"
            own.mkdir(parents=True, exist_ok=True)
            companions.append(stack.enter_context(Companion(command, own)))
        yield Team(companions)
