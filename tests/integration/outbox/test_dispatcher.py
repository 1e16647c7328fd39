"""Effects from a handler to the outside and back, on a real store, through an app that runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import pytest_asyncio

import runstone as rs
from runstone.core.effect import Effect
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import ErrorInfo
from runstone.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio

SOON = rs.RetryPolicy(3, timedelta(milliseconds=1), timedelta(milliseconds=2))


class Ring(rs.EffectSpec, frozen=True, kw_only=True):
    """Somebody's door bell."""

    EFFECT_TYPE: ClassVar[str] = "RING"
    RETRIES: ClassVar[rs.RetryPolicy | None] = SOON

    door: str


class Shout(rs.EffectSpec, frozen=True, kw_only=True):
    EFFECT_TYPE: ClassVar[str] = "SHOUT"

    words: str


class House:
    """An app with an outside that notes every call and fails as it is told."""

    def __init__(self) -> None:
        self.app = rs.App("house", version="1")
        self.calls: Counter[str] = Counter()
        self.keys: list[str] = []
        self.failures: dict[str, list[Any]] = {}
        self.open = asyncio.Event()
        self.open.set()
        self.app.executor(Ring)(self.ring)
        self.store: SqliteStore

    async def ring(self, spec: Ring, call: rs.EffectCall) -> Any:
        await self.open.wait()
        self.calls[spec.door] += 1
        self.keys.append(call.key)
        planned = self.failures.get(spec.door)
        if planned:
            outcome = planned.pop(0)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        return {"rung": spec.door, "attempt": call.attempt}

    async def effects(self) -> list[Effect]:
        found = await self.store.list_effects(DEFAULT_TENANT)
        return sorted(found, key=lambda effect: effect.id)

    async def settled(self, *statuses: str, count: int = 1) -> list[Effect]:
        """The effects, once there are so many and each of them has one of these statuses."""
        async with asyncio.timeout(60):
            while True:
                found = await self.effects()
                if len(found) == count and all(effect.status in statuses for effect in found):
                    return found
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House()
    async with await SqliteStore.open(tmp_path / "house.db") as house.store:
        yield house


def failed(code: str, *, retryable: bool = True, nothing_sent: bool = False) -> rs.Failed:
    error = ErrorInfo(category="EXTERNAL", code=code, message=f"It says {code}", retryable=retryable)
    return rs.Failed(error, nothing_sent=nothing_sent)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110  (only the store knows)
            await asyncio.sleep(0.01)


async def events_of(house: House, run_id: str) -> list[str]:
    return [event.event_type for event in await house.store.fetch(DEFAULT_TENANT, run_id)]


async def test_an_effect_goes_out_and_its_run_completes(house: House) -> None:
    """§OUT-12: the outcome and the run's end go in one commit."""

    @house.app.on()
    async def visit(run: rs.Run, door: str) -> str:
        await run.effect(Ring(door=door))
        return "rang"

    house.open.clear()
    async with house.app.running(house.store):
        handle = await house.app.start(visit, "front")
        assert await handle.result() == "rang"
        house.open.set()
        (effect,) = await house.settled("COMPLETED")

        async def completed() -> bool:
            return (await handle.status()).status == "COMPLETED"

        await until(completed)
    assert effect.execution_result is not None
    assert bytes(effect.execution_result) == b'{"attempt":1,"rung":"front"}'
    assert house.calls == {"front": 1}
    assert house.keys == [effect.idempotency_key]
    assert (await events_of(house, handle.id))[-4:] == [
        "RUN_HANDLER_RETURNED",
        "EFFECT_EXECUTING",
        "EFFECT_COMPLETED",
        "RUN_COMPLETED",
    ]


async def test_a_failure_is_retried_with_the_same_key(house: House) -> None:
    """§OUT-20, §OUT-25; `sys.exit` is a failure like others (§ENG-52)."""
    house.failures["front"] = [failed("BUSY"), SystemExit(3), rs.RetryableError("later")]

    @house.app.on()
    async def visit(run: rs.Run) -> Any:
        return await run.effect(Ring(door="front"), wait=True)

    async with house.app.running(house.store, poll=0.01):
        handle = await house.app.start(visit)
        assert await handle.result() == {"rung": "front", "attempt": 4}
    assert house.calls["front"] == 4
    assert len(set(house.keys)) == 1
    names = [name for name in await events_of(house, handle.id) if name.startswith("EFFECT_")]
    assert names == [
        "EFFECT_REQUESTED",
        *["EFFECT_EXECUTING", "EFFECT_FAILED", "EFFECT_RETRYING"] * 3,
        "EFFECT_EXECUTING",
        "EFFECT_COMPLETED",
    ]


async def test_an_effect_that_was_waited_for_raises_its_error(house: House) -> None:
    house.failures["front"] = [failed("NO_SUCH_DOOR", retryable=False)]

    @house.app.on()
    async def visit(run: rs.Run) -> str:
        try:
            await run.effect(Ring(door="front"), wait=True)
        except rs.EffectFailed as error:
            return f"{error.code}: {error.reason}"
        return "rang"

    async with house.app.running(house.store):
        handle = await house.app.start(visit)
        assert await handle.result() == "NO_SUCH_DOOR: It says NO_SUCH_DOOR"
        await house.settled("DEAD_LETTER")
        assert (await handle.status()).status == "COMPLETED", "the handler has dealt with it"
    assert house.calls["front"] == 1


async def test_a_run_that_waits_leaves_memory(house: House) -> None:
    """The outcome answers the wait: the run is claimed again, by another process if need be."""
    gate = asyncio.Event()

    async def slow(spec: Shout) -> str:
        await gate.wait()
        return spec.words.upper()

    house.app.executor(Shout)(slow)

    @house.app.on()
    async def call_out(run: rs.Run) -> str:
        heard: str = await run.effect(Shout(words="hello"), wait=True, timeout=rs.minutes(5))
        return heard

    async with house.app.running(house.store, poll=0.01):
        handle = await house.app.start(call_out)
        worker = house.app.runtime.worker
        assert worker is not None

        async def left() -> bool:
            return "RUN_SUSPENDED" in await events_of(house, handle.id) and not worker.holds(handle.id)

        await until(left)
        gate.set()
        assert await handle.result() == "HELLO"


async def test_a_wait_for_an_effect_can_time_out(house: House) -> None:
    @house.app.on()
    async def call_out(run: rs.Run) -> str:
        try:
            await run.effect(Shout(words="anybody?"), wait=True, timeout=rs.seconds(0.1))
        except rs.WaitTimeout:
            return "nobody"
        return "somebody"

    async with house.app.running(house.store):
        handle = await house.app.start(call_out)
        assert await handle.result() == "nobody"


async def test_a_dead_letter_fails_its_run(house: House) -> None:
    """§OUT-22, §OUT-30."""
    house.failures["front"] = [failed(f"BUSY{number}") for number in range(4)]

    @house.app.on()
    async def visit(run: rs.Run) -> str:
        await run.effect(Ring(door="front"))
        return "rang"

    house.open.clear()
    async with house.app.running(house.store, poll=0.01):
        handle = await house.app.start(visit)
        assert await handle.result() == "rang"
        house.open.set()
        await house.settled("DEAD_LETTER")
        assert (await handle.status()).exit_reason == "EFFECT_DEAD_LETTERED"
    assert house.calls["front"] == 4, "one try and three retries"


async def test_at_most_once_is_retried_only_when_nothing_was_sent(house: House) -> None:
    """§OUT-23."""
    house.failures = {
        "refused": [failed("REFUSED", nothing_sent=True)],
        "broken": [failed("RESET")],
        "wrong": [failed("BAD_REQUEST", retryable=False)],
    }

    @house.app.on()
    async def visit(run: rs.Run, door: str) -> None:
        await run.effect(Ring(door=door), at_most_once=True, critical=False)

    async with house.app.running(house.store, poll=0.01):
        for door in house.failures:
            await house.app.start(visit, door)
        effects = await house.settled("COMPLETED", "UNKNOWN", "DEAD_LETTER", count=3)
    statuses = {msgspec.json.decode(effect.effect_spec)["door"]: effect.status for effect in effects}
    assert statuses == {"refused": "COMPLETED", "broken": "UNKNOWN", "wrong": "DEAD_LETTER"}
    assert house.calls == {"refused": 2, "broken": 1, "wrong": 1}


async def test_a_failed_run_takes_back_what_it_did_the_latest_first(house: House) -> None:
    """§OUT-43, §OUT-44."""

    @house.app.on()
    async def book(run: rs.Run) -> None:
        for thing in ("flight", "hotel", "car"):
            await run.effect(Ring(door=f"book {thing}"), wait=True)
            await run.compensate(Ring(door=f"cancel {thing}"))
        raise LookupError("no insurance")

    rung: list[str] = []
    plain = house.ring

    async def noted(spec: Ring, call: rs.EffectCall) -> Any:
        rung.append(spec.door)
        return await plain(spec, call)

    house.app._services.clear()
    house.app.executor(Ring)(noted)
    house.failures["cancel hotel"] = [failed("GONE", retryable=False)]
    async with house.app.running(house.store, poll=0.01):
        handle = await house.app.start(book)
        with pytest.raises(rs.RunFailed):
            await handle.result()

        async def over() -> bool:
            return len(rung) == 6 and not any(effect.is_open for effect in await house.effects())

        await until(over)
    assert rung[3:] == ["cancel car", "cancel hotel", "cancel flight"]


async def test_a_completed_run_takes_nothing_back(house: House) -> None:
    @house.app.on()
    async def book(run: rs.Run) -> str:
        await run.compensate(Ring(door="cancel"))
        await run.effect(Ring(door="book"), wait=True)
        return "booked"

    async with house.app.running(house.store, poll=0.01):
        handle = await house.app.start(book)
        assert await handle.result() == "booked"
        await asyncio.sleep(0.1)
    assert house.calls == {"book": 1}


async def test_a_plain_function_runs_in_a_thread(house: House) -> None:
    import threading

    names: list[str] = []

    @house.app.executor(Shout)
    def shout(spec: Shout) -> str:
        names.append(threading.current_thread().name)
        return spec.words * 2

    @house.app.on()
    async def call_out(run: rs.Run) -> Any:
        return await run.effect(Shout(words="ho"), wait=True)

    async with house.app.running(house.store, poll=0.01):
        assert await (await house.app.start(call_out)).result() == "hoho"
    assert names[0].startswith("runstone-step")


async def test_a_class_can_be_an_executor(house: House) -> None:
    @house.app.executor(Shout)
    class Shouter:
        async def execute(self, call: rs.EffectCall) -> rs.Succeeded:
            assert isinstance(call.spec, Shout)
            return rs.Succeeded([call.spec.words, call.attempt])

    @house.app.on()
    async def call_out(run: rs.Run) -> Any:
        return await run.effect(Shout(words="ho"), wait=True)

    async with house.app.running(house.store, poll=0.01):
        assert await (await house.app.start(call_out)).result() == ["ho", 1]


async def test_a_large_spec_goes_out_whole(house: House) -> None:
    @house.app.executor(Shout)
    async def count(spec: Shout) -> Any:
        return {"length": len(spec.words), "echo": spec.words}

    @house.app.on()
    async def call_out(run: rs.Run) -> int:
        heard = await run.effect(Shout(words="x" * 50_000), wait=True)
        return len(heard["echo"])

    async with house.app.running(house.store, poll=0.01):
        assert await (await house.app.start(call_out)).result() == 50_000


async def test_draining_gives_back_what_is_under_way(house: House) -> None:
    """An at-least-once effect is put back; of an at-most-once one nobody knows (§OUT-26)."""
    begun = asyncio.Semaphore(0)

    @house.app.executor(Shout)
    async def never(spec: Shout) -> None:
        begun.release()
        await asyncio.Event().wait()

    @house.app.on()
    async def call_out(run: rs.Run) -> None:
        await run.effect(Shout(words="often"))
        await run.effect(Shout(words="once"), at_most_once=True)

    async with house.app.running(house.store, poll=0.01, grace=timedelta(seconds=0.1)):
        await house.app.start(call_out)
        await begun.acquire()
        await begun.acquire()
    statuses = {effect.delivery: effect.status for effect in await house.effects()}
    assert statuses == {"at_least_once": "PENDING", "at_most_once": "UNKNOWN"}
    claimed = await house.store.claim_effects("x", types=["SHOUT"], limit=9, lease=timedelta(seconds=1))
    assert len(claimed) == 1, "at once, without waiting for a lease to run out"
