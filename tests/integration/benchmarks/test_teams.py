"""Processes that work together, and what counts of their turns."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contest
from benchmarks.companion import Companion, CompanionFailed
from benchmarks.team import Style, Team, styles


class Scripted(Companion):
    """Gives the answers that it was given, and notes what it is asked."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = [*answers]
        self.asked: list[dict[str, Any]] = []

    def tell(self, **question: Any) -> None:
        self.asked.append(question)

    def hear(self) -> dict[str, Any]:
        return self._answers.pop(0)


def test_what_counts_is_the_time_from_the_first_beginning_to_the_last_end() -> None:
    members = [
        Scripted({"warm": 1}, {"began": 5.0, "ended": 7.0}, {"n": 0}),
        Scripted({"warm": 2}, {"began": 4.0, "ended": 6.5}, {"n": 1}),
    ]
    turn = Team(members).take_turn(2, 5, 9, url="u")
    assert (turn.seconds, turn.warm, turn.found) == (3.0, 3, [{"n": 0}, {"n": 1}])
    assert [each.asked for each in members] == [
        [{"url": "u", "place": 0, "at_once": 3, "runs": 5}, {}, {}],
        [{"url": "u", "place": 1, "at_once": 2, "runs": 4}, {}, {}],
    ]


def test_none_goes_on_before_all_are_prepared_and_none_ends_before_all_have_run() -> None:
    said: list[str] = []

    class Telling(Scripted):
        def hear(self) -> dict[str, Any]:
            found = super().hear()
            said.append(min(found))
            return found

    answers = ({"warm": 1}, {"began": 0.0, "ended": 1.0}, {"version": "9"})
    Team([Telling(*answers), Telling(*answers)]).take_turn(2, 2, 2)
    assert said == ["warm", "warm", "began", "began", "version", "version"]


def test_who_has_one_client_has_one_process() -> None:
    assert [each.title for each in styles(1)] == ["one process"]
    assert [each.title for each in styles(2)] == ["one process", "two processes"]
    assert [each.title for each in styles(64, ("tasks", "threads"))] == [
        *("tasks, one process", "threads, one process", "tasks, two processes", "threads, two processes")
    ]


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        (4, [0, 1, 2, 3]),
        (2, [0, None, 1, None]),
        (1, [0, None, None, None]),
        (9, [0, 1, 2, 3]),
    ],
)
def test_turns_are_spread_over_the_rounds(turns: int, found: list[int | None]) -> None:
    assert [contest.turn_in(number, 4, turns) for number in range(4)] == found


def test_a_level_counts_in_the_engines_better_style_and_its_bare_rounds_with_it() -> None:
    rounds = [
        contest.Round(style=Style(processes), engine=engine, bare=bare, batch=bare / 100)
        for processes, engine, bare in (
            (1, 10.0, 100.0),
            (2, 30.0, 200.0),
            (1, 90.0, 100.0),
            (2, 40.0, 200.0),
        )
    ]
    found = contest.Level.of(rounds, {})
    assert (found.engine.rate, found.engine.style) == (50.0, Style(1))
    assert (found.bare.middle, found.batch) == (100.0, 1.0)
    assert (found.limit.lowest, found.limit.highest) == (0.1, 0.9)
    assert contest.figures({64: found}).items() >= {
        ("engine_steps_per_second@64", 50.0),
        ("engine_steps_per_second@64 in one process", 50.0),
        ("engine_steps_per_second@64 in two processes", 35.0),
    }
    assert contest.style_notes({64: found, 256: found}, {}) == [
        "Runstone was fastest in one process with 64, 256 at once"
    ]


def test_a_companion_that_dies_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "input(); raise SystemExit('no more')"]
    with Companion(command, tmp_path) as companion, pytest.raises(CompanionFailed, match="no more"):
        companion.ask(do="something")
