"""Takes control signals to a run in."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from runstone.core import codec
from runstone.core.events import Event
from runstone.core.fold.streams import Reducer, RunFold
from runstone.core.payloads import signals
from runstone.core.state import CONTROLS_A_MINUTE, Answer
from runstone.errors import CommandRefused


def accepted(fold: RunFold, event: Event, data: signals.SignalAccepted) -> None:
    fold.existing("RUNNING")
    fold.controls[event.control_signal_id or event.id] = event.id
    fold.control_times = _latest(fold.control_times, event)
    fold.news_seq = event.run_seq
    if data.kind == "ANSWER":
        if data.target is None or event.control_signal_id is None:
            raise CommandRefused(f"Answer {event.id} names no wait, or not the control signal it came by")
        answer = Answer(
            control_signal_id=event.control_signal_id, event_id=event.id, data=data.data or codec.NULL
        )
        fold.answers[data.target] = (*fold.answers.get(data.target, ()), answer)


def rejected(fold: RunFold, event: Event, data: signals.SignalRejected) -> None:
    fold.existing("RUNNING")
    fold.controls[event.control_signal_id or event.id] = event.id
    if data.error.code == signals.NOT_AUTHORIZED:
        fold.denied_times = _latest(fold.denied_times, event)
    else:
        fold.control_times = _latest(fold.control_times, event)


def _latest(times: tuple[datetime, ...], event: Event) -> tuple[datetime, ...]:
    """Only as many as the limit has to look at."""
    return (*times, event.occurred_at)[-CONTROLS_A_MINUTE:]


REDUCERS: Final[dict[str, Reducer]] = {
    "SIGNAL_ACCEPTED": accepted,
    "SIGNAL_REJECTED": rejected,
}
