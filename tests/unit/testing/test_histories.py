"""Histories are legal, reproducible, and leave no type of event out."""

import json
from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from runstone.core import codec
from runstone.core.catalogue import CATALOGUE
from runstone.core.decide import Decision
from runstone.core.events import LASTING
from runstone.core.fold import fold_run, fold_signal
from runstone.core.state import RunState, SignalState
from runstone.core.transitions import EFFECT, RUN
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.histories import five_step_history, legal_history
from runstone.testing.hostile import PAYLOADS, TEXTS


def history(source: Sequence[int] | Random, length: int = 40, *, pipeline: bool = False) -> list[Decision]:
    clock = VirtualClock()
    new_id = SeededIds(0, clock)
    made = legal_history(
        source, tenant_id=new_id(), clock=clock, new_id=new_id, length=length, pipeline=pipeline
    )
    return list(made)


def assert_folds(decisions: list[Decision]) -> None:
    """What the decisions say of the case is what their events say when they are read back."""
    case = decisions[-1].case
    events = [event for decision in decisions for event in decision.commit.events]
    run = [event for event in events if event.stream_id == case.run.stream_id]
    signal = [event for event in events if event.stream_id == case.signal.stream_id]
    tenant_id = case.run.tenant_id
    folded_run = fold_run(RunState(stream_id=case.run.stream_id, tenant_id=tenant_id), run)
    folded_signal = fold_signal(SignalState(stream_id=case.signal.stream_id, tenant_id=tenant_id), signal)
    assert codec.encode(folded_run) == codec.encode(case.run)
    assert codec.encode(folded_signal) == codec.encode(case.signal)
    keys = Counter((event.stream_id, event.idempotency_key) for event in events)
    assert set(keys.values()) == {1}


@settings(max_examples=50, deadline=None)
@given(tape=st.binary(max_size=400), length=st.integers(1, 40), pipeline=st.booleans())
def test_any_tape_makes_a_history_that_folds(tape: bytes, length: int, pipeline: bool) -> None:
    decisions = history(tape, length, pipeline=pipeline)
    assert 1 <= len(decisions) <= length
    assert_folds(decisions)


def test_the_same_source_makes_the_same_history() -> None:
    tape = bytes(range(256))
    assert history(tape) == history(list(tape))
    assert history(Random(5)) == history(Random(5))
    assert history(Random(5)) != history(Random(6))


def test_an_empty_tape_makes_the_simplest_history() -> None:
    types = [event.event_type for decision in history(b"", 5) for event in decision.commit.events]
    assert types == [
        "SIGNAL_RECEIVED",
        "RUN_CREATED",
        "RUN_STARTED",
        "SIGNAL_PROCESSING_STARTED",
        "STEP_STARTED",
        "STEP_STARTED",
    ]


def test_histories_leave_nothing_out() -> None:
    """Every type of event, every end of a run, every state of an effect, every hostile value."""
    events: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    effects: Counter[str] = Counter()
    stored = bytearray()
    for seed in range(150):
        for decision in history(Random(seed), pipeline=seed % 2 == 0):
            events.update(event.event_type for event in decision.commit.events)
            effects.update(effect.status for effect in decision.case.run.effects.values())
            stored += b"".join(bytes(event.event_data) for event in decision.commit.events)
            if decision.case.run.run is not None:
                runs[decision.case.run.run.status] += 1
    lasting = {name for name, kind in CATALOGUE.types.items() if kind.AGGREGATE in LASTING}
    assert set(CATALOGUE.types) - set(events) == lasting, "no case holds what outlives it"
    assert set(RUN.states) - set(runs) == set()
    assert set(EFFECT.states) - set(effects) == set()
    assert [payload for payload in PAYLOADS if bytes(payload) not in stored] == []
    assert [text for text in TEXTS if codec.encode(text) not in stored] == []


def test_five_steps_is_the_usual_run() -> None:
    clock = VirtualClock()
    decisions = five_step_history(tenant_id=SeededIds(1, clock)(), clock=clock, new_id=SeededIds(2, clock))
    assert_folds(decisions)
    case = decisions[-1].case
    assert case.run.run is not None
    assert case.signal.signal is not None
    assert (case.run.run.status, case.signal.signal.status) == ("COMPLETED", "PROCESSED")
    assert (case.run.run.total_steps, case.run.run.failed_steps) == (5, 0)
    assert [effect.status for effect in case.run.effects.values()] == ["COMPLETED"]


def test_hostile_payloads_are_legal_json() -> None:
    for payload in PAYLOADS:
        assert codec.parse(bytes(payload)) == json.loads(bytes(payload))
