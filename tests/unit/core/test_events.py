"""The envelope: what an event must look like to be read at all (§EVT-1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runstone.core.events import Event
from tests.unit.core.build import HASH, Story, an_id
from tests.unit.core.stories import STORIES


def envelope(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": an_id(1),
        "tenant_id": an_id(2),
        "stream_id": an_id(3),
        "event_type": "RUN_RESUMED",
        "event_version": 1,
        "aggregate_type": "RUN",
        "aggregate_id": an_id(3),
        "event_data": {},
        "idempotency_key": HASH,
        "correlation_id": an_id(4),
        "actor": "ada",
        "occurred_at": "2026-03-01T12:00:00Z",
        "trace_id": "0" * 32,
        "span_id": "0" * 16,
        "run_seq": 1,
        "prev_hash": "0" * 64,
    }
    return fields | changes


def read(fields: dict[str, Any]) -> Event:
    return msgspec.json.decode(msgspec.json.encode(fields), type=Event)


def test_the_least_an_event_can_be() -> None:
    event = read(envelope())
    assert bytes(event.event_data) == b"{}"
    assert event.run_id is event.causation_id is event.step_key is event.control_signal_id is None
    assert event.logical_attempt is event.engine_attempt is None
    assert (event.sequence_number, event.persisted_at) == (None, None)


@pytest.mark.parametrize("field", sorted(envelope()))
def test_none_of_it_can_be_left_out(field: str) -> None:
    """Trace and span included (§EVT-3)."""
    fields = envelope()
    del fields[field]
    with pytest.raises(msgspec.ValidationError, match=field):
        read(fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "ABCDEF00-0000-7000-8000-000000000001"),
        ("stream_id", "not-an-id"),
        ("event_version", 0),
        ("aggregate_type", "PLANET"),
        ("idempotency_key", "abc"),
        ("occurred_at", "2026-03-01T12:00:00"),
        ("trace_id", "0" * 31),
        ("span_id", "g" * 16),
        ("run_seq", 0),
        ("prev_hash", "0" * 63),
        ("logical_attempt", 0),
        ("engine_attempt", 0),
    ],
)
def test_what_cannot_be(field: str, value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(envelope(**{field: value}))


def test_a_field_of_a_later_version_is_ignored() -> None:
    """§VER-6"""
    assert read(envelope(mood="cheerful")) == read(envelope())


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_no_payload_repeats_an_id_of_its_envelope(tell: Any) -> None:
    """§EVT-2"""
    story: Story = tell()
    for event in story.events:
        carried = [getattr(event, name) for name in Event.__struct_fields__ if name.endswith("id")]
        held = msgspec.json.decode(event.event_data).items()
        assert [f"{event.event_type}.{name}" for name, value in held if value in carried] == []
