"""A run's snapshot and what can be wrong with it, without a disk (§PIP-9, §PIP-17)."""

from __future__ import annotations

import sys

import pytest

from runstone.core import codec, payloads
from runstone.core.fold import RunFold, run_fold
from runstone.errors import StoreUnusable
from runstone.stores.folder import snapshots
from tests.unit.core.build import Story


@pytest.fixture
def fold() -> RunFold:
    story = Story.running()
    story.record(payloads.RunStateChanged(to_state="CREATED"))
    return run_fold(story.state)


def test_a_snapshot_is_canonical_and_nothing_is_wrong_with_it(fold: RunFold) -> None:
    content = snapshots.content(fold)
    assert content == bytes(codec.canonical(codec.parse(content)))
    assert codec.parse(content)["run_state"] == "CREATED"
    assert snapshots.problem(content, fold) is None


def test_a_run_without_a_pipeline_has_one_too() -> None:
    fold = run_fold(Story.running().state)
    assert codec.parse(snapshots.content(fold))["run_state"] is None
    assert snapshots.problem(snapshots.content(fold), fold) is None


@pytest.mark.parametrize(
    ("changes", "reason", "usual"),
    [
        ({"last_seq": 1}, "it holds 1 events", True),
        ({"last_seq": 99}, "events were lost", False),
        ({"run_id": "another"}, "it is of run another", False),
        ({"run_state": "DONE"}, "not what its log adds up to", False),
        ({"run_state": 7}, "does not follow its schema at /run_state", False),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, object], reason: str, usual: bool, fold: RunFold) -> None:
    wrong = codec.encode(codec.parse(snapshots.content(fold)) | changes)
    found = snapshots.problem(wrong, fold)
    assert found is not None
    assert reason in found.reason
    assert found.usual is usual


def test_without_a_validator_it_says_what_to_install(fold: RunFold, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots._validator.cache_clear()
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(StoreUnusable, match=r"pip install 'runstone\[pipeline\]'"):
        snapshots.problem(snapshots.content(fold), fold)
    assert snapshots.problem(None, fold) == snapshots.Problem("it is missing", usual=True)
