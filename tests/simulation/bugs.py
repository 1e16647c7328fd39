"""Planted bugs: the mistakes that systems like this one are known for, each to be found by the simulation.

A bug is put in by `monkeypatch` and goes with it. They are small: a check left out, an order not kept, a
thing done too early.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgspec
import pytest

from runstone.core import commands, transitions
from runstone.core.commit import Commit
from runstone.core.decide import control, effects, steps
from runstone.core.decide import entities as decide_entities
from runstone.core.events import Event
from runstone.core.fold import streams
from runstone.engine import (
    attempts,
    conductor,
    context,
    execution,
    fitting,
    functions,
    pen,
    scope,
    waiting,
    worker,
)
from runstone.errors import StaleFence, StaleSequence
from runstone.ingest import scheduler
from runstone.outbox import carrier, recorder
from runstone.outbox.executors import entities
from runstone.ports import cases
from runstone.ports.store import Committed
from runstone.testing import memory, memory_data

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: Final[dict[str, tuple[Plant, tuple[str, ...]]]] = {}
"""How to put each in, and the handlers that it is hunted with: all, if none are named."""


def planted(*handlers: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        BUGS[plant.__name__] = (plant, handlers)
        return plant

    return register


# In the store


@planted()
def fence_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    check = memory_data.MemoryData._check_head

    def check_head(self: Any, write: Any) -> None:
        try:
            check(self, write)
        except StaleFence:
            return

    patch.setattr(memory_data.MemoryData, "_check_head", check_head)


@planted()
def stale_sequence_is_accepted(patch: pytest.MonkeyPatch) -> None:
    check = memory_data.MemoryData._check_head

    def check_head(self: Any, write: Any) -> None:
        try:
            check(self, write)
        except StaleSequence:
            return

    patch.setattr(memory_data.MemoryData, "_check_head", check_head)
    patch.setattr(memory_data.MemoryData, "_check_rows", lambda self, write: None)


@planted()
def lease_never_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory.MemoryStore, "_is_free", lambda self, stream: stream.owner is None)


@planted("takes_turns", "shares_lanes")
def lane_limit_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory.MemoryStore, "_has_room", lambda self, entry, now: True)


@planted()
def duplicate_signal_makes_a_second_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_data.MemoryData, "_check_keys", lambda self, rows: {})


@planted()
def acknowledged_commit_is_lost(patch: pytest.MonkeyPatch) -> None:
    commit, chance = memory.MemoryStore.commit, Random(0)

    async def lose_some(self: Any, given: Any) -> Committed:
        return Committed() if chance.random() < 0.01 else await commit(self, given)

    patch.setattr(memory.MemoryStore, "commit", lose_some)


@planted("posts", "posts_and_waits")
def outcome_of_a_stale_claim_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_data.MemoryData, "_check_holds", lambda self, write: None)


# In the outbox


@planted("posts_once")
def lost_effect_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    """What was begun by a worker that died is begun again, although it may be done but once."""
    begin = recorder.Recorder.begin

    async def begun(self: Any, effect: Any, executor: str, fence: int) -> bool:
        return effect.status == "EXECUTING" or await begin(self, effect, executor, fence)

    patch.setattr(carrier.Flight, "lost", property(lambda self: False))
    patch.setattr(recorder.Recorder, "begin", begun)


@planted("posts_once")
def beginning_is_not_durable_before_the_call(patch: pytest.MonkeyPatch) -> None:
    async def begun(self: Any, effect: Any, executor: str, fence: int) -> bool:
        return True

    patch.setattr(recorder.Recorder, "begin", begun)


@planted("takes_back")
def compensations_go_out_all_at_once(patch: pytest.MonkeyPatch) -> None:
    compensate = effects.compensate

    def all_at_once(case: Any) -> None:
        while case.state.compensations and case.state.run.status in ("FAILED", "CANCELLED"):
            case.state.compensating = None
            compensate(case)

    patch.setattr(effects, "compensate", all_at_once)


@planted("posts_and_waits")
def outcome_does_not_end_the_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "tell_effect_wait", lambda case, effect_id: None)


# In the core


@planted()
def wake_up_is_lost(patch: pytest.MonkeyPatch) -> None:
    wake = streams.RunFold.wake

    def forget(self: Any, event: Event) -> None:
        if event.aggregate_type != "STEP":
            wake(self, event)

    patch.setattr(streams.RunFold, "wake", forget)


@planted()
def answer_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(control, "_answer", lambda case, command, cause: None)


@planted("asks_in_time", "races_a_wait")
def timeout_and_answer_both_win(patch: pytest.MonkeyPatch) -> None:
    """The end of a wait is written to the log even if it has ended already."""
    is_open, ends = steps._open, fitting._View._end

    def open_or_not(case: Any, step_key: str) -> Any:
        step = case.state.steps[case.state.latest_steps[step_key]]
        return step if step.step_type == "WAIT" else is_open(case, step_key)

    def fits(self: Any, command: Any) -> bool:
        late = isinstance(command, commands.FailStep) and command.error.code == "WAIT_TIMEOUT"
        return late or ends(self, command)

    patch.setattr(steps, "_open", open_or_not)
    patch.setattr(fitting._View, "_end", fits)
    patch.setattr(transitions.STEP, "check", lambda *_: None)
    patch.setattr(memory_data.MemoryData, "_check_rows", lambda self, write: None)


# In the engine


@planted("reads_mail", "asks")
def suspending_overwrites_an_answer(patch: pytest.MonkeyPatch) -> None:
    fits = fitting._View.fits

    def fits_or_suspends(self: Any, command: Any) -> bool:
        return (isinstance(command, commands.SuspendRun) and self._running) or fits(self, command)

    patch.setattr(fitting._View, "fits", fits_or_suspends)


@planted()
def attempts_are_counted_from_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempts.Attempts, "number", lambda self, key: 1)


@planted("gathers", "gathers_deeply")
def outcomes_come_in_the_order_of_asking(patch: pytest.MonkeyPatch) -> None:
    """A branch gets what is recorded for it at once, whatever the others have seen by then."""

    def arrive(self: Any, run_seq: int, scope: Any, future: asyncio.Future[Any], outcome: Any) -> None:
        if not future.done():
            self.running += 1
            future.set_result(outcome)

    patch.setattr(conductor.Conductor, "arrive", arrive)


@planted("once_only")
def at_most_once_runs_again(patch: pytest.MonkeyPatch) -> None:
    go_on = execution.Execution._go_on_open

    def go_on_open(self: Any, waiter: Any, step: Any) -> None:
        if waiter.request.options.at_most_once:
            self._perform(waiter)
        else:
            go_on(self, waiter, step)

    patch.setattr(execution.Execution, "_go_on_open", go_on_open)


@planted("once_only")
def at_most_once_starts_too_early(patch: pytest.MonkeyPatch) -> None:
    """It runs before its start is durable; a crash in between leaves no trace of it."""
    begin = execution.Execution._begin

    def begin_at_once(self: Any, waiter: Any) -> None:
        begin(self, waiter)
        if waiter.request.options.at_most_once:
            self._perform(waiter)

    patch.setattr(execution.Execution, "_begin", begin_at_once)
    patch.setattr(execution.Execution, "_started", lambda self, event: None)


@planted("remembers")
def variables_are_set_again_on_replay(patch: pytest.MonkeyPatch) -> None:
    init = context.Run.__init__

    def forgetful(self: Any, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        self._recorded_sets = 0

    patch.setattr(context.Run, "__init__", forgetful)


@planted("sees_the_same")
def chance_is_not_seeded(patch: pytest.MonkeyPatch) -> None:
    counter = itertools.count()
    patch.setattr(scope.Scope, "_seed", lambda self, kind: next(counter).to_bytes(32, "big"))


@planted()
def retry_time_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A run that waits for its retry sleeps for ever."""
    moment = waiting.Waiting.moment

    def never(self: Any, key: str) -> Any:
        return None if self[key].request.wait is None else moment(self, key)

    patch.setattr(waiting.Waiting, "moment", never)


@planted()
def claimed_run_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The answer to a claim gets lost, and nobody gives the runs back."""

    async def keep(self: Any, news: Any) -> None:
        return

    patch.setattr(worker.Worker, "_release_strays", keep)


@planted()
def loser_does_not_decide_again(patch: pytest.MonkeyPatch) -> None:
    """What was decided on a stale state is thrown away instead of being decided again."""
    recover = pen.Pen._recover

    async def forget(self: Any, error: BaseException) -> None:
        if isinstance(error, StaleSequence):
            self._taken = ()
        await recover(self, error)

    patch.setattr(pen.Pen, "_recover", forget)


# Schedules


@planted("schedules_tasks")
def firing_and_its_run_are_two_commits(patch: pytest.MonkeyPatch) -> None:
    """Who dies in between has fired it, and nothing comes of that (§OUT-68)."""
    durable = cases.make_durable

    async def one_by_one(host: Any, commit: Any) -> Any:
        first, *rest = commit.writes
        await durable(host, type(commit)((first,), first.events))
        return await durable(host, type(commit)(tuple(rest), commit.events[len(first.events) :]))

    patch.setattr(scheduler, "make_durable", one_by_one)


# People and generations


@planted("gives_up", "exhausts", "catches_a_branch")
def seen_failure_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    """A person undoes what the handler went on from (§ENG-29)."""
    objection = control._retry_objection

    def lenient(case: Any, step_key: str | None) -> str | None:
        found = objection(case, step_key)
        return None if found and "has dealt with" in found else found

    patch.setattr(control, "_retry_objection", lenient)


@planted("continues")
def generation_begins_with_the_signal(patch: pytest.MonkeyPatch) -> None:
    """What was carried over is forgotten, and the run begins with what it was started with."""
    read = functions.Handler._input

    def first_input(self: Any, case: Any) -> Any:
        return read(self, msgspec.structs.replace(case, run=msgspec.structs.replace(case.run, carry=None)))

    patch.setattr(functions.Handler, "_input", first_input)


@planted("continues")
def generation_is_replayed_as_the_first(patch: pytest.MonkeyPatch) -> None:
    """Its steps are not scoped: they are called what the steps of the first one were called (§ENG-40)."""
    init = scope.Scope.__init__

    def unscoped(self: Any, run_id: str, path: str, *more: Any) -> None:
        init(self, run_id, re.sub(r"^g\d+:", "", path), *more)

    patch.setattr(scope.Scope, "__init__", unscoped)


# In our own store


@planted("keeps_records")
def an_entity_is_changed_before_its_outcome(patch: pytest.MonkeyPatch) -> None:
    """And without the effect's key, which would keep others from changing it again."""
    make_durable, update = cases.make_durable, decide_entities.update

    async def one_by_one(host: Any, commit: Any) -> Any:
        for write in commit.writes:
            done = await make_durable(host, Commit((write,), write.events))
        return done

    def keyless(stream: Any, *given: Any, **more: Any) -> Any:
        record = stream.record
        stream.record = lambda *event, **about: record(*event, **{**about, "occurrence": ""})
        return update(stream, *given, **more)

    patch.setattr(recorder, "make_durable", one_by_one)
    patch.setattr(entities, "update", keyless)
