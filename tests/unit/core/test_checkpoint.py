"""Checkpoints: a cache of ids, a cursor and variables; a damaged one is simply passed over."""

from __future__ import annotations

import gzip
from datetime import timedelta

import pytest
from msgspec.structs import replace

from runstone.core import codec, commands
from runstone.core.checkpoint import TIME_TO_LIVE, Checkpoint, CheckpointData, checkpoint
from tests.unit.core.build import NOON, TENANT, Story, an_id, data, plain, raw


def told() -> Story:
    story = Story.running()
    story.step("done")
    story.failed_step("broken")
    story.effect("mail")
    story.sent(story.effect("sent", spec={"to": "eve"}))
    story.do(commands.SetVariable(name="seen", value=raw([1, 2])))
    story.open_step("ask", "SPECIALIST_CALL", specialist_id="lawyer", arguments=raw("help"))
    story.wait("color")
    return story


def read(taken: Checkpoint) -> CheckpointData:
    found = taken.read()
    assert found is not None
    return found


def test_the_row() -> None:
    """§ENT-24, §STO-33"""
    story = told()
    taken = checkpoint(story.state, an_id(400), NOON)
    assert (taken.id, taken.tenant_id, taken.run_id) == (an_id(400), TENANT, story.run_id)
    assert (taken.created_at, taken.expires_at) == (NOON, NOON + TIME_TO_LIVE)
    assert timedelta(days=7) == TIME_TO_LIVE
    assert (taken.compressed, taken.size_bytes) == (True, len(taken.checkpoint_data))
    assert (taken.checkpoint_index, taken.correlation_id) == (0, story.run.correlation_id)


def test_what_it_holds() -> None:
    """§ENG-36: ids, no results."""
    story = told()
    held = read(checkpoint(story.state, an_id(400), NOON))
    steps = {step.step_key: step.id for step in story.state.steps.values()}
    assert (held.run_id, held.checkpoint_index) == (story.run_id, 0)
    assert (held.last_seq, held.head) == (story.state.last_seq, story.state.head)
    assert held.completed_steps == (steps["done"], steps["mail"], steps["sent"])
    assert held.current_step_id == steps["ask"]
    assert held.current_step_state == {"ask": steps["ask"], "wait": steps["wait"]}
    assert [story.effect_row(one).status for one in held.pending_effects] == ["PENDING"]
    assert {name: plain(value)["arguments"] for name, value in held.specialist_state.items()} == {
        "lawyer": "help"
    }
    assert {name: plain(value) for name, value in held.variables.items()} == {"seen": [1, 2]}


def test_a_run_between_steps_has_no_current_one() -> None:
    assert read(checkpoint(Story.running().state, an_id(400), NOON)).current_step_id is None


def test_the_same_state_gives_the_same_bytes_in_the_format_others_read() -> None:
    state = told().state
    one, other = checkpoint(state, an_id(400), NOON), checkpoint(state, an_id(400), NOON)
    assert one == other
    assert gzip.decompress(one.checkpoint_data) == codec.encode(one.read())


def test_its_event_covers_what_it_covers() -> None:
    """RUN_CHECKPOINT_CREATED, decided on the same state, says the same."""
    story = told()
    for index in (0, 1):
        held = read(checkpoint(story.state, an_id(400), NOON))
        story.do(commands.CreateCheckpoint(checkpoint_id=an_id(400)))
        event = data(story.last)
        assert (event["last_seq"], event["head"]) == (held.last_seq, held.head)
        assert event["checkpoint_index"] == held.checkpoint_index == index


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other", "no gzip", "no json"])
def test_a_damaged_one_reads_as_nothing(damage: str) -> None:
    """§ENG-38: use an older one, or the whole log."""
    taken = checkpoint(told().state, an_id(400), NOON)
    packed = taken.checkpoint_data
    middle = len(packed) // 2
    damaged = {
        "empty": b"",
        "cut": packed[:middle],
        "flipped": packed[:middle] + bytes([packed[middle] ^ 0xFF]) + packed[middle + 1 :],
        "other": gzip.compress(b'{"run_id":"x"}'),
        "no gzip": b"{}",
        "no json": gzip.compress(b"\xff"),
    }[damage]
    assert replace(taken, checkpoint_data=damaged).read() is None


def test_one_that_was_not_compressed_is_read_as_it_is() -> None:
    taken = checkpoint(told().state, an_id(400), NOON)
    bare = replace(taken, checkpoint_data=gzip.decompress(taken.checkpoint_data), compressed=False)
    assert bare.read() == taken.read()
    assert replace(bare, checkpoint_data=b"{").read() is None


def test_there_must_be_a_run() -> None:
    with pytest.raises(AssertionError, match="of a run"):
        checkpoint(Story.received().state, an_id(400), NOON)
