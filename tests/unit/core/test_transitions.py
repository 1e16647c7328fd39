"""The state machines: every pair of states, what is reachable, what is final."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from runstone.core import transitions
from runstone.core.transitions import EFFECT, MACHINES, RUN, SCHEDULE, SIGNAL, STEP, TOOL_CALL, Machine
from runstone.errors import StateTransitionError

MOVES = {
    "signal": {"PENDING>PROCESSING", "PROCESSING>PROCESSED", "PROCESSING>FAILED"},
    "run": {
        "PENDING>APPROVED",
        "PENDING>RUNNING",
        "PENDING>FAILED",
        "PENDING>CANCELLED",
        "APPROVED>RUNNING",
        "APPROVED>FAILED",
        "APPROVED>CANCELLED",
        "RUNNING>PAUSED",
        "RUNNING>COMPLETED",
        "RUNNING>FAILED",
        "RUNNING>CANCELLED",
        "PAUSED>RUNNING",
        "PAUSED>FAILED",
        "PAUSED>CANCELLED",
    },
    "step": {"RUNNING>COMPLETED", "RUNNING>FAILED", "RUNNING>SKIPPED"},
    "effect": {
        "PENDING>EXECUTING",
        "PENDING>CANCELLED",
        "EXECUTING>COMPLETED",
        "EXECUTING>FAILED",
        "EXECUTING>UNKNOWN",
        "FAILED>EXECUTING",
        "FAILED>DEAD_LETTER",
        "DEAD_LETTER>PENDING",
        "DEAD_LETTER>CANCELLED",
        "UNKNOWN>COMPLETED",
        "UNKNOWN>PENDING",
    },
    "tool call": {"PENDING>COMPLETED", "PENDING>FAILED"},
    "schedule": {"ACTIVE>ACTIVE", "ACTIVE>DONE", "ACTIVE>CANCELLED", "DONE>ACTIVE", "CANCELLED>ACTIVE"},
}
"""§TRN-5 to §TRN-10 and §TRN-37, written out."""

PAIRS = [
    (machine, here, there)
    for machine in MACHINES
    for here, there in itertools.product(machine.states, repeat=2)
]


@pytest.mark.parametrize(
    ("machine", "here", "there"), PAIRS, ids=[f"{m.aggregate}:{here}>{there}" for m, here, there in PAIRS]
)
def test_every_pair_of_states(machine: Machine, here: str, there: str) -> None:
    """§TRN-31, §TRN-35: what is not an arrow is refused, with everything one needs to know."""
    if f"{here}>{there}" in MOVES[machine.aggregate]:
        machine.check("the-id", here, there)
        return
    with pytest.raises(StateTransitionError) as refused:
        machine.check("the-id", here, there)
    error = refused.value
    assert (error.aggregate, error.aggregate_id) == (machine.aggregate, "the-id")
    assert (error.from_state, error.to_state) == (here, there)


@pytest.mark.parametrize(
    ("machine", "initial", "terminal"),
    [
        (SIGNAL, "PENDING", {"PROCESSED", "FAILED"}),
        (RUN, "PENDING", {"COMPLETED", "FAILED", "CANCELLED"}),
        (STEP, "RUNNING", {"COMPLETED", "FAILED", "SKIPPED"}),
        (EFFECT, "PENDING", {"COMPLETED", "CANCELLED"}),
        (TOOL_CALL, "PENDING", {"COMPLETED", "FAILED"}),
    ],
    ids=lambda value: value.aggregate if isinstance(value, Machine) else None,
)
def test_where_it_begins_and_where_it_ends(machine: Machine, initial: str, terminal: set[str]) -> None:
    """§TRN-3; a dead letter and an unknown outcome wait for a person (§TRN-8)."""
    assert machine.initial == initial
    assert machine.terminal == terminal
    assert machine.reachable(initial) | {initial} == set(machine.states)
    assert all(machine.reachable(state) & terminal for state in set(machine.states) - terminal)


@pytest.mark.parametrize(
    ("machine", "state", "reachable"),
    [
        (SIGNAL, "PENDING", {"PROCESSING", "PROCESSED", "FAILED"}),
        (SIGNAL, "PROCESSED", set()),
        (RUN, "PENDING", {"APPROVED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"}),
        (RUN, "RUNNING", {"RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"}),
        (RUN, "CANCELLED", set()),
        (STEP, "RUNNING", {"COMPLETED", "FAILED", "SKIPPED"}),
        (EFFECT, "DEAD_LETTER", set(EFFECT.states)),
        (EFFECT, "CANCELLED", set()),
        (TOOL_CALL, "PENDING", {"COMPLETED", "FAILED"}),
        (SCHEDULE, "DONE", set(SCHEDULE.states)),
    ],
    ids=lambda value: value.aggregate if isinstance(value, Machine) else None,
)
def test_what_one_commit_can_lead_to(machine: Machine, state: str, reachable: set[str]) -> None:
    """§TRN-33: a commit may pass several states, so the database allows the closure."""
    assert machine.reachable(state) == reachable


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.aggregate)
def test_the_closure_is_closed(machine: Machine) -> None:
    for state in machine.states:
        assert machine.table[state] <= machine.reachable(state)
        for further in machine.reachable(state):
            assert machine.reachable(further) <= machine.reachable(state)


def test_a_machine_and_its_type_name_the_same_states() -> None:
    named = {
        SIGNAL: transitions.SignalStatus,
        RUN: transitions.RunStatus,
        STEP: transitions.StepStatus,
        EFFECT: transitions.EffectStatus,
        TOOL_CALL: transitions.ToolCallStatus,
        SCHEDULE: transitions.ScheduleStatus,
    }
    for machine, status in named.items():
        assert set(machine.states) == set(get_args(status))
    assert set(named) == set(MACHINES)
