"""Takes control signals to a run in."""

from __future__ import annotations

from typing import Final

from runstone.core import codec
from runstone.core.events import Event
from runstone.core.fold.streams import Reducer, RunFold
from runstone.core.payloads import signals
from runstone.core.state import Answer
from runstone.errors import CommandRefused


def accepted(fold: RunFold, event: Event, data: signals.SignalAccepted) -> None:
    fold.existing("RUNNING")
    fold.controls[event.control_signal_id or event.id] = event.id
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


REDUCERS: Final[dict[str, Reducer]] = {
    "SIGNAL_ACCEPTED": accepted,
    "SIGNAL_REJECTED": rejected,
}
