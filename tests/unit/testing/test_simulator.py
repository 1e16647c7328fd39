"""The simulator, as a user meets it."""

import asyncio
import doctest
import gc
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
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


def test_nothing_of_a_dead_worker_ever_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    """Neither what it was about to do nor what it would have cleaned up, at the test's end or later."""
    app = rs.App("desk")
    done: list[str] = []

    @app.lifespan
    async def pool() -> AsyncIterator[None]:
        done.append("open")
        try:
            yield
        finally:
            done.append("close")

    @app.tool
    async def charge(order: str) -> str:
        try:
            asyncio.get_running_loop().call_later(8, done.append, "called back")
            await asyncio.sleep(10)
            done.append("charged")
        finally:
            done.append("unlocked")
        return order

    @app.on()
    async def pay(run: rs.Run, order: str) -> str:
        try:
            return await run.call(charge, order)
        finally:
            done.append("handled")

    kept: list[weakref.ref[Simulator]] = []

    @virtual_time
    async def story() -> None:
        async with Simulator(app) as sim:
            handle = await sim.start(pay, "o-1")
            await sim.advance(seconds=5)
            await sim.crash()
            await sim.advance(seconds=5)
            await asyncio.gather(sim.crash(), sim.crash(down=timedelta(minutes=1)))
            assert await handle.result() == "o-1"
        kept.append(weakref.ref(sim))

    story()
    gc.collect()
    assert done == ["open", "open", "open", "called back", "charged", "unlocked", "handled", "close"]
    assert caplog.records == []
    assert kept[0]() is None, "the dead hold what they need not"


def test_what_is_dead_does_not_run_when_the_interpreter_ends() -> None:
    program = """
import asyncio, sys, runstone as rs
from runstone.testing import Simulator, virtual_time

app = rs.App("desk")
down = False

@app.tool
async def charge() -> None:
    if down:
        return
    try:
        await asyncio.sleep(10)
    finally:
        sys.stdout.write("unlocked")

@app.on()
async def pay(run: rs.Run, order: str) -> None:
    await run.call(charge)

@virtual_time
async def story() -> None:
    global down
    async with Simulator(app) as sim:
        handle = await sim.start(pay, "o-1")
        down = True
        await sim.crash()
        await handle.result()

story()
sys.stdout.write("done")
"""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("done", "", 0)


@virtual_time
async def test_a_test_may_end_while_its_worker_is_down() -> None:
    app = build()
    async with Simulator(app) as sim:
        await sim.start(app.handlers["slow"], "o-1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await sim.crash()
    assert calls == ["long o-1"]
    async with Simulator(app) as sim:
        handle = await sim.start(app.handlers["slow"], "o-2")
        assert await handle.result() == "o-2"


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


def waiting() -> rs.App:
    app = rs.App("desk")
    notice = rs.NotifyUser(user_id="ann", message="hello")

    @app.tool
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.on()
    async def work(run: rs.Run, what: str) -> None:
        match what:
            case "answer":
                await run.wait("go")
            case "effect":
                await run.effect(notice, wait=True)
            case "both":
                await run.gather(run.wait("go"), run.effect(notice, wait=True))
            case "tool":
                await run.call(hang)
            case "sleep":
                await run.sleep(rs.days(3))
            case "delivery":
                await run.effect(notice)
            case "code":
                await asyncio.Event().wait()

    @app.on(approval=True)
    async def approved(run: rs.Run, what: str) -> None: ...

    @app.on(concurrency=1)
    async def alone(run: rs.Run, what: str) -> None:
        await run.wait("go")

    return app


@pytest.mark.parametrize(
    ("handler", "what", "said"),
    [
        ("work", "answer", "waits for an answer to 'go': handle.answer('go', …)"),
        ("work", "effect", "waits for NOTIFY_USER {effect}: sim.deliver or sim.fail it"),
        ("work", "both", "to 'go': handle.answer('go', …); it waits for NOTIFY_USER {effect}: sim.deliver"),
        ("work", "tool", "step 'hang#1' has not ended"),
        ("work", "delivery", "waits for NOTIFY_USER {effect}: sim.deliver or sim.fail it"),
        ("work", "code", "its handler waits for something that is no step"),
        ("work", "paused", "it is paused: handle.paused() says why"),
        ("approved", "approval", "waits for approval: handle.approve()"),
        ("alone", "lane", "waits for its turn in lane 'alone/alone'"),
    ],
)
@virtual_time
async def test_who_waits_in_vain_is_told_for_what(handler: str, what: str, said: str) -> None:
    app = waiting()
    async with Simulator(app) as sim:
        if what == "lane":
            await sim.start(app.handlers[handler], "first")
        handle = await sim.start(app.handlers[handler], "answer" if what == "paused" else what)
        if what == "paused":
            await handle.pause()
        with pytest.raises(Stuck, match="has not changed for 400 days") as raised:
            async for _ in handle.events(follow=True):
                pass
        assert said.format(effect="".join(effect.id for effect in sim.effects)) in str(raised.value)


@virtual_time
async def test_a_sleep_is_told_by_its_end() -> None:
    """Nobody waits for one in vain, unless the clock is set back."""
    app = waiting()
    async with Simulator(app, start=datetime(2030, 1, 1, tzinfo=UTC)) as sim:
        handle = await sim.start(app.handlers["work"], "sleep")
        waiter = asyncio.ensure_future(handle.result())
        await sim.settle()
        sim.clock.jump(timedelta(days=-4000))
        with pytest.raises(Stuck, match="it sleeps until 2030-01-04 00:00:00"):
            await waiter


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


def recorded(folder: Path, answer: str, *, handler: str = "refund") -> None:
    @virtual_time
    async def story() -> None:
        app = build()
        async with Simulator(app) as sim:
            handle = await sim.start(app.handlers[handler], "o-1")
            await handle.answer("approval", answer)
            assert await handle.result() is not None
            sim.record(folder)

    story()


def test_each_history_has_a_file_of_its_own_and_the_same_one_always_the_same(tmp_path: Path) -> None:
    """The first run of each test has the same ids: these tell no histories apart."""
    recorded(tmp_path, "granted")
    recorded(tmp_path, "refused")
    recorded(tmp_path, "granted", handler="slow")
    names = sorted(file.name for file in tmp_path.iterdir())
    assert [name.partition("-")[0] for name in names] == ["refund", "refund", "slow"]
    recorded(tmp_path, "granted")
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert assert_replays(build(), tmp_path) == 3


def test_a_file_that_holds_something_else_is_not_written_over(tmp_path: Path) -> None:
    recorded(tmp_path, "granted")
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"mine")
    with pytest.raises(rs.RunstoneError, match="holds another history"):
        recorded(tmp_path, "granted")
    assert file.read_bytes() == b"mine"


def test_any_name_of_a_handler_makes_a_name_of_a_file(tmp_path: Path) -> None:
    app = rs.App("desk")

    @app.on(name=f"refund: *\\new*\n{'é' * 300}")
    async def refund(run: rs.Run, order: str) -> str:
        return order

    @virtual_time
    async def story() -> None:
        async with Simulator(app) as sim:
            await (await sim.start(refund, "o-1")).result()
            sim.record(tmp_path / "golden")

    story()
    (file,) = (tmp_path / "golden").iterdir()
    assert file.name.startswith("refund_new_-")
    assert assert_replays(app, tmp_path / "golden") == 1


def test_replaying_no_histories_proves_nothing_and_fails(tmp_path: Path) -> None:
    @virtual_time
    async def nothing_happens() -> None:
        async with Simulator(build()) as sim:
            sim.record(tmp_path / "empty")

    nothing_happens()
    with pytest.raises(
        rs.RunstoneError, match=r"no histories of runs in .*empty: record some with sim\.record"
    ):
        assert_replays(build(), tmp_path / "empty")
    with pytest.raises(rs.RunstoneError, match=r"There is no .*missing: record histories there with"):
        assert_replays(build(), tmp_path / "missing")


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
