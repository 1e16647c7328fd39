"""The hash chain: every event carries the hash of its predecessor (§ORD-14 to §ORD-17).

An event's hash covers its canonical bytes, payload spliced in exactly as stored, and neither
its feed position nor the time it was persisted, which differ from store to store.
"""

from __future__ import annotations

from datetime import UTC
from hashlib import sha256
from typing import Final

import msgspec

from runstone.core import codec
from runstone.core.events import Event, EventDraft

GENESIS: Final = "0" * 64
"""What the first event of a stream carries in place of a predecessor's hash."""


def seal(draft: EventDraft, run_seq: int, prev_hash: str) -> Event:
    """Gives a draft its place in a stream; its time is told in UTC from here on."""
    codec.check_line(bytes(draft.event_data))
    fields = msgspec.structs.asdict(draft)
    fields["occurred_at"] = draft.occurred_at.astimezone(UTC)
    fields["run_seq"] = run_seq
    fields["prev_hash"] = prev_hash
    return Event(**fields)


def portable(event: Event) -> Event:
    """The event without what its store added."""
    if event.sequence_number is None and event.persisted_at is None:
        return event
    return msgspec.structs.replace(event, sequence_number=None, persisted_at=None)


def event_bytes(event: Event) -> bytes:
    """The bytes that are hashed, and that a bundle holds."""
    return codec.encode(portable(event))


def event_hash(event: Event) -> str:
    """The hash its successor carries."""
    return sha256(event_bytes(event)).hexdigest()
