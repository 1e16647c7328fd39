"""The catalogue: every type of event there is, and how stored bytes become the payload of today."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from runstone.core import codec, payloads
from runstone.core.catalogue import CATALOGUE, Catalogue
from runstone.core.events import AggregateType, Event
from runstone.core.payloads import Moment, Payload
from runstone.errors import InvalidPayload, UnknownEventType, UnknownEventVersion, UnreadableEvent
from tests.unit.core.build import NOON, Story, raw
from tests.unit.core.stories import STORIES

EXPECTED: dict[AggregateType, str] = {
    "SIGNAL": """
        SIGNAL_RECEIVED SIGNAL_PROCESSING_STARTED SIGNAL_PROCESSED SIGNAL_PROCESSING_FAILED SIGNAL_CONFLICT
    """,
    "RUN": """
        RUN_CREATED RUN_APPROVED RUN_STARTED RUN_PAUSED RUN_RESUMED RUN_SUSPENDED RUN_VARIABLE_SET
        RUN_CHECKPOINT_CREATED RUN_HANDLER_RETURNED RUN_CONTINUED RUN_COMPLETED RUN_FAILED RUN_CANCELLED
        SIGNAL_ACCEPTED SIGNAL_REJECTED
        RUN_STATE_CHANGED RESUME_REWIND INVALID_STATE_TRANSITION SECTION_STATE_CHANGED ARTIFACT_WRITTEN
        ARTIFACT_INVALIDATED ARTIFACT_REVALIDATED WORK_ITEM_STARTED WORK_ITEM_COMPLETED WORK_ITEM_FAILED
        ISSUE_OPENED ISSUE_RESOLVED COMMIT_RECORDED
    """,
    "STEP": "STEP_STARTED STEP_COMPLETED STEP_FAILED STEP_SKIPPED STEP_RETRIED STEP_CORRECTED",
    "EFFECT": """
        EFFECT_REQUESTED EFFECT_EXECUTING EFFECT_COMPLETED EFFECT_FAILED EFFECT_RETRYING EFFECT_DEAD_LETTERED
        EFFECT_REQUEUED EFFECT_CANCELLED EFFECT_OUTCOME_UNKNOWN EFFECT_RECONCILED EFFECT_LATE_OUTCOME
        COMPENSATION_REGISTERED
    """,
    "TOOL_CALL": "TOOL_CALLED TOOL_COMPLETED TOOL_FAILED",
    "ENTITY": "ENTITY_UPDATED",
    "SCHEDULE": "TASK_SCHEDULED TASK_FIRED SCHEDULE_CANCELLED",
}
"""§EVT-11 to §EVT-17, §EVT-25, §EVT-26"""


VERSIONS = {"TASK_SCHEDULED": 2}
"""Types whose data has changed; all others are as they were first."""

OF_ENTITIES = {"ENTITY_UPDATED"}
"""Told in `test_entities.py`: no story of a run holds them."""
OF_SCHEDULES = {"TASK_SCHEDULED", "TASK_FIRED", "SCHEDULE_CANCELLED"}
"""Told in `test_schedules.py`."""


def test_every_type_of_event_and_whom_it_is_about() -> None:
    expected = {name: aggregate for aggregate, names in EXPECTED.items() for name in names.split()}
    assert {name: kind.AGGREGATE for name, kind in CATALOGUE.types.items()} == expected


@pytest.mark.parametrize("kind", CATALOGUE.types.values(), ids=CATALOGUE.types)
def test_a_type_and_its_class_have_one_name_and_an_explanation(kind: type[Payload]) -> None:
    assert kind.EVENT_TYPE.replace("_", "").lower() == kind.__name__.lower()
    assert VERSIONS.get(kind.EVENT_TYPE, 1) == kind.VERSION
    assert (kind.__doc__ or "").splitlines()[0].endswith(".")


def test_the_stories_hold_every_type() -> None:
    """What is tried on all stories is tried on all types."""
    told = {event.event_type for tell in STORIES.values() for event in tell().events}
    assert told | OF_ENTITIES | OF_SCHEDULES == set(CATALOGUE.types)


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_every_payload_is_read_back_as_it_was_written(tell: Callable[[], Story]) -> None:
    for event in tell().events:
        payload = CATALOGUE.decode(event)
        assert type(payload) is CATALOGUE.types[event.event_type]
        assert codec.encode(payload) == bytes(event.event_data)


def forged(event_data: bytes, **changes: Any) -> Event:
    event = Story.running().forge(payloads.RunVariableSet(name="x", value=Raw(b"1")))
    return replace(event, event_data=Raw(event_data), **changes)


def test_an_unknown_type_cannot_be_read() -> None:
    """§EVT-21: nothing is skipped."""
    with pytest.raises(UnknownEventType) as refused:
        CATALOGUE.decode(forged(b"{}", event_type="RUN_FLEW"))
    assert refused.value.event_type == "RUN_FLEW"
    assert isinstance(refused.value, UnreadableEvent)


def test_a_version_from_the_future_cannot_be_read_either() -> None:
    """§EVT-20"""
    with pytest.raises(UnknownEventVersion) as refused:
        CATALOGUE.decode(forged(b'{"name":"x","value":1}', event_version=2))
    assert (refused.value.event_type, refused.value.event_version, refused.value.known) == (
        "RUN_VARIABLE_SET",
        2,
        1,
    )
    assert isinstance(refused.value, UnreadableEvent)


@pytest.mark.parametrize(
    "event_data", [b"{}", b'{"name":"","value":1}', b"[]", b"{", b'{"name":"\xff","value":1}']
)
def test_damaged_data_says_which_event_it_is(event_data: bytes) -> None:
    event = forged(event_data)
    with pytest.raises(InvalidPayload) as refused:
        CATALOGUE.decode(event)
    assert "RUN_VARIABLE_SET" in str(refused.value)
    assert event.id in str(refused.value)


class Greeted(Payload, frozen=True, kw_only=True):
    """Somebody was greeted. The first version had one name, the second two; the third knows when."""

    EVENT_TYPE: ClassVar[str] = "GREETED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"
    VERSION: ClassVar[int] = 3

    first: str
    last: str
    at: Moment


class Weighed(Payload, frozen=True, kw_only=True):
    """Something was weighed, with whatever the scales said."""

    EVENT_TYPE: ClassVar[str] = "WEIGHED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"
    VERSION: ClassVar[int] = 2

    reading: Raw


def split_name(old: dict[str, Raw]) -> dict[str, Raw]:
    first, last = msgspec.json.decode(old["name"]).split()
    return {"first": raw(first), "last": raw(last)}


def add_time(old: dict[str, Raw]) -> dict[str, Raw]:
    return {**old, "at": raw("2026-03-01T12:00:00Z")}


def rename_reading(old: dict[str, Raw]) -> dict[str, Raw]:
    return {"reading": old["scales"]}


LATER = Catalogue(
    [Greeted, Weighed],
    {("GREETED", 1): split_name, ("GREETED", 2): add_time, ("WEIGHED", 1): rename_reading},
)


def test_a_catalogue_leads_from_every_version_to_the_latest() -> None:
    with pytest.raises(ValueError, match="GREETED has version 3 and no upcaster from 2"):
        Catalogue([Greeted], {("GREETED", 1): split_name})


class TestUpcasters:
    """§EVT-18, §EVT-19"""

    @pytest.mark.parametrize(
        ("version", "event_data"),
        [
            (1, b'{"name":"Ada Lovelace"}'),
            (2, b'{"first":"Ada","last":"Lovelace"}'),
            (3, b'{"first":"Ada","last":"Lovelace","at":"2026-03-01T12:00:00Z"}'),
        ],
    )
    def test_every_version_is_lifted_to_the_latest(self, version: int, event_data: bytes) -> None:
        event = forged(event_data, event_type="GREETED", event_version=version)
        assert LATER.decode(event) == Greeted(first="Ada", last="Lovelace", at=NOON)

    def test_the_stored_bytes_stay(self) -> None:
        event = forged(b'{"name":"Ada Lovelace"}', event_type="GREETED", event_version=1)
        LATER.decode(event)
        assert bytes(event.event_data) == b'{"name":"Ada Lovelace"}'

    def test_a_time_is_read_like_any_other(self) -> None:
        event = forged(b'{"name":"Ada Lovelace"}', event_type="GREETED", event_version=1)
        lifted = LATER.decode(event)
        assert isinstance(lifted, Greeted)
        assert isinstance(lifted.at, datetime)

    def test_a_payload_of_the_users_own_is_carried_through(self) -> None:
        """Most types of event hold one, a result or an argument. Its very bytes stay (§PAY-15)."""
        event = forged(b'{"scales":{"kg":[1e2,2]}}', event_type="WEIGHED", event_version=1)
        lifted = LATER.decode(event)
        assert isinstance(lifted, Weighed)
        assert bytes(lifted.reading) == b'{"kg":[1e2,2]}'

    def test_one_that_gives_the_wrong_form_is_found_out(self) -> None:
        broken = Catalogue([Greeted], {("GREETED", 1): lambda old: old, ("GREETED", 2): lambda old: old})
        with pytest.raises(InvalidPayload, match="GREETED"):
            broken.decode(forged(b'{"name":"Ada"}', event_type="GREETED", event_version=1))

    def test_newer_than_the_latest_is_unknown(self) -> None:
        with pytest.raises(UnknownEventVersion, match="reads up to 3"):
            LATER.decode(forged(b"{}", event_type="GREETED", event_version=4))
