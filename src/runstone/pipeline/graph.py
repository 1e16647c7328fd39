"""The state graph: which states a pipeline has, and what may follow what (§PIP-11 to §PIP-14, §PIP-20).

A graph is data, checked when it is declared: what could strand a run is an error before there is one.
Every state that is not terminal also leads to FAILED and to CANCELLED; nobody has to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runstone.core.pipeline import PipelineState
from runstone.errors import RegistrationError

FAILED: Final = "FAILED"
CANCELLED: Final = "CANCELLED"

_BAD: Final = ("ERROR", "BLOCKER")


@dataclass(frozen=True)
class IssuesOpen:
    """Chooses by the run's issues: one way while an ERROR or a BLOCKER is open, the other when none is."""

    then: str
    otherwise: str

    def __call__(self, state: PipelineState) -> str:
        bad = any(issue.status == "OPEN" and issue.severity in _BAD for issue in state.issues.values())
        return self.then if bad else self.otherwise


@dataclass(frozen=True)
class State:
    """One state of a graph, and where it leads; a state that leads nowhere is terminal.

    A run that stopped in a *transitional* state goes back to the last *stable* one when it is resumed.
    `choose` picks the way where there are several, from what the run's snapshot holds and nothing else.
    `limit` is how often the state may be entered: once more, and the run fails. Every loop needs one.
    """

    name: str
    to: str | tuple[str, ...] = ()
    stable: bool = False
    transitional: bool = False
    limit: int | None = None
    choose: Callable[[PipelineState], str] | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Where its work leads; FAILED and CANCELLED come on top."""
        return (self.to,) if isinstance(self.to, str) else self.to


class Graph:
    """The states of a pipeline in their order; a run begins in the first."""

    def __init__(self, *states: State) -> None:
        self.states: Mapping[str, State] = {state.name: state for state in states}
        _check(states)
        ends = (State(FAILED), State(CANCELLED))
        self.states = {**self.states, **{end.name: end for end in ends if end.name not in self.states}}
        self.names: tuple[str, ...] = tuple(self.states)
        self.initial = self.names[0]
        self.terminal = frozenset(name for name, state in self.states.items() if not state.targets)
        self.table: Mapping[str, frozenset[str]] = {
            name: frozenset() if name in self.terminal else frozenset({*state.targets, FAILED, CANCELLED})
            for name, state in self.states.items()
        }
        """Every legal move."""

    def __getitem__(self, name: str) -> State:
        return self.states[name]

    def allows(self, from_state: str | None, to_state: str) -> bool:
        """Whether a run may go from here to there; from nowhere, only to the first state."""
        return to_state == self.initial if from_state is None else to_state in self.table.get(from_state, ())

    def place(self, name: str) -> int:
        """Where a state stands in the declared order: what is worked on first."""
        return self.names.index(name)

    def next(self, state: PipelineState) -> str:
        """Where the run goes when its work is done, by the graph and the snapshot alone (§PIP-23)."""
        here = self.states[state.run_state or self.initial]
        wanted = here.choose(state) if here.choose else here.targets[0]
        return FAILED if self.exhausted(state, wanted) else wanted

    def exhausted(self, state: PipelineState, wanted: str) -> bool:
        """Whether a state has been entered as often as it may be (§PIP-12); a rewind gives none back."""
        limit = self.states[wanted].limit if wanted in self.states else None
        return limit is not None and state.visits.get(wanted, 0) >= limit

    def loops(self, name: str) -> bool:
        """Whether a run may come back to a state without being resumed."""
        return name in _reachable(self.states[name].targets, self.states)

    def last_stable(self, state: PipelineState) -> str:
        """The stable state that the run was in last (§PIP-20)."""
        passed = (name for name in state.entered if name in self.states and self.states[name].stable)
        return max(passed, key=lambda name: state.entered[name], default=self.initial)

    def stable_before(self, name: str, state: PipelineState) -> str:
        """The state to stand in for work of this one to be done again: itself, unless it is transitional."""
        if not self.states[name].transitional:
            return name
        passed = [found for found in state.entered if found in self.states]
        earlier = [found for found in passed if self.states[found].stable and name in self._ahead(found)]
        return max(
            (found for found in earlier if self.place(found) < self.place(name)),
            key=self.place,
            default=self.last_stable(state),
        )

    def describe(self) -> list[dict[str, object]]:
        """The graph as JSON: a run keeps it, to be drawn and ended without its pipeline's code."""
        return [
            {
                "name": state.name,
                "to": list(state.targets),
                "stable": state.stable,
                "transitional": state.transitional,
                "limit": state.limit,
            }
            for state in self.states.values()
        ]

    @classmethod
    def described(cls, description: list[dict[str, Any]]) -> Graph:
        """The graph of a description. It cannot choose: that takes the pipeline's own code."""
        return cls(
            *(
                State(**{**state, "to": tuple(state["to"])}, choose=_cannot if len(state["to"]) > 1 else None)
                for state in description
            )
        )

    def _ahead(self, name: str) -> set[str]:
        return _reachable([name], self.states)


def _cannot(state: PipelineState) -> str:
    raise RegistrationError("This graph was read from a run and cannot choose: load the run's pipeline")


def _reachable(start: Iterable[str], states: Mapping[str, State], without: Iterable[str] = ()) -> set[str]:
    """Every state that some path from the start leads to, the start included."""
    shut = set(without)
    found: set[str] = set()
    ahead = [name for name in start if name not in shut]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += [target for target in states[name].targets if target not in shut]
    return found


def _check(states: tuple[State, ...]) -> None:
    """Refuses a graph in which a run could be lost."""
    names = [state.name for state in states]
    by_name = {state.name: state for state in states}
    if not names:
        raise RegistrationError("A graph needs at least one state")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RegistrationError(f"State {twice[0]!r} is declared twice")
    for state in states:
        _check_state(state, {*names, FAILED, CANCELLED})
    whole = by_name | {end: State(end) for end in (FAILED, CANCELLED) if end not in by_name}
    reached = _reachable(names[:1], whole)
    if lost := [name for name in names if name not in reached | {FAILED, CANCELLED}]:
        raise RegistrationError(f"State {lost[0]!r} cannot be reached from {names[0]!r}")
    _check_ends(names, whole)
    _check_loops(names, whole)
    exposed = _reachable(names[:1], whole, without=[state.name for state in states if state.stable])
    if lost := [state.name for state in states if state.transitional and state.name in exposed]:
        raise RegistrationError(
            f"Transitional state {lost[0]!r} can be reached without passing a stable one: "
            "a run that stops there could not be rewound"
        )


def _check_state(state: State, known: set[str]) -> None:
    name, targets = state.name, state.targets
    if not name or name.strip() != name:
        raise RegistrationError(f"{name!r} is no name for a state")
    if state.stable and state.transitional:
        raise RegistrationError(f"State {name!r} is declared both stable and transitional")
    if unknown := [target for target in targets if target not in known]:
        raise RegistrationError(f"State {name!r} leads to {unknown[0]!r}, which is not declared")
    if state.limit is not None and state.limit < 1:
        raise RegistrationError(f"State {name!r} has limit={state.limit}: it has to be 1 or more")
    if name in (FAILED, CANCELLED) and targets:
        raise RegistrationError(f"{name} is terminal and leads nowhere")
    if not targets and (state.transitional or state.limit is not None):
        raise RegistrationError(f"State {name!r} leads nowhere: a terminal state has no limit and no rewind")
    if len(set(targets)) != len(targets):
        raise RegistrationError(f"State {name!r} leads to the same state twice")
    if len(targets) > 1 and state.choose is None:
        raise RegistrationError(
            f"State {name!r} leads to {' and '.join(targets)}: give it choose=, a function of the run's state"
        )
    if state.choose is not None and len(targets) < 2:
        raise RegistrationError(f"State {name!r} has choose= and nothing to choose from")


def _check_ends(names: list[str], states: Mapping[str, State]) -> None:
    ends = [name for name in names if not states[name].targets and name not in (FAILED, CANCELLED)]
    if not ends:
        raise RegistrationError("The graph has no terminal state: declare one that leads nowhere")
    for name in names:
        if name not in (FAILED, CANCELLED) and not _reachable([name], states) & set(ends):
            raise RegistrationError(f"From state {name!r} no terminal state can be reached but FAILED")


def _check_loops(names: list[str], states: Mapping[str, State]) -> None:
    limited = [name for name in names if states[name].limit is not None]
    for name in names:
        again = [target for target in states[name].targets if target not in limited]
        if name not in limited and name in _reachable(again, states, without=limited):
            raise RegistrationError(
                f"State {name!r} is part of a loop without end: give one of its states a limit"
            )


def docs_graph(*, max_fix_attempts: int = 3) -> Graph:
    """The fifteen states of a pipeline that writes documentation (§PIP-11)."""
    return Graph(
        State("CREATED", to="CLONED_INPUTS"),
        State("CLONED_INPUTS", to="INGESTED"),
        State("INGESTED", to="FACTS_READY"),
        State("FACTS_READY", to="PLAN_READY"),
        State("PLAN_READY", to="DRAFTING", stable=True),
        State("DRAFTING", to="DRAFT_READY", transitional=True),
        State("DRAFT_READY", to="LINKING", stable=True),
        State("LINKING", to="VALIDATING", transitional=True),
        State(
            "VALIDATING",
            to=("READY_FOR_PR", "FIXING"),
            transitional=True,
            choose=IssuesOpen("FIXING", otherwise="READY_FOR_PR"),
        ),
        State("FIXING", to="VALIDATING", transitional=True, limit=max_fix_attempts),
        State("READY_FOR_PR", to="PR_OPENED", stable=True),
        State("PR_OPENED", to="DONE"),
        State("DONE"),
    )


DOCS_GRAPH: Final = docs_graph()
"""What a pipeline has that names no other."""
