"""The errors: one tree of public names, each with a message of its own and its values as attributes."""

from __future__ import annotations

import inspect
import pickle
from datetime import timedelta

import pytest

from runstone import errors
from runstone.errors import RunstoneError

TREE = {
    "RunstoneError": "Exception",
    "InvalidPayload": "RunstoneError",
    "StateTransitionError": "RunstoneError",
    "CommandRefused": "RunstoneError",
    "UnreadableEvent": "RunstoneError",
    "UnknownEventType": "UnreadableEvent",
    "UnknownEventVersion": "UnreadableEvent",
    "ForeignEvent": "UnreadableEvent",
    "SequenceGap": "UnreadableEvent",
    "ArtifactInvalid": "RunstoneError",
    "RegistrationError": "RunstoneError",
    "UseRunCall": "RunstoneError",
    "UseRunFirst": "RunstoneError",
    "UseRunGather": "RunstoneError",
    "StepFailed": "RunstoneError",
    "WaitTimeout": "StepFailed",
    "EffectFailed": "StepFailed",
    "ControlRefused": "RunstoneError",
    "TooManyControls": "ControlRefused",
    "SignalConflict": "RunstoneError",
    "RunFailed": "RunstoneError",
    "RunCancelled": "RunFailed",
    "TerminalError": "RunstoneError",
    "RetryableError": "RunstoneError",
    "BundleInvalid": "RunstoneError",
    "SettingsInvalid": "RunstoneError",
    "StoreError": "RunstoneError",
    "NotFound": "StoreError",
    "RunArchived": "NotFound",
    "CommitRefused": "StoreError",
    "StaleSequence": "CommitRefused",
    "StaleFence": "CommitRefused",
    "StaleClaim": "CommitRefused",
    "DuplicateKey": "CommitRefused",
    "OutcomeUnknown": "StoreError",
    "FeedEpochChanged": "StoreError",
    "StoreUnusable": "StoreError",
    "StoreBusy": "StoreUnusable",
    "StoreClosed": "StoreUnusable",
    "StoreCorrupt": "StoreUnusable",
    "SnapshotInvalid": "StoreCorrupt",
    "StoreFull": "StoreUnusable",
    "StoreReadOnly": "StoreUnusable",
    "StoreTooNew": "StoreUnusable",
}
"""Every public name, and what it is a kind of."""

CLASSES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)
]
PLAIN = [kind for kind in CLASSES if kind.__init__ is RunstoneError.__init__]


def test_the_tree_of_public_names() -> None:
    assert {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES} == TREE
    assert all(len(kind.__bases__) == 1 for kind in CLASSES)


def test_the_module_draws_the_same_tree() -> None:
    drawn: list[str] = []
    parents: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        name = next((word for word in line.split() if word in TREE), None)
        if name is None:
            continue
        depth = (line.index(name) - 4) // 4
        drawn[depth:] = [name]
        parents[name] = drawn[depth - 1] if depth else "Exception"
    assert parents == TREE


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_the_docstrings_first_line_is_the_default_message(kind: type[RunstoneError]) -> None:
    first_line = inspect.cleandoc(kind.__doc__ or "").splitlines()[0]
    assert first_line
    assert str(kind()) == first_line
    assert str(kind("Something else")) == "Something else"


def test_values_stay_as_attributes() -> None:
    invalid = errors.InvalidPayload("/a/0", "too long")
    assert (invalid.pointer, invalid.reason, str(invalid)) == ("/a/0", "too long", "too long (at '/a/0')")
    assert str(errors.InvalidPayload("", "too long")) == "too long"

    unknown = errors.UnknownEventType("RUN_FLEW")
    assert unknown.event_type == "RUN_FLEW"
    assert "RUN_FLEW" in str(unknown)
    assert "upgrade" in str(unknown)

    newer = errors.UnknownEventVersion("RUN_CREATED", 3, 1)
    assert (newer.event_type, newer.event_version, newer.known) == ("RUN_CREATED", 3, 1)
    assert "RUN_CREATED has version 3" in str(newer)
    assert "reads up to 1" in str(newer)

    gap = errors.SequenceGap("s-1", 4, 7)
    assert (gap.stream_id, gap.expected, gap.found) == ("s-1", 4, 7)
    assert str(gap).startswith("PROJECTOR_GAP_DETECTED in stream s-1: expected run_seq 4, found 7")

    stale = errors.StaleSequence("s-1", 4, 7)
    assert (stale.stream_id, stale.expected, stale.actual) == ("s-1", 4, 7)
    assert str(stale) == "Stream s-1 is at 7, the commit was decided on 4"

    fenced = errors.StaleFence("s-1", 4, 7)
    assert (fenced.stream_id, fenced.fence, fenced.actual) == ("s-1", 4, 7)
    assert str(fenced) == "Stream s-1 is fenced at 7, the commit carries 4"

    step = errors.WaitTimeout("wait:1", "TIMEOUT", "WAIT_TIMEOUT", "nobody answered")
    assert (step.step_key, step.category, step.code) == ("wait:1", "TIMEOUT", "WAIT_TIMEOUT")
    assert (step.reason, str(step)) == ("nobody answered", "wait:1: nobody answered (WAIT_TIMEOUT)")

    run = errors.RunCancelled("r-1", "CHANGED_MIND", "by ada")
    assert (run.run_id, run.exit_reason, run.reason) == ("r-1", "CHANGED_MIND", "by ada")
    assert str(run) == "Run r-1: CHANGED_MIND (by ada)"
    assert str(errors.RunFailed("r-1", "BOOM")) == "Run r-1: BOOM"

    retryable = errors.RetryableError(retry_after=timedelta(seconds=5))
    assert (retryable.retry_after, str(retryable)) == (timedelta(seconds=5), "Trying again may help.")
    assert errors.RetryableError("busy").retry_after is None

    crowded = errors.TooManyControls("later", retry_after=timedelta(seconds=5))
    assert (crowded.retry_after, str(crowded)) == (timedelta(seconds=5), "later")

    broken = errors.SnapshotInvalid("runs/r-1/events.ndjson", 7, "this is no event")
    assert (broken.path, broken.line, broken.reason) == ("runs/r-1/events.ndjson", 7, "this is no event")
    assert str(broken) == "SnapshotInvalid: runs/r-1/events.ndjson, line 7: this is no event"
    assert str(errors.SnapshotInvalid("x", None, "gone")) == "SnapshotInvalid: x: gone"

    duplicate = errors.DuplicateKey("signal order-1")
    assert duplicate.what == "signal order-1"
    assert "signal order-1" in str(duplicate)


@pytest.mark.parametrize(("from_state", "shown"), [("PENDING", "PENDING"), (None, "does not exist")])
def test_an_illegal_transition_names_entity_and_states(from_state: str | None, shown: str) -> None:
    """§TRN-32"""
    refused = errors.StateTransitionError("effect", "e-1", from_state, "COMPLETED")
    assert refused.aggregate == "effect"
    assert refused.aggregate_id == "e-1"
    assert refused.from_state == from_state
    assert refused.to_state == "COMPLETED"
    assert str(refused).startswith("Invalid transition of effect e-1: ")
    assert shown in str(refused)
    assert str(refused).endswith("→ COMPLETED")


@pytest.mark.parametrize(
    "error",
    [
        errors.StaleSequence("stream", 1, 2),
        errors.StateTransitionError("run", "id", "PENDING", "COMPLETED"),
        errors.RetryableError("busy"),
    ],
)
def test_errors_cross_process_borders_with_their_values(error: errors.RunstoneError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
