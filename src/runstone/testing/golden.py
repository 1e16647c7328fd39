"""Golden histories: old runs, kept to try new code on before it is deployed.

A history is a bundle, as `Simulator.record` and `runstone export` write it. To replay one is to run the
handler against it and to compare what it asks for, step by step, and what it comes to. Nothing is carried
out: a step that the history does not have ends the replay.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from runstone.app import App
from runstone.core import codec
from runstone.core.bundle import pack, unpack
from runstone.core.commit import Commit
from runstone.core.decide import Case
from runstone.core.events import Event
from runstone.core.fold import fold_run
from runstone.core.ids import uuid7
from runstone.core.state import RunState, SignalState
from runstone.core.stream import Stream
from runstone.engine.context import Run
from runstone.engine.execution import Execution
from runstone.engine.functions import Handler
from runstone.engine.values import write
from runstone.engine.waiting import Waiter
from runstone.errors import RunstoneError
from runstone.ports.store import Claim
from runstone.testing.loop import LoopClock, run_virtual, virtual_loop
from runstone.testing.memory import MemoryData, MemoryStore

_ENDS: Final = frozenset(
    {"RUN_HANDLER_RETURNED", "RUN_CONTINUED", "RUN_COMPLETED", "RUN_FAILED", "RUN_CANCELLED"}
)
_CLOSING: Final = frozenset({"HANDLER_RETURNED", "RUN_CONTINUED", "RUN_FAILED", "RUN_CANCELLED"})
_UNFIT: Final = re.compile(r"[^\w.-]+", re.ASCII)
"""What a handler's name may have in it and a file's should not."""


class HistoryDiffers(AssertionError):
    """The code does not do what the history says."""

    def __init__(self, run_id: str, expected: str, actual: str) -> None:
        self.run_id = run_id
        self.expected = expected
        self.actual = actual
        super().__init__(f"Run {run_id} differs from its history\n  expected {expected}\n  actual   {actual}")


def write_histories(streams: Iterable[Stream], folder: Path) -> None:
    """One bundle for each correlation that has a run, named after its handler and what is inside.

    The ids in there are no names: in a simulator each test begins with the same ones. The same history gets
    the same name, and another one a name of its own, so nothing is lost by recording again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    correlations: dict[str, list[Stream]] = {}
    for stream in streams:
        correlations.setdefault(stream.events[0].correlation_id, []).append(stream)
    for together in correlations.values():
        runs = (state.run for stream in together if isinstance(state := stream.fold(), RunState))
        first = next((run for run in runs if run is not None), None)
        if first is not None:
            _write(folder, first.plan_id, pack(together))


def _write(folder: Path, handler: str, bundle: bytes) -> None:
    file = folder / f"{_UNFIT.sub('_', handler)[:80]}-{sha256(bundle).hexdigest()[:12]}.ndjson"
    if file.exists() and file.read_bytes() != bundle:
        raise RunstoneError(f"{file} holds another history: move it away, and record again")
    file.write_bytes(bundle)


def assert_replays(app: App, path: str | Path) -> int:
    """Replays a history, or all in a folder; how many runs. `HistoryDiffers` names expected and actual.

    Where there are none it is an error: what proves nothing must not pass.
    """
    path = Path(path)
    if not path.exists():
        raise RunstoneError(f"There is no {path}: record histories there with sim.record")
    count = 0
    for file in sorted(path.glob("*.ndjson")) if path.is_dir() else [path]:
        streams = unpack(file.read_bytes())
        signals = [state for stream in streams if isinstance(state := stream.fold(), SignalState)]
        for stream in streams:
            if stream.head.kind == "RUN":
                run_virtual(_replay(app, stream, signals))
                count += 1
    if not count:
        raise RunstoneError(f"There are no histories of runs in {path}: record some with sim.record")
    return count


async def _replay(app: App, stream: Stream, signals: Sequence[SignalState]) -> None:
    """Every generation of it, each from its own beginning to its own end."""
    events = stream.events
    begins = [place + 1 for place, event in enumerate(events) if event.event_type == "RUN_CONTINUED"]
    for begin in (0, *begins):
        await _replay_generation(app, stream, begin, signals)


async def _replay_generation(app: App, stream: Stream, begin: int, signals: Sequence[SignalState]) -> None:
    run_id = stream.head.stream_id
    kept, end = _split(stream.events, begin)
    state = fold_run(RunState(stream_id=run_id, tenant_id=stream.head.tenant_id), kept)
    run = state.run
    if run is None or run.started_at is None:
        return
    handler = app.handlers.get(run.plan_id)
    if handler is None:
        raise HistoryDiffers(run_id, f"a handler {run.plan_id!r}", f"none in app {app.name!r}")
    signal = next(found for found in signals if found.stream_id == run.signal_id)
    running = msgspec.structs.replace(state, run=msgspec.structs.replace(run, status="RUNNING"))
    case = Case(signal=_processing(signal), run=running)
    # A result that is on record stands, whatever the handler's annotation says of it.
    checks = end is None or end.event_type != "RUN_HANDLER_RETURNED"
    actual = await _Rehearsal(handler, case, app.version, checks=checks).outcome()
    expected = _said(end) if end is not None and end.event_type != "RUN_CANCELLED" else actual
    if actual != expected:
        raise HistoryDiffers(run_id, expected, actual)


def _processing(state: SignalState) -> SignalState:
    """The signal as it was while its run was under way: with the run it ends once more."""
    assert state.signal is not None, "a bundle has the signals of its runs"
    signal = msgspec.structs.replace(state.signal, status="PROCESSING")
    return msgspec.structs.replace(state, signal=signal)


def _split(events: Sequence[Event], begin: int) -> tuple[Sequence[Event], Event | None]:
    """The history up to where the handler that began there ended, and how it ended."""
    ends = (place for place in range(begin, len(events)) if events[place].event_type in _ENDS)
    place = next(ends, None)
    if place is None:
        return events, None
    end = events[place]
    while place > begin and _closes(events[place - 1]):
        place -= 1
    return events[:place], end


def _closes(event: Event) -> bool:
    """Whether it is the end of something that was under way when its run ended."""
    if event.event_type in ("EFFECT_CANCELLED", "EFFECT_DEAD_LETTERED"):
        return True
    data = msgspec.json.decode(event.event_data)
    return event.event_type in ("STEP_FAILED", "TOOL_FAILED") and data["error"]["code"] in _CLOSING


def _said(event: Event) -> str:
    data: dict[str, Any] = msgspec.json.decode(event.event_data)
    if event.event_type == "RUN_HANDLER_RETURNED":
        return f"the handler returned {bytes(codec.canonical(data['result'])).decode()}"
    if event.event_type == "RUN_CONTINUED":
        return f"the handler continued as new with {bytes(codec.canonical(data['carry'])).decode()}"
    return f"the handler failed: {data['exit_reason']}"


class _Rehearsal(Execution):
    """An execution that carries nothing out."""

    def __init__(self, handler: Handler[Any, Any], case: Case, version: str, *, checks: bool) -> None:
        clock = LoopClock(virtual_loop())
        self._captured = _Capture(clock)
        assert case.run.run is not None
        claim = Claim(
            run_id=case.run.stream_id,
            tenant_id=case.run.tenant_id,
            handler=handler.name,
            fence=0,
            attempts=1,
        )

        async def handle(execution: Execution) -> Raw:
            run = Run(execution, clock=clock, threads=None, emit=lambda run_id, value: None)
            result = await handler.function(run, *handler.read_input(execution.case))
            return handler.signature.result.written(result) if checks else write(result)

        super().__init__(
            handle,
            case,
            claim,
            self._captured,
            worker_id="rehearsal",
            clock=clock,
            new_id=lambda: uuid7(0, bytes(10)),
            jitter=lambda: 0.0,
            linger=timedelta(0),
            code_version=version,
        )
        self._asked: list[str] = []

    async def outcome(self) -> str:
        """What the handler came to: an end, a step that the history does not have, or a wait."""
        task = asyncio.ensure_future(self.run())
        await virtual_loop().calm()
        self.abandon()
        self._captured.released.set()
        await task
        for event in self._captured.events:
            if event.event_type == "RUN_PAUSED":
                details = msgspec.json.decode(event.event_data)["details"]
                raise HistoryDiffers(self.state.stream_id, details["expected"], details["actual"])
            if event.event_type in _ENDS:
                return _said(event)
        return f"the handler asked for step {self._asked[0]!r}" if self._asked else "the handler waits"

    def _begin(self, waiter: Waiter) -> None:
        self._asked.append(waiter.request.key)

    def _perform(self, waiter: Waiter) -> None:
        """It was under way when the history ended."""


class _Capture(MemoryStore):
    """Takes commits and never answers."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(MemoryData(), clock=clock)
        self.events: list[Event] = []
        self.released = asyncio.Event()

    async def commit(self, commit: Commit) -> Any:
        self.events += commit.events
        await self.released.wait()
