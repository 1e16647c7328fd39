"""The pen when things go wrong: it tells its execution, writes nothing more, and can always be closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Raw

from runstone.core import commands
from runstone.core.commit import Commit, Context
from runstone.core.decide import Case, decide
from runstone.core.events import Event
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import OutputResult
from runstone.core.stream import Stream
from runstone.engine.pen import Pen
from runstone.errors import DuplicateKey, OutcomeUnknown, StoreBusy
from runstone.ports.cases import carry_out
from runstone.ports.store import Committed
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.loop import virtual_time
from runstone.testing.memory import MemoryData, MemoryStore

NOW = datetime(2024, 2, 29, tzinfo=UTC)
BUDGET = timedelta(seconds=3)


class Trouble(MemoryStore):
    """A store whose next commits go as a test says."""

    def __init__(self, data: MemoryData, clock: VirtualClock) -> None:
        super().__init__(data, clock=clock)
        self.script: list[Exception | Callable[[], Awaitable[None]]] = []
        """What happens before each, or why it is refused; `OutcomeUnknown`: it lands, unheard."""
        self.reads = asyncio.Event()
        self.reads.set()

    async def commit(self, commit: Commit) -> Committed:
        said = self.script.pop(0) if self.script else None
        if isinstance(said, OutcomeUnknown):
            await super().commit(commit)
        if isinstance(said, Exception):
            raise said
        if said is not None:
            await said()
        return await super().commit(commit)

    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> Stream | None:
        await self.reads.wait()
        return await super().load(tenant_id, stream_id, after_seq=after_seq)


async def stuck() -> None:
    """It hangs, and does not land."""
    await asyncio.Event().wait()


class Desk:
    """A pen on a run that has started, and what it told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ids = SeededIds(1, self.clock)
        self.store = Trouble(MemoryData(), self.clock)
        self.told: list[str] = []
        self.errors: list[BaseException] = []
        self.absorb: Callable[[Sequence[Event]], None] = lambda events: None

    async def open(self) -> Pen:
        case = Case.new(DEFAULT_TENANT, self.ids(), self.ids())
        created = decide(
            case,
            commands.ReceiveSignal(
                signal_type="API_CALL",
                source_channel="c",
                source_id="s",
                source_hash="0" * 64,
                normalized_payload=Raw(b"{}"),
                received_at=NOW,
            ),
            commands.CreateRun(plan_id="handler"),
            commands.StartRun(),
            context=Context(now=NOW, new_id=self.ids, actor="test"),
        )
        await self.store.commit(created.commit)
        self.run_id = created.case.run.stream_id
        self.pen = Pen(
            self.store,
            created.case,
            clock=self.clock,
            new_id=self.ids,
            actor="test",
            engine_attempt=1,
            absorbed=self._absorbed,
            failed=self.errors.append,
            budget=BUDGET,
        )
        return self.pen

    def _absorbed(self, events: Sequence[Event]) -> None:
        self.told += [event.event_type for event in events]
        self.absorb(events)

    async def log(self) -> list[str]:
        found = await self.store.fetch(DEFAULT_TENANT, self.run_id)
        return [event.event_type for event in found if event.event_type.startswith("STEP")]


def step(name: str) -> tuple[commands.Command, ...]:
    return (
        commands.StartStep(step_key=f"{name}#1", step_type="DECISION"),
        commands.CompleteStep(step_key=f"{name}#1", output=OutputResult(decision=Raw(b"1"))),
    )


ONE = ["STEP_STARTED", "STEP_COMPLETED"]


@virtual_time
async def test_an_error_in_whoever_is_told_ends_it() -> None:
    """It comes in a callback of the event loop, where nobody would see it."""
    desk = Desk()
    pen = await desk.open()
    mistake = LookupError("in the engine")

    def stumble(events: Sequence[Event]) -> None:
        raise mistake

    desk.absorb = stumble
    pen.write(*step("a"))
    async with asyncio.timeout(60):
        await pen.close()
    assert desk.errors == [mistake]
    assert await desk.log() == ONE


@virtual_time
async def test_after_a_failure_nothing_more_is_written() -> None:
    desk = Desk()
    pen = await desk.open()
    desk.store.script = [StoreBusy("x")]
    pen.write(*step("a"))
    await asyncio.sleep(1)
    pen.write(*step("b"))
    async with asyncio.timeout(60):
        await pen.close()
    assert [type(error) for error in desk.errors] == [StoreBusy]
    assert await desk.log() == [], "the fold has the first step, and the log has not"


@virtual_time
async def test_after_a_failure_nothing_is_read_on_top_of_what_was_not_written() -> None:
    """Others went on from the log, where the pen's last decision is not."""
    desk = Desk()
    pen = await desk.open()
    desk.store.script = [StoreBusy("no")]
    pen.write(*step("a"))
    await asyncio.sleep(1)
    context = Context(now=NOW, new_id=desk.ids, actor="other")
    for name in ("x", "y"):
        await carry_out(desk.store, DEFAULT_TENANT, desk.run_id, *step(name), context=context)
    told = list(desk.told)
    pen.read_news()
    await asyncio.sleep(1)
    assert [type(error) for error in desk.errors] == [StoreBusy]
    assert desk.told == told
    await pen.close()


@virtual_time
async def test_what_no_event_can_hold_fails_the_run() -> None:
    """Given back, it would be taken up again and again."""
    desk = Desk()
    pen = await desk.open()
    pen.write(commands.SetVariable(name="a\0b", value=Raw(b"1")), *step("a"))
    await asyncio.sleep(1)
    await pen.close()
    assert (desk.errors, desk.told) == ([], ["RUN_FAILED", "SIGNAL_PROCESSING_FAILED"])
    assert pen.state.run is not None
    assert pen.state.run.exit_reason == "INVALID_PAYLOAD"


@virtual_time
async def test_it_can_be_closed_when_its_mending_was_cancelled() -> None:
    """As `asyncio.run` does with every task that is left: the close is part of the cleaning up."""
    desk = Desk()
    pen = await desk.open()
    desk.store.script = [stuck, stuck]
    pen.write(*step("a"))
    await asyncio.sleep(BUDGET.total_seconds() * 1.5)
    mending = pen._mending
    assert mending is not None
    mending.cancel()
    async with asyncio.timeout(60):
        await pen.close()
    assert [type(error) for error in desk.errors] == [asyncio.CancelledError]


@virtual_time
async def test_it_is_closed_when_its_mending_has_come_to_an_end() -> None:
    desk = Desk()
    pen = await desk.open()
    desk.store.script = [stuck]
    pen.write(*step("a"))
    await asyncio.sleep(BUDGET.total_seconds() * 1.5)
    await pen.close()
    assert (desk.told, desk.errors, await desk.log()) == (ONE, [], ONE)


@virtual_time
async def test_what_is_dropped_while_it_is_mended_is_not_written_again() -> None:
    desk = Desk()
    pen = await desk.open()
    desk.store.reads.clear()
    effect = commands.RequestEffect(step_key="a#1", effect_type="API_CALL", spec={}, effect_key="k")
    start, done = step("a")
    desk.store.script = [DuplicateKey("effects.tenant_id, effects.idempotency_key")]
    pen.write(start, effect, done)
    await asyncio.sleep(1)
    pen.drop()
    desk.store.reads.set()
    await pen.close()
    assert (desk.errors, await desk.log()) == ([], [])


@virtual_time
async def test_what_others_write_between_any_two_commits_is_taken_in() -> None:
    """A storm: before each of its commits somebody else is faster."""
    desk = Desk()
    pen = await desk.open()

    async def meddle() -> None:
        answer = commands.Control(
            control_signal_id=desk.ids(), kind="ANSWER", sender="ada", target="w", data=Raw(b"1")
        )
        ada = Context(now=NOW, new_id=desk.ids, actor="ada")
        await carry_out(
            MemoryStore(desk.store.data, clock=desk.clock), DEFAULT_TENANT, desk.run_id, answer, context=ada
        )

    desk.store.script = [meddle] * 20
    for name in "abc":
        pen.write(*step(name))
        await asyncio.sleep(1)
    await pen.close()
    assert desk.errors == []
    assert await desk.log() == ONE * 3
    assert desk.told.count("SIGNAL_ACCEPTED") == 20
    found = await desk.store.load(DEFAULT_TENANT, desk.run_id)
    assert found is not None
    assert pen.state.seal_head() == found.head.head


@virtual_time
@pytest.mark.parametrize("times", [1, 2])
async def test_an_answer_that_is_lost_is_asked_for_again(times: int) -> None:
    desk = Desk()
    pen = await desk.open()
    desk.store.script = [OutcomeUnknown()] * times
    pen.write(*step("a"))
    await asyncio.sleep(1)
    pen.write(*step("b"))
    await pen.close()
    assert (desk.errors, desk.told, await desk.log()) == ([], ONE * 2, ONE * 2)


@virtual_time
async def test_a_store_that_hangs_after_an_answer_was_lost_is_not_waited_for_for_ever() -> None:
    desk = Desk()
    pen = await desk.open()
    desk.store.script = [OutcomeUnknown(), stuck]
    pen.write(*step("a"))
    await asyncio.sleep(2 * BUDGET.total_seconds())
    assert (desk.errors, desk.told, await desk.log()) == ([], ONE, ONE)
    await pen.close()
