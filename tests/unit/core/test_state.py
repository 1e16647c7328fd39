"""A row's payload in full: itself, or what its reference leads to (§PAY-16, §PAY-17)."""

from __future__ import annotations

from hashlib import sha256

import pytest
from msgspec import Raw

from runstone.core import codec
from runstone.core.payloads import EventRef
from runstone.core.state import RunState, whole
from tests.unit.core.build import LARGE, TENANT, Story, an_id, plain, raw

KEPT = {f"{an_id(1)}/output_result": Raw(b'{"kept":true}')}


def test_a_reference_leads_to_the_payload_that_was_kept() -> None:
    reference = Raw(codec.encode(EventRef(event=an_id(1), field="output_result", size=13)))
    assert bytes(whole(reference, KEPT)) == b'{"kept":true}'
    state = RunState(stream_id=an_id(2), tenant_id=TENANT, large=KEPT)
    assert bytes(state.whole(reference)) == b'{"kept":true}'


@pytest.mark.parametrize(
    "payload",
    [
        b"1",
        b'{"event":1}',
        b'{"$event":1}',
        b'{"$event":"elsewhere","field":"output_result"}',
        codec.encode({"$event": an_id(1), "field": "another"}),
    ],
)
def test_anything_else_is_itself(payload: bytes) -> None:
    """Also what a user wrote that only looks like a reference."""
    assert whole(Raw(payload), KEPT) == Raw(payload)
    assert whole(Raw(payload), {}) == Raw(payload)


def test_a_large_output_stands_once_and_can_be_had() -> None:
    story = Story.running()
    story.step("think", LARGE)
    row = story.latest("think").output_result
    assert row is not None
    assert plain(row)["$event"] == story.last.id
    assert plain(row)["field"] == "output_result"
    assert plain(story.state.whole(row)) == {"decision": LARGE}


def test_what_a_reference_says_of_its_payload() -> None:
    story = Story.running()
    story.returned(LARGE)
    payload = bytes(raw(LARGE))
    assert plain(story.run.result) == {
        "$event": story.of_type("RUN_HANDLER_RETURNED")[0].id,
        "field": "result",
        "sha256": sha256(payload).hexdigest(),
        "size": len(payload),
    }


@pytest.mark.parametrize(("size", "inline"), [(2048, True), (2049, False)])
def test_two_kilobytes_are_the_bound(size: int, inline: bool) -> None:
    """§PAY-16: more than 2 KB."""
    story = Story.running()
    story.returned("x" * (size - 2))
    assert story.run.result is not None
    assert (len(bytes(story.run.result)) == size) is inline
