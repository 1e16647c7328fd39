"""The peers that a benchmark can have, each with processes of its own, and why others are not there.

A round counts only if it was as durable as ours and all of its runs and steps are there afterwards. A style
in which a peer does not come through at some number of runs at once is left out there, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.apps import STEPS
from benchmarks.companion import CompanionFailed
from benchmarks.peers.environment import PeerMissing, python_of, server_of
from benchmarks.registry import Progress
from benchmarks.team import PROCESSES, Style, Team, open_team, styles


class Unlike(Exception):
    """A peer did not do what it is compared for."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a peer beforehand."""

    title: str
    durable: Mapping[str, Any]
    """What it has to answer."""
    note: str
    times: int = 1
    """How many times the runs it makes in a round: those of a faster one would be over too soon."""
    server: str | None = None
    """The program it stores its log with. A second process is for its service, beside that of its clients."""

    def styles(self, at_once: int) -> list[Style]:
        if self.server is not None:
            return [Style(count) for count in PROCESSES]
        return styles(at_once, ("tasks", "threads"))


class Peer:
    """Another system in processes beside this one."""

    def __init__(self, name: str, kind: Kind, start: Callable[[], Team]) -> None:
        self.name = name
        self.kind = kind
        self._start = start
        self._team: Team | None = None
        self.version = ""
        self.failed: dict[tuple[int, Style], str] = {}
        """In which styles, with so many runs at once, it did not come through, and its last words."""

    def take_turn(self, place: str, number: int, at_once: int, runs: int) -> tuple[Style, float | None]:
        """Steps per second in a round, in the style that has its turn; none if it does not come through."""
        all_of_them = self.kind.styles(at_once)
        style = all_of_them[number % len(all_of_them)]
        if (at_once, style) in self.failed:
            return style, None
        try:
            return style, self.rate(place, style, at_once, runs * self.kind.times)
        except CompanionFailed as error:
            self.failed[at_once, style] = str(error).strip().splitlines()[-1]
            self._stop()
            return style, None

    def _stop(self) -> None:
        """The others of a team that has failed would wait for ever, or work on beside the next."""
        if self._team is not None:
            self._team.kill()
        self._team = None

    def rate(self, place: str, style: Style, at_once: int, runs: int) -> float:
        """Steps per second; `Unlike` if they were not as durable as ours, or not all there."""
        self._team = self._team or self._start()
        if self.kind.server is None:
            turn = self._team.take_turn(style.processes, at_once, runs, url=place, way=style.way)
        else:
            turn = self._team.take_turn(1, at_once, runs, url=place, processes=style.processes)
        held = runs + turn.warm
        expected = {**self.kind.durable, "ended": held, "steps": STEPS * held}
        for found in turn.found:
            if any(found.get(name) != value for name, value in expected.items()):
                raise Unlike(f"{self.kind.title}: {found} where {expected} was expected")
        self.version = turn.found[0]["version"]
        return STEPS * runs / turn.seconds

    @property
    def notes(self) -> list[str]:
        left_out = (
            f"{self.kind.title} in {style.title}, {at_once} at once, was left out, for it failed: {why}"
            for (at_once, style), why in self.failed.items()
        )
        return [f"{self.kind.title} {self.version}: {self.kind.note}", *left_out]


class Field(msgspec.Struct, frozen=True):
    """All that are wanted; the peers that are here; and why others are not, by title."""

    kinds: Mapping[str, Kind]
    peers: Sequence[Peer]
    missing: Mapping[str, str]

    @property
    def notes(self) -> list[str]:
        there = [note for peer in self.peers for note in peer.notes]
        return there + [
            f"{title} was not measured, for it cannot be installed here: {why}"
            for title, why in self.missing.items()
        ]


@contextmanager
def open_field(kinds: Mapping[str, Kind], folder: Path, progress: Progress) -> Iterator[Field]:
    """Every peer that can be had, for as long as this is open."""
    found, missing = [], {}
    with ExitStack() as stack:
        for name, kind in kinds.items():
            progress(f"looking for {kind.title}; the first time, its environment is built")
            try:
                command = command_of(name, kind)
            except PeerMissing as error:
                missing[kind.title] = str(error)
                continue
            found.append(Peer(name, kind, _starter(stack, command, kind, folder / name)))
        yield Field(kinds, found, missing)


def _starter(stack: ExitStack, command: Sequence[str | Path], kind: Kind, folder: Path) -> Callable[[], Team]:
    """Starts a peer's processes when they are needed: at first, and after some of them have failed."""
    return lambda: stack.enter_context(open_team(command, folder, 1 if kind.server else max(PROCESSES)))


def command_of(name: str, kind: Kind) -> list[str | Path]:
    """What starts a peer; `PeerMissing` where it cannot be installed."""
    command: list[str | Path] = [python_of(name), "-m", f"{__package__}.{name}_runs"]
    return command if kind.server is None else [*command, server_of(name, kind.server)]
