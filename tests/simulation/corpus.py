"""The workflows that the simulation runs: between them they use every verb, in many mixtures.

What a handler computes from the order of events, the time, chance or ids goes into the arguments of a
step, so that a replay which sees anything else is caught by the digest.
"""

from __future__ import annotations

from typing import Any

import runstone as rs
from tests.simulation.tools import Tools
from tests.simulation.world import Post, World


def build(version: str, world: World) -> rs.App:
    """The app as one version of its code has it."""
    app = rs.App("corpus", version=version)
    tools = Tools(app, world)
    add_steps(app, tools, world, version)
    add_branches(app, tools)
    add_failures(app, tools)
    add_effects(app, tools, world)
    add_turns(app, tools)
    return app


def add_steps(app: rs.App, tools: Tools, world: World, version: str) -> None:
    """Steps one after the other, waits, and what a handler may see."""

    @app.on()
    async def chain(run: rs.Run, key: str) -> str:
        first = await run.call(tools.echo, "a")
        second = await run.call(tools.echo_inline, "b")
        third = await run.call(tools.work, "c", 0.3)
        return f"{first}-{second}-{third}"

    @app.on()
    async def specialists(run: rs.Run, key: str) -> str:
        return f"{await run.call(tools.think, 'thought')}, {await run.call(tools.guess, 'guess')}"

    @app.on()
    async def decisions(run: rs.Run, key: str) -> str:
        odd = await run.decide("odd", world.begin(f"decided {key}") % 2 == 1)
        await run.call(tools.echo, odd)
        return "odd" if odd else "even"

    @app.on()
    async def asks(run: rs.Run, key: str) -> str:
        await run.call(tools.work, "prepare", 0.2)
        answer = await run.wait("question", dict[str, Any])
        await run.call(tools.echo, answer)
        return f"{'yes' if answer['ok'] else 'no'} by {answer['by']}"

    @app.on()
    async def asks_in_time(run: rs.Run, key: str) -> str:
        try:
            answer = await run.wait("urgent", int, timeout=rs.seconds(5))
        except rs.WaitTimeout:
            await run.call(tools.echo, "nobody")
            return "nobody"
        await run.call(tools.echo, answer)
        return f"answered: {answer}"

    @app.on()
    async def nobody_answers(run: rs.Run, key: str) -> str:
        try:
            return str(await run.wait("never", timeout=rs.seconds(3)))
        except rs.WaitTimeout:
            return "nobody"

    @app.on()
    async def sleeps(run: rs.Run, key: str) -> str:
        before = run.now()
        await run.sleep(rs.seconds(4))
        await run.sleep(rs.seconds(0.3))
        await run.call(tools.echo, run.now().isoformat())
        return "rested" if run.now() - before >= rs.seconds(4) else "too short"

    @app.on()
    async def remembers(run: rs.Run, key: str) -> str:
        for number in (1, 2, 3):
            run.set("number", number)
            run.emit({"number": number})
            await run.call(tools.work, "x", 0.1)
        await run.skip("postscript", "nothing to add")
        run.set("last", True)
        return f"{run.get('number', int)} of 3"

    @app.on()
    async def sees_the_same(run: rs.Run, key: str) -> str:
        async def look(place: int) -> None:
            for _ in range(2):
                seen = [run.now().isoformat(), run.random(), str(run.uuid())]
                await run.call(tools.echo, seen)
                await run.call(tools.vary, f"{place}")

        await run.gather(look(0), look(1))
        await run.call(tools.echo, [run.now().isoformat(), run.random(), str(run.uuid())])
        return "the same"

    @app.on()
    async def is_patched(run: rs.Run, key: str) -> str:
        await run.call(tools.work, "x", 0.5)
        if version != "1" and await run.patched("better"):
            await run.call(tools.echo, "new")
            await run.sleep(rs.seconds(2))
            return "new way"
        await run.sleep(rs.seconds(2))
        return "old way"

    @app.on()
    async def reads_mail(run: rs.Run, key: str) -> str:
        letters = []
        for _ in range(3):
            letters.append(await run.wait("mail", str))
            await run.call(tools.work, "read", 0.4)
        return " ".join(letters)

    @app.on()
    async def loops(run: rs.Run, key: str) -> str:
        total = 0
        for number in range(12):
            total += await run.call(tools.echo, number)
        return str(total)

    @app.on()
    async def continues(run: rs.Run, key: Any) -> str:
        """A value in the first generation, what was counted in the later ones."""
        count = key if isinstance(key, int) else 0
        run.set("generation", run.generation)
        await run.gather(run.call(tools.echo, count), run.call(tools.work, "page", 0.2))
        await run.sleep(rs.seconds(1))
        count += len((await run.wait("letter", str)).split())
        count += len(await run.decide("more", ["letter"]))
        if run.generation < 3:
            await run.continue_as_new(count)
        return f"generation {run.generation}: {count} letters"

    @app.on(rs.Webhook)
    async def hears_a_hook(run: rs.Run, hook: rs.Webhook) -> str:
        await run.call(tools.work, "listen", 0.2)
        return f"heard {hook.event_type}"


def add_branches(app: rs.App, tools: Tools) -> None:
    """Several things at once."""

    @app.on()
    async def gathers(run: rs.Run, key: str) -> str:
        order: list[int] = []

        async def branch(place: int) -> int:
            await run.call(tools.vary, "x")
            order.append(place)
            await run.call(tools.echo, list(order))
            return place

        found = await run.gather(branch(0), branch(1), branch(2))
        await run.call(tools.echo, order)
        return ",".join(map(str, found))

    @app.on()
    async def gathers_deeply(run: rs.Run, key: str) -> str:
        order: list[str] = []

        async def leaf(place: str) -> str:
            await run.call(tools.vary, place)
            order.append(place)
            return place

        async def branch(place: int) -> str:
            found = await run.gather(leaf(f"{place}.0"), leaf(f"{place}.1"))
            await run.call(tools.echo, list(order))
            return " ".join(found)

        both = await run.gather(branch(0), branch(1))
        return "|".join(both)

    @app.on()
    async def races(run: rs.Run, key: str) -> str:
        async def racer(name: str, seconds: float) -> str:
            return await run.call(tools.work.options(name=name), name, seconds)

        winner = await run.first(racer("hare", 0.1), racer("tortoise", 30.0))
        await run.call(tools.echo, winner)
        return winner

    @app.on()
    async def races_a_wait(run: rs.Run, key: str) -> str:
        async def told() -> str:
            return f"told: {await run.wait('go', str)}"

        async def slept() -> str:
            await run.sleep(rs.seconds(6))
            return "slept"

        winner = await run.first(told(), slept())
        await run.call(tools.echo, winner)
        return winner

    @app.on()
    async def waits_everywhere(run: rs.Run, key: str) -> str:
        async def wait(name: str) -> str:
            answer = await run.wait(name, str)
            await run.call(tools.echo, answer)
            return answer

        async def sleep() -> str:
            await run.sleep(rs.seconds(3))
            return "slept"

        return " ".join(await run.gather(wait("left"), wait("right"), sleep()))

    @app.on()
    async def catches_a_branch(run: rs.Run, key: str) -> str:
        async def bad() -> str:
            await run.call(tools.work, "x", 0.3)
            raise RuntimeError("this branch is rotten")

        async def good() -> str:
            await run.call(tools.work.options(name="long"), "x", 20.0)
            return "never"

        try:
            await run.gather(bad(), good())
        except RuntimeError as error:
            went = await run.call(tools.echo, "went on")
            return f"caught: {type(error).__name__}, {went}"
        return "nothing happened"


def add_failures(app: rs.App, tools: Tools) -> None:
    """Steps that fail, and what handlers make of it."""

    @app.on()
    async def retries(run: rs.Run, key: str) -> str:
        return await run.call(tools.flaky, key)

    @app.on()
    async def retries_later(run: rs.Run, key: str) -> str:
        both = await run.gather(run.call(tools.busy, key), run.call(tools.work, "meanwhile", 0.2))
        return both[0]

    @app.on()
    async def gives_up(run: rs.Run, key: str) -> str:
        try:
            return await run.call(tools.wrong, key)
        except rs.StepFailed as error:
            await run.call(tools.echo, error.code)
            return f"gave up: {error.code} after 1"

    @app.on()
    async def exhausts(run: rs.Run, key: str) -> str:
        try:
            return await run.call(tools.hopeless, key)
        except rs.StepFailed as error:
            await run.call(tools.echo, error.code)
            return f"exhausted: {error.code}"

    @app.on()
    async def runs_out_of_time(run: rs.Run, key: str) -> str:
        try:
            return await run.call(tools.slow)
        except rs.StepFailed as error:
            return f"too slow: {error.code}"

    @app.on()
    async def parks(run: rs.Run, key: str) -> str:
        await run.call(tools.echo, "before")
        return await run.call(tools.broken, key)

    @app.on()
    async def once_only(run: rs.Run, key: str) -> str:
        try:
            return await run.call(tools.charge, key)
        except rs.StepFailed as error:
            await run.call(tools.echo, error.code)
            return f"unknown: {error.code}"

    @app.on()
    async def breaks(run: rs.Run, key: str) -> str:
        await run.call(tools.echo, "so far so good")
        raise LookupError("broken by design")


def add_effects(app: rs.App, tools: Tools, world: World) -> None:
    """What is asked for outside, and in our own store."""

    @app.on()
    async def asks_for_effects(run: rs.Run, key: str) -> str:
        await run.effect(rs.SendEmail(to=["a@example.org"], subject=key, body_html="…"))
        await run.call(tools.work, "between", 0.2)
        await run.effect(rs.NotifyUser(user_id="ann", message=key))
        return "asked"

    @app.on()
    async def asks_for_keyed_effects(run: rs.Run, key: str) -> str:
        await run.effect(
            rs.ApiCall(method="POST", url="https://example.org"),
            key=f"pay {key}",
            critical=False,
            at_most_once=True,
        )
        return "asked once"

    @app.executor(Post, timeout=rs.seconds(20))
    class Poster:
        async def execute(self, call: rs.EffectCall) -> Any:
            assert isinstance(call.spec, Post)
            once = call.spec.text.startswith("once ")
            return await world.receive(call.key, call.spec.text, once=once) or f"delivered: {call.spec.text}"

        def target(self, spec: rs.EffectSpec) -> str:
            return "receiver"

    @app.on()
    async def posts(run: rs.Run, key: str) -> str:
        await run.effect(Post(text=f"{key} 1"))
        await run.call(tools.work, "between", 0.2)
        await run.gather(run.effect(Post(text=f"{key} 2")), run.effect(Post(text=f"{key} 3")))
        return "posted"

    @app.on()
    async def posts_and_waits(run: rs.Run, key: str) -> str:
        first = await run.effect(Post(text="first"), wait=True)
        second = await run.effect(Post(text="second"), wait=True)
        await run.call(tools.echo, second)
        return f"{first}, {second}"

    @app.on()
    async def posts_once(run: rs.Run, key: str) -> str:
        for number in range(3):
            await run.effect(Post(text=f"once {key} {number}"), at_most_once=True)
            await run.call(tools.work, "between", 0.1)
        return "posted once"

    @app.on()
    async def takes_back(run: rs.Run, key: str) -> str:
        for thing in ("flight", "hotel", "car"):
            await run.effect(Post(text=f"{key} book {thing}"), wait=True)
            await run.compensate(Post(text=f"{key} cancel {thing}"))
        raise LookupError("no insurance")

    @app.on()
    async def schedules_tasks(run: rs.Run, key: str) -> str:
        """Once, at once; once, later; and again and again until somebody has had enough."""
        now = run.now()
        await run.effect(rs.ScheduleTask(task="ticked", run_at=now, arguments={"key": key}))
        later = rs.ScheduleTask(task="ticked", run_at=now + rs.seconds(4), name=f"{key} later")
        done = await run.effect(later, wait=True)
        await run.effect(rs.ScheduleTask(task="ticked", cron="*/10 * * * * *", name=f"{key} ticks"))
        return f"scheduled: {done['version']}"

    @app.on()
    async def ticked(run: rs.Run, given: dict[str, str] | None) -> str:
        await run.call(tools.work, "tick", 0.2)
        return "ticked"

    @app.on()
    async def keeps_records(run: rs.Run, key: str) -> str:
        def record(entity_id: str, change: dict[str, Any], **more: Any) -> rs.SorUpdate:
            evidence = {"key": key}
            return rs.SorUpdate(
                entity_type="RECORD", entity_id=entity_id, change=change, evidence_pack=evidence, **more
            )

        await run.compensate(record("shared", {key: None}))
        first = await run.effect(record("shared", {key: {"seen": 1}}), wait=True)
        await run.call(tools.echo, first)
        await run.effect(record("shared", {key: {"seen": 2}}), at_most_once=True)
        await run.effect(record(key, {"version": first["version"]}))
        try:
            await run.effect(record("shared", {"never": True}, expected_version=0), wait=True)
        except rs.EffectFailed as failed:
            return failed.code
        return "there was nothing"


def add_turns(app: rs.App, tools: Tools) -> None:
    """Runs that wait for each other, or for a person."""

    @app.on(key=lambda key: "desk", concurrency=1)
    async def takes_turns(run: rs.Run, key: str) -> str:
        await run.call(tools.work, "turn", 0.5)
        await run.sleep(rs.seconds(2))
        return "turn taken"

    @app.on(key=lambda key: "pool", concurrency=2)
    async def shares_lanes(run: rs.Run, key: str) -> str:
        await run.call(tools.work, "share", 0.8)
        return "shared"

    @app.on(approval=True)
    async def needs_approval(run: rs.Run, key: str) -> str:
        await run.call(tools.echo, key)
        return "approved"
