"""Peers: each is compared at its best, and only with what is as durable."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import contest
from benchmarks.peers import environment, field
from benchmarks.peers.environment import PeerMissing
from benchmarks.plots import svg
from benchmarks.report import at_least
from benchmarks.suite import steps_sqlite
from benchmarks.team import Style

TINY = 0.003
FAKE = """
import json, sys

def say(**said):
    print(json.dumps(said), flush=True)
    return sys.stdin.readline()

while line := sys.stdin.readline():
    asked = json.loads(line)
    if asked["place"] > %d:
        raise SystemExit("the database is locked")
    rate = 100 * asked["at_once"] if asked["way"] == "tasks" else 10
    path = asked["url"].removeprefix("sqlite:///")
    say(warm=1)
    with open(path, "a") as file:
        print(asked["runs"] + 1, file=file)
    say(began=3.0, ended=3.0 + 5 * asked["runs"] / rate)
    held = sum(map(int, open(path)))
    print(json.dumps({"version": "9", "journal_mode": "wal", "synchronous": %d, "ended": held,
                      "steps": 5 * held}), flush=True)
"""


@pytest.fixture
def fake_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def install(synchronous: int = 2, last_place: int = 1) -> None:
        script = tmp_path / "fake_peer.py"
        script.write_text(FAKE % (last_place, synchronous))
        monkeypatch.setattr(field, "command_of", lambda name, kind: [sys.executable, script])

    return install


def test_a_peer_that_cannot_be_installed_is_told_and_not_compared() -> None:
    report = steps_sqlite.run(True, lambda doing: None, TINY)
    assert report.notes[-1] == "DBOS was not measured, for it cannot be installed here: no dbos in a test"
    assert not [key for key in report.ratios if key.startswith(("dbos", "best"))]
    assert "dbos" not in report.targets
    assert "DBOS" not in report.columns


def test_a_peer_is_compared_at_its_better_style(fake_peer: Callable[..., None]) -> None:
    fake_peer()
    report = steps_sqlite.run(True, lambda doing: None, TINY)
    ours = {n: report.figures[f"engine_steps_per_second@{n}"] for n in (1, 16, 64, 256)}
    for at_once, rate in ours.items():
        assert report.ratios[f"dbos@{at_once}"] == pytest.approx(rate / (100 * at_once))
        assert report.ratios[f"best@{at_once}"] == pytest.approx(rate / 25_600)
    assert report.ratios["dbos"] == pytest.approx(max(ours.values()) / 25_600)
    assert report.targets["dbos"] == at_least(15)
    assert all(row[-1].endswith("in tasks, one process") for row in report.rows)
    assert all(" in one process" in row[1] or " in two processes" in row[1] for row in report.rows)
    (plot,) = report.plots
    assert plot.feet["DBOS"] == ("1", "1", "1", "1")
    assert svg(plot).count("in how many processes") == 1


def test_a_peer_that_is_less_durable_is_not_compared(fake_peer: Callable[..., None]) -> None:
    fake_peer(synchronous=1)
    with pytest.raises(field.Unlike):
        steps_sqlite.run(True, lambda doing: None, TINY)


def test_a_style_in_which_a_peer_fails_is_left_out_and_that_is_said(
    fake_peer: Callable[..., None], tmp_path: Path
) -> None:
    fake_peer(last_place=0)
    with field.open_field(steps_sqlite.PEERS, tmp_path, lambda doing: None) as found:
        (peer,) = found.peers
        taken = [steps_sqlite.take_peers_turn(tmp_path, 4, 6, peer, turn) for turn in (0, 1, 2, 3, 4, 6)]
    assert [rate for _, rate in taken] == [
        pytest.approx(400),
        pytest.approx(10),
        None,
        None,
        pytest.approx(400),
        None,
    ]
    best = contest.Best.of(taken)
    assert best is not None
    assert best.all.keys() == {Style(1, "tasks"), Style(1, "threads")}
    assert contest.Best.of([(Style(1), 5.0), (Style(1), None)]) is None
    assert found.notes[1:] == [
        f"DBOS in {way}, two processes, 4 at once, was left out, for it failed: the database is locked"
        for way in ("tasks", "threads")
    ]


@pytest.mark.skipif(
    not environment.folder_of("dbos").exists(),
    reason="DBOS is not installed: python -m benchmarks steps-sqlite does that",
)
def test_dbos_does_what_it_is_compared_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field, "python_of", environment.python_of)
    with field.open_field(steps_sqlite.PEERS, tmp_path, lambda doing: None) as found:
        (peer,) = found.peers
        taken = [steps_sqlite.take_peers_turn(tmp_path, 2, 3, peer, turn) for turn in range(4)]
        assert [style for style, _ in taken] == peer.kind.styles(2)
        assert not peer.failed
        assert all(rate is not None and rate > 0 for _, rate in taken)
        assert peer.version in found.notes[0]


def test_half_an_environment_is_never_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOCKS", tmp_path)
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path / "environments")
    (tmp_path / "odd.lock").write_text("=== this is no requirement ===")
    with pytest.raises(PeerMissing):
        environment.python_of("odd")
    assert not list((tmp_path / "environments").iterdir())


@pytest.mark.parametrize("peer", ["dbos", "langgraph", "restate"])
def test_the_lock_file_of_a_peer_names_hashes_and_no_host(peer: str) -> None:
    lock = (environment.LOCKS / f"{peer}.lock").read_text("utf-8")
    assert f"{peer}==" in lock or f"{peer}-sdk==" in lock
    assert "--hash=sha256:" in lock
    assert "://" not in lock
