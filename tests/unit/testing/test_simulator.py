"""The simulator, as a user meets it."""

import asyncio
import doctest
from pathlib import Path

import pytest

import runstone as rs
from runstone.testing import HistoryDiffers, Simulator, Stuck, assert_replays, simulator, virtual_time

calls: list[str] = []


def build(*, version: str = "1", twist: str = "") -> rs.App:
    app = rs.App("desk", version=version)

    @app.tool
    def look_up(order: str) -> str:
        calls.append(order)
        return f"{order}!"

    @app.tool
    async def take_long(order: str) -> str:
        calls.append(f"long {order}")
        await asyncio.sleep(60)
        return order

    @app.on()
    async def refund(run: rs.Run, order: str) -> str:
        found = await run.call(look_up, order)
        if twist == "step":
            await run.call(take_long, order)
        await run.effect(rs.NotifyUser(user_id="ann", message=found))
        try:
            answer = await run.wait("approval", str, timeout=rs.days(2))
        except rs.WaitTimeout:
            answer = "nobody"
        return answer if twist != "result" else "something else"

    @app.on()
    async def slow(run: rs.Run, order: str) -> str:
        return await run.call(take_long, order)

    @app.on(rs.Email)
    async def read(run: rs.Run, mail: rs.Email) -> str:
        return mail.subject

    return app


@pytest.fixture(autouse=True)
def fresh_calls() -> None:
    calls.clear()


def test_the_example_in_the_docstring_runs() -> None:
    results = doctest.testmod(simulator)
    assert results.attempted > 5
    assert results.failed == 0


@virtual_time
async def test_an_answer_and_a_delivery_complete_the_run() -> None:
    app = build()
    async with Simulator(app) as sim:
        handle = await sim.start(app.handlers["refund"], "o-1", key="one")
        (notice,) = sim.effects
        assert notice.effect_type == "NOTIFY_USER"
        assert notice.spec["message"] == "o-1!"
        assert notice.status == "PENDING"
        await handle.answer("approval", "granted")
        assert await handle.result() == "granted"
        assert (await handle.status()).status == "RUNNING"
        await sim.deliver(notice)
        assert (await handle.status()).status == "COMPLETED"
        again = await sim.start(app.handlers["refund"], "o-1", key="one")
        assert again.id == handle.id


@virtual_time
async def test_years_pass_in_a_moment() -> None:
    app = build()
    async with Simulator(app) as sim:
        handle = await sim.start(app.handlers["refund"], "o-1")
        before = sim.clock.now()
        await sim.advance(days=365)
        assert (sim.clock.now() - before).days == 365
        assert await handle.result() == "nobody"


@virtual_time
async def test_a_result_waits_for_virtual_days() -> None:
    app = build()
    async with Simulator(app) as sim:
        handle = await sim.start(app.handlers["refund"], "o-1")
        assert await handle.result() == "nobody"


@virtual_time
async def test_a_crash_runs_the_open_step_again_and_no_other() -> None:
    app = build()
    async with Simulator(app) as sim:
        await sim.start(app.handlers["refund"], "o-1")
        handle = await sim.start(app.handlers["slow"], "o-2")
        await sim.advance(seconds=10)
        await sim.crash()
        await sim.advance(minutes=2)
        assert await handle.result() == "o-2"
    assert calls == ["o-1", "long o-2", "long o-2"]


@virtual_time
async def test_a_critical_effect_that_fails_fails_its_run() -> None:
    app = build()
    async with Simulator(app) as sim:
        handle = await sim.start(app.handlers["refund"], "o-1")
        await handle.answer("approval", "granted")
        await sim.settle()
        (notice,) = sim.effects
        await sim.fail(notice, "unknown user", retryable=True)
        assert sim.effects[0].status == "FAILED"
        await sim.fail(notice, "unknown user")
        with pytest.raises(rs.RunFailed, match="EFFECT_DEAD_LETTERED"):
            await handle.result()


@virtual_time
async def test_signals_come_in() -> None:
    async with Simulator(build()) as sim:
        mail = rs.Email(sender="ann@example.org", subject="hello")
        handle = await sim.send(mail, source_id="m-1")
        assert await handle.result() == "hello"
        assert (await sim.send(mail, source_id="m-1")).id == handle.id


@virtual_time
async def test_waiting_for_what_never_comes_is_an_error() -> None:
    app = rs.App("desk")

    @app.on()
    async def wait(run: rs.Run, order: str) -> str:
        return str(await run.wait("godot"))

    async with Simulator(app) as sim:
        handle = await sim.start(wait, "o-1")
        with pytest.raises(Stuck, match="has not changed"):
            await handle.result()


@virtual_time
async def record(folder: Path) -> None:
    app = build()
    async with Simulator(app) as sim:
        answered = await sim.start(app.handlers["refund"], "o-1")
        await answered.answer("approval", "granted")
        await sim.start(app.handlers["refund"], "o-2")
        cancelled = await sim.start(app.handlers["slow"], "o-3")
        await cancelled.cancel()
        await sim.settle()
        sim.record(folder)


def test_histories_replay_on_the_same_code_and_carry_nothing_out(tmp_path: Path) -> None:
    record(tmp_path)
    calls.clear()
    assert assert_replays(build(version="2"), tmp_path) == 3
    assert calls == []


def crawler(*, step: int = 1, skips: int | None = None) -> rs.App:
    """Three generations; one of them may do something else than it did."""
    app = rs.App("crawler")

    @app.tool
    def read(page: int) -> int:
        return page

    @app.on()
    async def crawl(run: rs.Run, page: int) -> int:
        if page != skips:
            await run.call(read, page)
        if page < 3:
            await run.continue_as_new(page + step)
        return page

    return app


@virtual_time
async def record_generations(folder: Path) -> None:
    app = crawler()
    async with Simulator(app) as sim:
        handle = await sim.start(app.handlers["crawl"], 1)
        assert await handle.result() == 3
        sim.record(folder)


def test_every_generation_of_a_history_is_replayed(tmp_path: Path) -> None:
    """§ENG-39"""
    record_generations(tmp_path)
    assert assert_replays(crawler(), tmp_path) == 1
    with pytest.raises(HistoryDiffers) as raised:
        assert_replays(crawler(step=2), tmp_path)
    assert raised.value.expected == "the handler continued as new with 2"
    assert raised.value.actual == "the handler continued as new with 3"
    with pytest.raises(HistoryDiffers) as raised:
        assert_replays(crawler(skips=2), tmp_path)
    assert raised.value.expected == "step 'g2:read#1'"
    assert raised.value.actual == "the handler continued as new"


def test_a_new_step_in_an_old_history_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(HistoryDiffers) as raised:
        assert_replays(build(twist="step"), tmp_path)
    assert "notify_user#1" in raised.value.expected
    assert "take_long#1" in raised.value.actual


def test_another_result_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(HistoryDiffers) as raised:
        assert_replays(build(twist="result"), tmp_path)
    assert raised.value.expected == 'the handler returned "granted"'
    assert raised.value.actual == 'the handler returned "something else"'


def test_a_handler_that_is_gone_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(HistoryDiffers, match="none in app 'other'"):
        assert_replays(rs.App("other"), tmp_path)


def test_entities_are_really_changed(tmp_path: Path) -> None:
    """What lives in our own store needs nobody to deliver it; a crash changes nothing about that."""
    app = rs.App("desk")

    def update(change: dict[str, object]) -> rs.SorUpdate:
        return rs.SorUpdate(entity_type="CASE", entity_id="1", change=change, evidence_pack={"a": 1})

    @app.on()
    async def close(run: rs.Run, who: str) -> int:
        await run.compensate(update({"closed": None, "taken back": True}))
        done = await run.effect(update({"closed": who}), wait=True)
        await run.wait("seen", timeout=rs.days(30))
        return int(done["version"])

    @virtual_time
    async def story() -> None:
        async with Simulator(app) as sim:
            handle = await sim.start(close, "ann")
            assert [effect.status for effect in sim.effects] == ["COMPLETED"]
            await sim.crash()
            entity = await app.entity("CASE", "1")
            assert entity is not None
            assert (entity.version, entity.data, entity.run_id) == (1, {"closed": "ann"}, handle.id)
            sim.record(tmp_path)
            await handle.cancel("ENOUGH")
            await sim.settle()
            assert [version.data for version in await app.entity_history("CASE", "1")] == [
                {"closed": "ann"},
                {"taken back": True},
            ]

    story()
    assert_replays(app, tmp_path)


def test_an_executor_of_the_apps_own_comes_first() -> None:
    app = rs.App("desk")

    @app.executor(rs.SorUpdate)
    async def elsewhere(spec: rs.SorUpdate) -> None: ...

    @app.on()
    async def close(run: rs.Run, who: str) -> str:
        await run.effect(
            rs.SorUpdate(entity_type="CASE", entity_id=who, change={"a": 1}, evidence_pack={"a": 1}),
            wait=True,
        )
        return who

    @virtual_time
    async def story() -> None:
        async with Simulator(app) as sim:
            handle = await sim.start(close, "ann")
            (effect,) = sim.effects
            assert effect.status == "PENDING"
            await sim.deliver(effect)
            assert await handle.result() == "ann"
            assert await app.entity("CASE", "ann") is None

    story()
