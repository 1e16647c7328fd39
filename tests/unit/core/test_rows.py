"""Rows: what commits write, one after the other, is what the fold of the whole log gives (§ENG-2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runstone.core import codec, commands, rows
from runstone.core.commit import StreamWrite
from runstone.core.effect import Effect, OutboxEntry
from runstone.core.entity import Entity
from runstone.core.fold import fold_run, fold_signal
from runstone.core.rows import Row, all_rows, queue_entry
from runstone.core.run import QueueEntry, Run, code_rank
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.step import Step, StepCorrection
from runstone.core.toolcall import ToolCall
from runstone.core.transitions import EFFECT, RUN, SIGNAL, STEP, TOOL_CALL
from tests.unit.core.build import TENANT, Story, an_id, control, raw
from tests.unit.core.stories import STORIES

every_story = pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)

TERMINAL: dict[type[Row], frozenset[str]] = {
    Signal: SIGNAL.terminal,
    Run: RUN.terminal,
    Step: STEP.terminal,
    Effect: EFFECT.terminal,
    OutboxEntry: EFFECT.terminal,
    ToolCall: TOOL_CALL.terminal,
}


def key(row: Row) -> tuple[str, str]:
    return rows.TABLES[type(row)], row.run_id if isinstance(row, QueueEntry) else row.id


def writes(story: Story) -> list[StreamWrite]:
    return [write for decision in story.decisions for write in decision.commit.writes]


def test_the_table_of_each_row_parents_first() -> None:
    assert list(rows.TABLES.items()) == [
        (Signal, "signals"),
        (Run, "runs"),
        (Step, "steps"),
        (StepCorrection, "step_corrections"),
        (Effect, "effects"),
        (OutboxEntry, "outbox_events"),
        (ToolCall, "tool_calls"),
        (QueueEntry, "run_queue"),
        (Entity, "entities"),
        (Schedule, "schedules"),
    ]


@every_story
def test_events_change_nothing_of_a_row_but_what_is_said_to_change(tell: Callable[[], Story]) -> None:
    """A store writes no more than that of a row that is there already."""
    known: dict[tuple[str, str], Row] = {}
    for write in writes(tell()):
        for row in (*write.rows, *((write.queue,) if write.queue else ())):
            before = known.setdefault(key(row), row)
            changed = {name for name in row.__struct_fields__ if getattr(before, name) != getattr(row, name)}
            assert changed <= set(rows.CHANGING[type(row)])
            known[key(row)] = row


def test_what_changes_are_columns_of_every_kind_of_row() -> None:
    assert list(rows.CHANGING) == list(rows.TABLES)
    for kind, names in rows.CHANGING.items():
        others = [name for name in kind.__struct_fields__ if name not in ("id", "tenant_id")]
        assert [name for name in others if name in names] == list(names)
    assert "fold_version" in rows.CHANGING[Run]


@pytest.mark.parametrize("name", sorted(set(STORIES) - {"pipeline"}))
def test_what_the_commits_wrote_is_what_the_log_gives(name: str) -> None:
    """§ENT-3, §STO-40: byte for byte in canonical JSON. (The pipeline's events are in no commit here.)"""
    story = STORIES[name]()
    table: dict[tuple[str, str], Row] = {}
    for write in writes(story):
        table.update({key(row): row for row in write.rows})
        if write.queue_changed:
            table.pop(("run_queue", write.stream_id), None)
            table.update({key(row): row for row in (write.queue,) if row})
    rebuilt = (
        *all_rows(fold_signal(story.beginning.signal, story.signal_events)),
        *all_rows(fold_run(story.beginning.run, story.run_events)),
    )
    assert {key(row): codec.encode(row) for row in rebuilt} == {
        place: codec.encode(row) for place, row in table.items()
    }


@every_story
def test_a_commit_writes_a_row_once_and_only_if_it_changed(tell: Callable[[], Story]) -> None:
    table: dict[tuple[str, str], Row] = {}
    for write in writes(tell()):
        keys = [key(row) for row in write.rows]
        assert len(set(keys)) == len(keys)
        for row in write.rows:
            assert table.get(key(row)) != row
            table[key(row)] = row


@every_story
def test_a_row_in_a_terminal_state_is_not_written_again(tell: Callable[[], Story]) -> None:
    """§TRN-3"""
    frozen: set[tuple[str, str]] = set()
    for write in writes(tell()):
        for row in write.rows:
            assert key(row) not in frozen
            if isinstance(row, StepCorrection) or row.status in TERMINAL[type(row)]:  # type: ignore[union-attr]
                frozen.add(key(row))


@every_story
def test_an_effect_and_its_outbox_entry_are_written_together(tell: Callable[[], Story]) -> None:
    """§OUT-1, §OUT-12"""
    for write in writes(tell()):
        effects = [row.id for row in write.rows if isinstance(row, Effect)]
        assert [row.id for row in write.rows if isinstance(row, OutboxEntry)] == effects


@every_story
def test_rows_of_a_run_carry_its_tenant_run_and_correlation(tell: Callable[[], Story]) -> None:
    """§ENT-5, §ORD-18"""
    story = tell()
    for row in all_rows(story.state):
        assert row.tenant_id == TENANT
        if not isinstance(row, QueueEntry):
            assert row.correlation_id == story.run.correlation_id  # type: ignore[union-attr]
        if not isinstance(row, Run | OutboxEntry):
            assert row.run_id == story.run_id  # type: ignore[union-attr]


def test_the_order_of_all_rows_is_fixed() -> None:
    story = Story.running()
    for number in (805, 803):
        story.effect(f"mail-{number}", effect_id=an_id(number))
    story.open_step("tools", "TOOL_SEQUENCE")
    for number in (705, 703):
        story.do(
            commands.CallTool(step_key="tools", tool_name="t", tool_args=raw(1), tool_call_id=an_id(number))
        )
    assert [key(row) for row in all_rows(story.state)] == [
        ("runs", story.run_id),
        *(("steps", step.id) for step in story.state.steps.values()),
        ("effects", an_id(803)),
        ("effects", an_id(805)),
        ("outbox_events", an_id(803)),
        ("outbox_events", an_id(805)),
        ("tool_calls", an_id(703)),
        ("tool_calls", an_id(705)),
        ("run_queue", story.run_id),
    ]


def test_a_stream_in_which_nothing_happened_has_no_rows() -> None:
    story = Story()
    assert all_rows(story.case.signal) == all_rows(story.case.run) == ()
    assert queue_entry(story.case.run) is None


def test_a_signal_is_one_row() -> None:
    story = Story.received()
    assert all_rows(story.case.signal) == (story.signal,)


class TestQueue:
    """§ENT-25"""

    def test_an_unfinished_run_has_a_row(self) -> None:
        story = Story.queued(orchestrator_version="1.10", lane="customer-7", lane_limit=2)
        entry = queue_entry(story.state)
        assert entry == QueueEntry(
            run_id=story.run_id,
            tenant_id=TENANT,
            handler="orders",
            code_rank=code_rank("1.10"),
            lane="customer-7",
            lane_limit=2,
            started=False,
            wake_at=story.now,
            news_seq=0,
        )

    def test_it_says_whether_the_run_has_started(self) -> None:
        """§ENG-45: what has started counts in its lane, also while it is paused."""
        story = Story.queued(approval_required=True)
        seen = []
        for command in (
            control("APPROVE", 901),
            commands.StartRun(),
            control("PAUSE", 902),
            control("RESUME", 903),
        ):
            story.do(command)
            entry = queue_entry(story.state)
            assert entry is not None
            seen.append(entry.started)
        assert seen == [False, True, True, True]

    @pytest.mark.parametrize("tell", [STORIES["completed"], STORIES["failed"], STORIES["cancelled"]])
    def test_an_ended_one_has_none(self, tell: Callable[[], Story]) -> None:
        story = tell()
        assert queue_entry(story.state) is None
        last = next(write for write in reversed(writes(story)) if write.queue_changed)
        assert last.queue is None

    def test_a_commit_says_whether_it_changed(self) -> None:
        story = Story.running()
        assert story.decisions[-1].commit.writes[-1].queue_changed
        story.step()
        assert not story.decisions[-1].commit.writes[-1].queue_changed


def test_a_missing_payload_is_null_in_its_row() -> None:
    assert Story.running().run.metadata is None
    assert Story.running(metadata=raw(None)).run.metadata == raw(None)
