"""What the simulation asks for: which workflow, what it is told, and what may come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import runstone as rs


@dataclass(frozen=True)
class Scenario:
    """One workflow, what it is told, and what may come of it."""

    handler: str
    results: tuple[Any, ...]
    answers: Mapping[str, Any] = field(default_factory=dict)
    """What each wait is answered; a wait that is not in here is left to its deadline."""
    fails: bool = False
    """Whether it ends by an error, always."""
    effects_may_fail: bool = False
    signal: Callable[[str], rs.SignalSpec] | None = None


TASK = Scenario("ticked", ("ticked",))
"""What schedules start: nobody asks for it, and it ends as if somebody had."""

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("chain", ("a-b-c",)),
    Scenario("specialists", ("deep thought, quick guess",)),
    Scenario("decisions", ("odd", "even")),
    Scenario("asks", ("yes by ann",), {"question": {"by": "ann", "ok": True}}),
    Scenario("asks_in_time", ("answered: 7", "nobody"), {"urgent": 7}),
    Scenario("nobody_answers", ("nobody",)),
    Scenario("sleeps", ("rested",)),
    Scenario("gathers", ("0,1,2",)),
    Scenario("gathers_deeply", ("0.0 0.1|1.0 1.1",)),
    Scenario("races", ("hare",)),
    Scenario("races_a_wait", ("told: go", "slept"), {"go": "go"}),
    Scenario("retries", ("third time lucky",)),
    Scenario("retries_later", ("worked",)),
    Scenario("gives_up", ("gave up: ValueError after 1",)),
    Scenario("exhausts", ("exhausted: ConnectionError",)),
    Scenario("runs_out_of_time", ("too slow: STEP_TIMEOUT",)),
    Scenario("parks", ("repaired",)),
    Scenario("once_only", ("charged", "unknown: AT_MOST_ONCE")),
    Scenario("asks_for_effects", ("asked",)),
    Scenario("asks_for_keyed_effects", ("asked once",), effects_may_fail=True),
    Scenario("posts", ("posted",)),
    Scenario("posts_and_waits", ("delivered: first, delivered: second",)),
    Scenario("posts_once", ("posted once",)),
    Scenario("takes_back", (), fails=True),
    Scenario("schedules_tasks", ("scheduled: 1",)),
    Scenario("keeps_records", ("VERSION_CONFLICT",)),
    Scenario("takes_turns", ("turn taken",)),
    Scenario("shares_lanes", ("shared",)),
    Scenario("needs_approval", ("approved",)),
    Scenario("remembers", ("3 of 3",)),
    Scenario("sees_the_same", ("the same",)),
    Scenario("is_patched", ("old way", "new way")),
    Scenario("reads_mail", ("letter letter letter",), {"mail": "letter"}),
    Scenario("waits_everywhere", ("left right slept",), {"left": "left", "right": "right"}),
    Scenario("breaks", (), fails=True),
    Scenario("catches_a_branch", ("caught: RuntimeError, went on",)),
    Scenario("loops", ("66",)),
    Scenario("continues", ("generation 3: 6 letters",), {"letter": "letter"}),
    Scenario(
        "hears_a_hook",
        ("heard ping",),
        signal=lambda key: rs.Webhook(webhook_id=key, event_type="ping", payload={"key": key}),
    ),
)
