"""Folders of its own for each test, and no peers: no test installs anything."""

from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks import measure
from benchmarks.peers import field
from benchmarks.peers.environment import PeerMissing


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(command_line, "PLOTS", tmp_path / "plots")
    monkeypatch.setattr(field, "python_of", no_peer)


def no_peer(name: str) -> Path:
    """No test installs anything."""
    raise PeerMissing(f"no {name} in a test")
