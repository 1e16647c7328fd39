"""What has to be true of every story, whatever went wrong in it.

The log alone is asked wherever that is possible, and counted again from its events, so that a mistake which
the fold, the decider and the store share cannot hide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from runstone.core.effect import EFFECT_WAIT, Effect
from runstone.core.events import Event
from runstone.core.merge import merge_patch
from runstone.core.schedule import CHANNEL, Schedule
from runstone.core.verify import verify_causes, verify_stream
from runstone.testing.memory_data import MemoryData, MemoryStream
from tests.simulation.driver import Simulation
from tests.simulation.stage import Started

_RUN_ENDS: Final = ("RUN_COMPLETED", "RUN_FAILED", "RUN_CANCELLED")
_STEP_ENDS: Final = ("STEP_COMPLETED", "STEP_FAILED", "STEP_SKIPPED")
_MOST_ATTEMPTS: Final = {"flaky": 4, "busy": 9, "wrong": 1, "hopeless": 3, "slow": 1, "charge": 1}


def check(simulation: Simulation) -> list[str]:
    """Everything that is not as it has to be."""
    data = simulation.data
    findings = [*simulation.story.findings, *simulation.ledger.violations]
    lost = [started.key for started in simulation.started if started.run_id not in data.streams]
    if lost:
        return [*findings, f"these were asked for, and are not there: {lost}"]
    for stream in data.streams.values():
        findings += map(str, verify_stream(stream.whole(), stream.all_rows()))
    if findings:
        return findings  # a log that is not sound cannot be asked for more
    for stream in data.streams.values():
        if stream.head.kind == "RUN":
            findings += check_run(stream.head.stream_id, stream.events)
            findings += _check_variables(stream.head.stream_id, stream.events)
    findings += _check_causes(data)
    findings += _check_lanes(data)
    findings += _check_signals(simulation)
    findings += _check_controls(simulation)
    for started in simulation.started:
        findings += _check_result(simulation, started)
    findings += _check_world(simulation)
    findings += _check_posts(simulation)
    findings += check_schedules(data)
    findings += check_records(data)
    return findings


def _data(event: Event) -> Any:
    return msgspec.json.decode(event.event_data)


def check_run(run_id: str, events: Sequence[Event]) -> Iterator[str]:
    """What holds for the log of any run that has ended, whoever executed it and wherever it is stored."""
    ends = [event for event in events if event.event_type in _RUN_ENDS]
    if len(ends) != 1:
        yield f"run {run_id} has {len(ends)} ends"
    elif any(event.aggregate_type == "STEP" for event in events[ends[0].run_seq :]):
        yield f"run {run_id} has steps after its end"
    for event in events:
        if event.event_type == "RUN_PAUSED" and _data(event)["reason"] == "NON_DETERMINISTIC":
            yield f"run {run_id} replayed otherwise: {_data(event)['details']}"
    yield from _check_steps(run_id, events)
    yield from _check_waits(run_id, events)


def _check_steps(run_id: str, events: Sequence[Event]) -> Iterator[str]:
    """One start and at most one end for each attempt; attempts count up, no more of them than allowed."""
    starts: Counter[tuple[str | None, int | None]] = Counter()
    ended: Counter[tuple[str | None, int | None]] = Counter()
    retried: Counter[str | None] = Counter()
    for event in events:
        attempt = (event.step_key, event.logical_attempt)
        if event.event_type == "STEP_STARTED":
            starts[attempt] += 1
            if event.logical_attempt != 1 + retried[event.step_key]:
                yield f"run {run_id}: attempt {attempt} follows {retried[event.step_key]} retries"
        elif event.event_type in _STEP_ENDS:
            ended[attempt] += 1
        elif event.event_type == "STEP_RETRIED":
            retried[event.step_key] += 1
    for attempt in starts | ended:
        if (begun := starts[attempt]) != 1 or ended[attempt] > 1:
            yield f"run {run_id}: attempt {attempt} began {begun} and ended {ended[attempt]} times"
    for key, count in retried.items():
        most = _MOST_ATTEMPTS.get((key or "").split("#")[0].split("/")[-1])
        if most is not None and count >= most:
            yield f"run {run_id}: {key} was tried {count + 1} times, {most} are allowed"


def _check_variables(run_id: str, events: Sequence[Event]) -> Iterator[str]:
    """What was set once is set once, however often the handler was replayed."""
    values = [_data(event)["value"] for event in events if event.event_type == "RUN_VARIABLE_SET"]
    if values != [1, 2, 3, True][: len(values)]:
        yield f"run {run_id} set its variables to {values}"


def _check_waits(run_id: str, events: Sequence[Event]) -> Iterator[str]:
    """Each accepted answer ends one wait, the oldest first; no wait times out while an answer lies there."""
    kept: defaultdict[str, list[str]] = defaultdict(list)
    names: dict[str, str] = {}
    deadlines: dict[str, str] = {}
    outcomes: set[str] = set()
    for event in events:
        data = _data(event)
        if event.event_type == "STEP_STARTED" and (data.get("wait") or {}).get("deadline"):
            deadlines[event.aggregate_id] = data["wait"]["deadline"]
        if event.event_type == "STEP_STARTED" and data.get("wait") and not _waits_for_people(data):
            outcomes |= {event.aggregate_id} if data["wait"].get("name") else set()
        if event.aggregate_id in outcomes:
            continue
        if _by_deadline(event, data) and event.occurred_at < datetime.fromisoformat(
            deadlines[event.aggregate_id]
        ):
            yield f"run {run_id}: {event.step_key} ended at {event.occurred_at}, before its deadline"
        if event.event_type == "SIGNAL_ACCEPTED" and data["kind"] == "ANSWER":
            kept[data["target"]].append(event.control_signal_id or "")
        elif event.event_type == "STEP_STARTED" and _waits_for_people(data):
            names[event.aggregate_id] = data["wait"]["name"]
        elif event.event_type in _STEP_ENDS and event.aggregate_id in names:
            answers = kept[names[event.aggregate_id]]
            if event.event_type == "STEP_COMPLETED":
                if (taken := event.control_signal_id) not in answers[:1]:
                    yield f"run {run_id}: {event.step_key} took {taken}, next was {answers[:1]}"
                answers[:1] = []
            elif data["error"]["code"] == "WAIT_TIMEOUT" and answers:
                yield f"run {run_id}: {event.step_key} timed out though {answers} had come"


def _waits_for_people(data: Any) -> bool:
    name = (data.get("wait") or {}).get("name")
    return name is not None and not name.startswith(EFFECT_WAIT)


def _by_deadline(event: Event, data: Any) -> bool:
    """Whether this is the end of a wait because its time had come."""
    if event.event_type == "STEP_COMPLETED":
        return data["step_type"] == "WAIT" and event.control_signal_id is None
    return event.event_type == "STEP_FAILED" and data["error"]["code"] == "WAIT_TIMEOUT"


def _check_causes(data: MemoryData) -> Iterator[str]:
    correlations: defaultdict[str, list[Any]] = defaultdict(list)
    for stream in data.streams.values():
        correlations[stream.events[0].correlation_id].append(stream.whole())
    for streams in correlations.values():
        yield from map(str, verify_causes(streams))


def _check_lanes(data: MemoryData) -> Iterator[str]:
    """Walks the feed: never are more runs of a lane under way than it has room for."""
    lanes: dict[str, tuple[str, int]] = {}
    under_way: defaultdict[str, set[str]] = defaultdict(set)
    for item in data.log:
        event = item.event
        if event.event_type == "RUN_CREATED" and (lane := _data(event).get("lane")):
            lanes[event.stream_id] = (lane, _data(event).get("lane_limit", 1))
        elif event.stream_id in lanes:
            lane, limit = lanes[event.stream_id]
            if event.event_type == "RUN_STARTED":
                under_way[lane].add(event.stream_id)
                if len(under_way[lane]) > limit:
                    yield f"lane {lane} has room for {limit}, and these are under way: {under_way[lane]}"
            elif event.event_type in _RUN_ENDS:
                under_way[lane].discard(event.stream_id)


def _check_signals(simulation: Simulation) -> Iterator[str]:
    """A signal that came twice is one signal and one run."""
    sources = Counter(
        (_data(item.event)["source_channel"], _data(item.event)["source_id"])
        for item in simulation.data.log
        if item.event.event_type == "SIGNAL_RECEIVED"
    )
    yield from (f"{source} was received {count} times" for source, count in sources.items() if count > 1)
    created = sum(item.event.event_type == "RUN_CREATED" for item in simulation.data.log)
    if created != len(simulation.started):
        yield f"{len(simulation.started)} runs were asked for, and {created} created"


def _check_controls(simulation: Simulation) -> Iterator[str]:
    """What the gateway acknowledged is in the log, once."""
    decided = Counter(
        item.event.control_signal_id
        for item in simulation.data.log
        if item.event.event_type in ("SIGNAL_ACCEPTED", "SIGNAL_REJECTED")
    )
    for run_id, kind, signal_id in simulation.acknowledged:
        if (count := decided[signal_id]) != 1:
            yield f"{kind} {signal_id} to run {run_id} was acknowledged, and is {count} times in the log"


def _check_result(simulation: Simulation, started: Started) -> Iterator[str]:
    """What came of a run is what comes of it when nothing goes wrong."""
    run = simulation.state(started).run
    assert run is not None
    scenario = started.scenario
    if run.status == "CANCELLED" and started.cancelled:
        return
    if run.status == "FAILED" and scenario.fails:
        return
    if _over_budget(simulation.data.streams[run.id]):
        return
    if run.status != "COMPLETED":
        error = bytes(run.error_details or b"").decode()
        yield f"{started.key} ({run.id}) ended as {run.status}: {run.exit_reason} {error}"
    elif (result := msgspec.json.decode(run.result or b"null")) not in scenario.results:
        yield f"{started.key} ({run.id}) came to {result!r}, not to {scenario.results}"


def _over_budget(stream: MemoryStream) -> bool:
    """Whether the store was too slow for one of its steps, which then failed (§ENG-34)."""
    return any(
        event.event_type == "STEP_FAILED" and _data(event)["error"]["code"] == "WRITE_BUDGET_EXCEEDED"
        for event in stream.events
    )


def _check_posts(simulation: Simulation) -> Iterator[str]:
    """Effects through the outbox: none lost, none done twice, at most once means that (§OUT-3, §OUT-26)."""
    world = simulation.world
    applied = dict(world.applied)
    asked: set[str] = set()
    for stream in simulation.data.streams.values():
        for effect in stream.of(Effect):
            if effect.effect_type != "POST":
                continue
            key, text = effect.idempotency_key, msgspec.json.decode(effect.effect_spec)["text"]
            asked.add(key)
            requests = world.requests.get(key, [])
            if set(requests) - {text}:
                yield f"effect {effect.id} was sent as {set(requests)}"
            if effect.delivery == "at_most_once" and len(requests) > 1:
                yield f"effect {effect.id} is for once, and was sent {len(requests)} times"
            if effect.status == "COMPLETED" and key not in applied:
                yield f"effect {effect.id} is completed, and was never applied"
            if effect.status not in ("COMPLETED", "CANCELLED"):
                yield f"effect {effect.id} is left as {effect.status}"
    if strays := set(world.requests) - asked:
        yield f"nobody asked for {strays}"
    order = [text for _, text in world.applied]
    for started in simulation.started:
        if started.scenario.handler == "takes_back" and simulation.state(started).compensations:
            yield f"{started.key} has not taken everything back"
        taken_back = [text.split()[-1] for text in order if text.startswith(f"{started.key} cancel ")]
        expected = [thing for thing in ("car", "hotel", "flight") if thing in taken_back]
        if taken_back != expected:
            yield f"{started.key} took back {taken_back}, in this order"


def check_records(data: MemoryData) -> Iterator[str]:
    """Each change of an entity that was completed stands once in its stream, and no other does (§OUT-56)."""
    effects = [effect for stream in data.streams.values() for effect in stream.of(Effect)]
    asked = {effect.id: effect for effect in effects if effect.effect_type == "SOR_UPDATE"}
    written: Counter[str] = Counter()
    for stream in data.streams.values():
        if stream.head.kind != "ENTITY":
            continue
        present: Any = {}
        for version, event in enumerate(stream.events, 1):
            change = _data(event)
            written[change["effect_id"]] += 1
            present = merge_patch(present, change["change"])
            if (change["version"], change["data"]) != (version, present):
                yield f"entity {stream.head.stream_id} is {change['data']} at {version}, not {present}"
            effect = asked.get(change["effect_id"])
            if (
                effect is None
                or msgspec.json.decode(effect.execution_result or b"{}").get("event_id") != event.id
            ):
                yield f"effect {change['effect_id']} does not say that it wrote {event.id}"
    for effect in asked.values():
        if written[effect.id] != (effect.status == "COMPLETED"):
            yield f"effect {effect.id} is {effect.status}, and was written {written[effect.id]} times"
        if effect.status not in ("COMPLETED", "CANCELLED", "DEAD_LETTER"):
            yield f"effect {effect.id} is left as {effect.status}"


def check_schedules(data: MemoryData) -> Iterator[str]:
    """Each effect schedules once; each firing has one run, each run of a schedule one firing (§OUT-68)."""
    events = [item.event for item in data.log]
    scheduled = Counter(_data(event)["effect_id"] for event in events if event.event_type == "TASK_SCHEDULED")
    for stream in data.streams.values():
        for effect in stream.of(Effect):
            if effect.effect_type == "SCHEDULE_TASK" and scheduled[effect.id] != (
                effect.status == "COMPLETED"
            ):
                yield f"effect {effect.id} is {effect.status}, and scheduled {scheduled[effect.id]} times"
    fired = [event for event in events if event.event_type == "TASK_FIRED"]
    signals = {
        event.stream_id: event
        for event in events
        if event.event_type == "SIGNAL_RECEIVED" and _data(event)["source_channel"] == CHANNEL
    }
    created = {event.stream_id: _data(event) for event in events if event.event_type == "RUN_CREATED"}
    runs = Counter(_data(event)["run_id"] for event in fired)
    yield from (f"{count} firings name run {run_id}" for run_id, count in runs.items() if count > 1)
    for event in fired:
        told = _data(event)
        signal = signals.pop(told["signal_id"], None)
        if signal is None or signal.causation_id != event.id:
            yield f"firing {event.id} has no signal of its own"
        if created.get(told["run_id"], {}).get("signal_id") != told["signal_id"]:
            yield f"firing {event.id} has no run {told['run_id']}"
        if event.occurred_at < datetime.fromisoformat(told["due_at"]):
            yield f"{event.stream_id} fired at {event.occurred_at}, before {told['due_at']}"
    yield from (f"signal {signal_id} came of no firing" for signal_id in signals)
    for stream in data.streams.values():
        times = [_data(event)["due_at"] for event in stream.events if event.event_type == "TASK_FIRED"]
        if sorted(set(times)) != times:
            yield f"schedule {stream.head.stream_id} fired for {times}"
        for schedule in stream.of(Schedule):
            if schedule.cron is None and (schedule.status, schedule.fired) != ("DONE", schedule.version):
                yield f"schedule {schedule.name} is {schedule.status} and fired {schedule.fired} times"


def _check_world(simulation: Simulation) -> Iterator[str]:
    """What must not be done twice was not."""
    for what, count in simulation.world.done.items():
        if what.startswith("charge ") and count > 1:
            yield f"{what}: {count} times"
