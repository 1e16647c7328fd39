"""Rounds of the engine, of the bare writer and of peers, and what they come to.

Who takes part makes runs in several styles, one after the other over the rounds: in one process or in two,
and peers in tasks or in threads as well. For each number of runs at once, the style with the better median
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from benchmarks.measure import Spread, rounds_of
from benchmarks.peers.field import Field, Kind, Peer
from benchmarks.registry import Progress
from benchmarks.team import Style, styles

OURS: Final = "engine"
"""The engine's name among those of the peers."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the engine and of the bare writer."""

    style: Style
    engine: float
    bare: float
    """Steps per second."""
    batch: float
    """Commits in a transaction."""


Taken: TypeAlias = tuple[Style, float | None]
"""One turn of a peer: its style, and steps per second, none if it did not come through."""


class Best(msgspec.Struct, frozen=True):
    """Steps per second in the style that suits best, and the medians of all styles."""

    rate: float
    style: Style
    all: Mapping[Style, float]

    @classmethod
    def of(cls, taken: Iterable[Taken]) -> Best | None:
        """A style counts if it came through each time."""
        rates: dict[Style, list[float | None]] = {}
        for style, rate in taken:
            rates.setdefault(style, []).append(rate)
        middles = {
            style: Spread.of(whole).middle
            for style, found in rates.items()
            if len(whole := [rate for rate in found if rate is not None]) == len(found)
        }
        if not middles:
            return None
        style = max(middles, key=middles.__getitem__)
        return cls(middles[style], style, middles)

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s in {self.style.title}"


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds with so many runs at once. The bare writer's are those of the engine's better style."""

    engine: Best
    bare: Spread
    limit: Spread
    batch: float
    peers: Mapping[str, Best]

    @classmethod
    def of(cls, rounds: Sequence[Round], peers: Mapping[str, Iterable[Taken]]) -> Level:
        engine = Best.of((each.style, each.engine) for each in rounds)
        assert engine is not None
        counted = [each for each in rounds if each.style == engine.style]
        found = {name: Best.of(taken) for name, taken in peers.items()}
        return cls(
            engine=engine,
            bare=Spread.of([each.bare for each in counted]),
            limit=Spread.of([each.engine / each.bare for each in counted]),
            batch=Spread.of([each.batch for each in counted]).middle,
            peers={name: best for name, best in found.items() if best is not None},
        )

    @property
    def all(self) -> Mapping[str, Best]:
        return {OURS: self.engine, **self.peers}


# Whose turn it is


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    engine_turns: int
    peer_turns: int
    """How many rounds one has in each of its styles."""
    engine_scale: float = 1.0
    peer_scale: float = 1.0


def take_rounds(
    field: Field,
    plan: Plan,
    scale: float,
    at_once: int,
    engine: Callable[[Style], Round],
    peer: Callable[[Peer, int], Taken],
    progress: Progress,
) -> Level:
    """As many rounds as who has the most styles needs; the others have their turns spread over them."""
    ours = styles(at_once)
    most = max(len(kind.styles(at_once)) for kind in field.kinds.values())
    rounds = rounds_of(plan.peer_turns * most, scale, least=len(ours))
    taken: list[Round] = []
    others: dict[str, list[Taken]] = {each.name: [] for each in field.peers}
    for number in rounds:
        progress(f"{at_once} at once, round {number + 1}")
        if (turn := turn_in(number, len(rounds), plan.engine_turns * len(ours))) is not None:
            taken.append(engine(ours[turn % len(ours)]))
        for each in field.peers:
            turns = plan.peer_turns * len(each.kind.styles(at_once))
            if (turn := turn_in(number, len(rounds), turns)) is not None:
                others[each.name].append(peer(each, turn))
    return Level.of(taken, others)


def turn_in(number: int, rounds: int, turns: int) -> int | None:
    """Which of its turns one has in a round; none if it has none there. They are spread over all rounds."""
    turns = min(turns, rounds)
    return number * turns // rounds if number * turns % rounds < turns else None


# What is said


def columns(names: Sequence[str], kinds: Mapping[str, Kind]) -> tuple[str, ...]:
    titles = (kinds[name].title for name in names)
    return ("runs at once", "engine", "bare", "commits a transaction", "limit", "of rounds", *titles)


def row(at_once: int, level: Level, names: Sequence[str]) -> tuple[str, ...]:
    return (
        str(at_once),
        str(level.engine),
        f"{level.bare.middle:,.0f}/s",
        f"{level.batch:.1f}",
        f"{level.limit.middle:.0%}",
        f"{level.limit.lowest:.0%} to {level.limit.highest:.0%}",
        *(str(level.peers.get(name, "not measured")) for name in names),
    )


def ratios(levels: Mapping[int, Level]) -> dict[str, float]:
    """Shares of the bare limit; times each peer and the best, both at their best, and at each concurrency."""
    limits = {f"limit@{at_once}": level.limit.middle for at_once, level in levels.items()}
    names = dict.fromkeys(name for level in levels.values() for name in level.peers)
    if not names:
        return limits
    ours = {at_once: level.engine.rate for at_once, level in levels.items()}
    theirs = {name: max(_rates(levels, name).values()) for name in names}
    best = max(theirs.values())
    return {
        **limits,
        **{name: max(ours.values()) / rate for name, rate in theirs.items()},
        "best": max(ours.values()) / best,
        **{
            f"{name}@{at_once}": ours[at_once] / rate
            for name in names
            for at_once, rate in _rates(levels, name).items()
        },
        **{f"best@{at_once}": rate / best for at_once, rate in ours.items()},
    }


def _rates(levels: Mapping[int, Level], name: str) -> dict[int, float]:
    return {at_once: level.all[name].rate for at_once, level in levels.items() if name in level.all}


def figures(levels: Mapping[int, Level]) -> dict[str, float]:
    """Those that count, and those of every style."""
    found: dict[str, float] = {}
    for at_once, level in levels.items():
        found[f"bare_steps_per_second@{at_once}"] = level.bare.middle
        found[f"commits_per_transaction@{at_once}"] = level.batch
        for name, best in level.all.items():
            key = f"{name}_steps_per_second@{at_once}"
            found[key] = best.rate
            found |= {f"{key} in {style.title}": rate for style, rate in best.all.items()}
    return found


def style_notes(levels: Mapping[int, Level], kinds: Mapping[str, Kind]) -> list[str]:
    """In which style each figure that counts was made."""
    titles = {OURS: "Runstone", **{name: kind.title for name, kind in kinds.items()}}
    return [
        f"{title} was fastest in {_where(levels, name)}"
        for name, title in titles.items()
        if any(name in level.all for level in levels.values())
    ]


def _where(levels: Mapping[int, Level], name: str) -> str:
    places: dict[Style, list[str]] = {}
    for at_once, level in levels.items():
        if name in level.all:
            places.setdefault(level.all[name].style, []).append(str(at_once))
    return "; in ".join(f"{style.title} with {', '.join(found)} at once" for style, found in places.items())


def series(levels: Mapping[int, Level], names: Collection[str]) -> dict[str, tuple[float, ...]]:
    """For a plot; nothing where there is nothing."""
    return {name: tuple(_rates(levels, name).get(at_once, 0.0) for at_once in levels) for name in names}


def feet(levels: Mapping[int, Level], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For the same plot, in how many processes."""
    return {
        name: tuple(
            str(level.all[name].style.processes) if name in level.all else "" for level in levels.values()
        )
        for name in names
    }
