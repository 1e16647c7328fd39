"""A report says the same to people and to programs."""

import json

import msgspec
import pytest

from benchmarks.report import Report, Target, as_json, as_text, at_least, at_most

REPORT = Report(
    name="made-up",
    columns=("at once", "rate"),
    rows=(("1", "9/s"), ("64", "1,234/s")),
    ratios={"limit@64": 0.59, "linear": 1.0, "http": 2.0},
    targets={"limit@64": at_least(0.6), "linear": at_most(1.1)},
    figures={"rate@64": 1234.0},
    notes=("the peer was not there",),
)


@pytest.mark.parametrize(
    ("target", "figure", "met"),
    [
        (at_least(0.6), 0.6, True),
        (at_least(0.6), 0.59, False),
        (at_most(1.1), 1.1, True),
        (at_most(1.1), 1.11, False),
    ],
)
def test_a_target_is_met_at_its_bound_and_not_beyond(target: Target, figure: float, met: bool) -> None:
    assert target.met_by(figure) is met


def test_missed_targets_are_named() -> None:
    assert REPORT.missed == ["limit@64"]


def test_people_read_an_aligned_table_and_a_verdict_for_each_target() -> None:
    lines = as_text(REPORT).splitlines()
    table = lines[2:6]
    assert len({len(line) for line in table}) == 1
    assert table[3].split() == ["64", "1,234/s"]
    verdicts = {line.split()[0]: line for line in lines[7:-2]}
    assert "0.590" in verdicts["limit@64"]
    assert "MISSED: the target is at least 0.6" in verdicts["limit@64"]
    assert " met: the target is at most 1.1" in verdicts["linear"]
    assert "target" not in verdicts["http"]
    assert lines[-2:] == ["", "  the peer was not there"]


def test_programs_read_ratios_targets_verdicts_and_the_machine() -> None:
    read = json.loads(msgspec.json.encode(as_json(REPORT, {"cores": 2}, quick=True)))
    assert read == {
        "name": "made-up",
        "ratios": {"limit@64": 0.59, "linear": 1.0, "http": 2.0},
        "targets": {"limit@64": 0.6, "linear": 1.1},
        "verdicts": {
            "limit@64": {"bound": "at least", "met": False},
            "linear": {"bound": "at most", "met": True},
        },
        "figures": {"rate@64": 1234.0},
        "machine": {"cores": 2},
        "notes": ["the peer was not there"],
        "quick": True,
    }
