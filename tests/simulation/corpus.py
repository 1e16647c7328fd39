"""The workflows that the simulation runs: between them they use every verb, in many mixtures.

`World` is the outside: it outlives workers, counts what was really done, and makes tools fail as planned.
What a handler computes from the order of events, the time, chance or ids goes into the arguments of a
step, so that a replay which sees anything else is caught by the digest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

import runstone as rs
from runstone.core.payloads import ErrorInfo


@dataclass
class World:
    """What is outside of the runs."""

    random: Random
    done: Counter[str] = field(default_factory=Counter)
    """How often each thing was begun."""
    requests: dict[str, list[str]] = field(default_factory=dict)
    """What came to the receiver under each key, whatever became of it."""
    applied: list[tuple[str, str]] = field(default_factory=list)
    """What the receiver did, each key once: key and text."""
    bad: float = 0.0
    """How many requests go wrong."""

    def begin(self, what: str) -> int:
        self.done[what] += 1
        return self.done[what]

    async def receive(self, key: str, text: str, *, once: bool) -> rs.Failed | None:
        """A receiver that applies by key. Its answer takes time: whoever asked may not live to hear it."""
        self.requests.setdefault(key, []).append(text)
        down = self.random.random() < self.bad
        does_it = not down or once or self.random.random() < 0.5
        if does_it and key not in {known for known, _ in self.applied}:
            self.applied.append((key, text))
        await asyncio.sleep(self.random.random() ** 4 * 8)
        if not down:
            return None
        error = ErrorInfo(category="EXTERNAL", code="DOWN", message="down", retryable=True)
        return rs.Failed(error, target_down=self.random.random() < 0.5)


class Post(rs.EffectSpec, frozen=True, kw_only=True):
    """Something that dispatchers take to the receiver."""

    EFFECT_TYPE: ClassVar[str] = "POST"
    RETRIES: ClassVar[rs.RetryPolicy | None] = rs.RetryPolicy(10_000, rs.seconds(0.2), rs.seconds(2))

    text: str


@dataclass(frozen=True)
class Scenario:
    """One workflow, what it is told, and what may come of it."""

    handler: str
    results: tuple[Any, ...]
    answers: Mapping[str, Any] = field(default_factory=dict)
    """What each wait is answered; a wait that is not in here is left to its deadline."""
    fails: bool = False
    """Whether it ends by an error, always."""
    effects_may_fail: bool = False
    signal: Callable[[str], rs.SignalSpec] | None = None


TASK = Scenario("ticked", ("ticked",))
"""What schedules start: nobody asks for it, and it ends as if somebody had."""

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("chain", ("a-b-c",)),
    Scenario("specialists", ("deep thought, quick guess",)),
    Scenario("decisions", ("odd", "even")),
    Scenario("asks", ("yes by ann",), {"question": {"by": "ann", "ok": True}}),
    Scenario("asks_in_time", ("answered: 7", "nobody"), {"urgent": 7}),
    Scenario("nobody_answers", ("nobody",)),
    Scenario("sleeps", ("rested",)),
    Scenario("gathers", ("0,1,2",)),
    Scenario("gathers_deeply", ("0.0 0.1|1.0 1.1",)),
    Scenario("races", ("hare",)),
    Scenario("races_a_wait", ("told: go", "slept"), {"go": "go"}),
    Scenario("retries", ("third time lucky",)),
    Scenario("retries_later", ("worked",)),
    Scenario("gives_up", ("gave up: ValueError after 1",)),
    Scenario("exhausts", ("exhausted: ConnectionError",)),
    Scenario("runs_out_of_time", ("too slow: STEP_TIMEOUT",)),
    Scenario("parks", ("repaired",)),
    Scenario("once_only", ("charged", "unknown: AT_MOST_ONCE")),
    Scenario("asks_for_effects", ("asked",)),
    Scenario("asks_for_keyed_effects", ("asked once",), effects_may_fail=True),
    Scenario("posts", ("posted",)),
    Scenario("posts_and_waits", ("delivered: first, delivered: second",)),
    Scenario("posts_once", ("posted once",)),
    Scenario("takes_back", (), fails=True),
    Scenario("schedules_tasks", ("scheduled: 1",)),
    Scenario("keeps_records", ("VERSION_CONFLICT",)),
    Scenario("takes_turns", ("turn taken",)),
    Scenario("shares_lanes", ("shared",)),
    Scenario("needs_approval", ("approved",)),
    Scenario("remembers", ("3 of 3",)),
    Scenario("sees_the_same", ("the same",)),
    Scenario("is_patched", ("old way", "new way")),
    Scenario("reads_mail", ("letter letter letter",), {"mail": "letter"}),
    Scenario("waits_everywhere", ("left right slept",), {"left": "left", "right": "right"}),
    Scenario("breaks", (), fails=True),
    Scenario("catches_a_branch", ("caught: RuntimeError, went on",)),
    Scenario("loops", ("66",)),
    Scenario("continues", ("generation 3: 6 letters",), {"letter": "letter"}),
    Scenario(
        "hears_a_hook",
        ("heard ping",),
        signal=lambda key: rs.Webhook(webhook_id=key, event_type="ping", payload={"key": key}),
    ),
)


def build(version: str, world: World) -> rs.App:
    """The app as one version of its code has it."""
    app = rs.App("corpus", version=version)

    @app.tool
    async def echo(value: Any) -> Any:
        return value

    @app.tool
    def echo_inline(value: str) -> str:
        return value

    @app.tool
    async def work(value: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return value

    @app.tool
    async def vary(value: str) -> str:
        """Takes its time: another one each time."""
        await asyncio.sleep(world.random.random())
        return value

    @app.specialist
    async def think(subject: str) -> str:
        await asyncio.sleep(0.7)
        return f"deep {subject}"

    @app.specialist
    def guess(subject: str) -> str:
        return f"quick {subject}"

    @app.tool(retry=rs.Retry(max_attempts=4, initial=rs.seconds(0.5), on=(ConnectionError,)))
    async def flaky(key: str) -> str:
        if world.begin(f"flaky {key}") < 3:
            raise ConnectionError("not yet")
        return "third time lucky"

    @app.tool(retry=rs.Retry(max_attempts=9))
    async def busy(key: str) -> str:
        if world.begin(f"busy {key}") < 3:
            raise rs.RetryableError("later", retry_after=rs.seconds(4))
        return "worked"

    @app.tool(retry=rs.Retry(max_attempts=5, never=(ValueError,)))
    async def wrong(key: str) -> str:
        world.begin(f"wrong {key}")
        raise ValueError("wrong")

    @app.tool(retry=rs.Retry(max_attempts=3, initial=rs.seconds(0.4)))
    async def hopeless(key: str) -> str:
        raise ConnectionError("nobody there")

    @app.tool(timeout=rs.seconds(0.5))
    async def slow() -> str:
        await asyncio.sleep(60)
        return "done at last"

    @app.tool(on_exhausted="park")
    async def broken(key: str) -> str:
        if world.begin(f"broken {key}") < 2:
            raise OSError("broken")
        return "repaired"

    @app.tool(at_most_once=True)
    async def charge(key: str) -> str:
        world.begin(f"charge {key}")
        await asyncio.sleep(0.4)
        return "charged"

    @app.on()
    async def chain(run: rs.Run, key: str) -> str:
        first = await run.call(echo, "a")
        second = await run.call(echo_inline, "b")
        third = await run.call(work, "c", 0.3)
        return f"{first}-{second}-{third}"

    @app.on()
    async def specialists(run: rs.Run, key: str) -> str:
        return f"{await run.call(think, 'thought')}, {await run.call(guess, 'guess')}"

    @app.on()
    async def decisions(run: rs.Run, key: str) -> str:
        odd = await run.decide("odd", world.begin(f"decided {key}") % 2 == 1)
        await run.call(echo, odd)
        return "odd" if odd else "even"

    @app.on()
    async def asks(run: rs.Run, key: str) -> str:
        await run.call(work, "prepare", 0.2)
        answer = await run.wait("question", dict[str, Any])
        await run.call(echo, answer)
        return f"{'yes' if answer['ok'] else 'no'} by {answer['by']}"

    @app.on()
    async def asks_in_time(run: rs.Run, key: str) -> str:
        try:
            answer = await run.wait("urgent", int, timeout=rs.seconds(5))
        except rs.WaitTimeout:
            await run.call(echo, "nobody")
            return "nobody"
        await run.call(echo, answer)
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
        await run.call(echo, run.now().isoformat())
        return "rested" if run.now() - before >= rs.seconds(4) else "too short"

    @app.on()
    async def gathers(run: rs.Run, key: str) -> str:
        order: list[int] = []

        async def branch(place: int) -> int:
            await run.call(vary, "x")
            order.append(place)
            await run.call(echo, list(order))
            return place

        found = await run.gather(branch(0), branch(1), branch(2))
        await run.call(echo, order)
        return ",".join(map(str, found))

    @app.on()
    async def gathers_deeply(run: rs.Run, key: str) -> str:
        order: list[str] = []

        async def leaf(place: str) -> str:
            await run.call(vary, place)
            order.append(place)
            return place

        async def branch(place: int) -> str:
            found = await run.gather(leaf(f"{place}.0"), leaf(f"{place}.1"))
            await run.call(echo, list(order))
            return " ".join(found)

        both = await run.gather(branch(0), branch(1))
        return "|".join(both)

    @app.on()
    async def races(run: rs.Run, key: str) -> str:
        async def racer(name: str, seconds: float) -> str:
            return await run.call(work.options(name=name), name, seconds)

        winner = await run.first(racer("hare", 0.1), racer("tortoise", 30.0))
        await run.call(echo, winner)
        return winner

    @app.on()
    async def races_a_wait(run: rs.Run, key: str) -> str:
        async def told() -> str:
            return f"told: {await run.wait('go', str)}"

        async def slept() -> str:
            await run.sleep(rs.seconds(6))
            return "slept"

        winner = await run.first(told(), slept())
        await run.call(echo, winner)
        return winner

    @app.on()
    async def continues(run: rs.Run, key: Any) -> str:
        """A value in the first generation, what was counted in the later ones."""
        count = key if isinstance(key, int) else 0
        run.set("generation", run.generation)
        await run.gather(run.call(echo, count), run.call(work, "page", 0.2))
        await run.sleep(rs.seconds(1))
        count += len((await run.wait("letter", str)).split())
        count += len(await run.decide("more", ["letter"]))
        if run.generation < 3:
            await run.continue_as_new(count)
        return f"generation {run.generation}: {count} letters"

    @app.on()
    async def retries(run: rs.Run, key: str) -> str:
        return await run.call(flaky, key)

    @app.on()
    async def retries_later(run: rs.Run, key: str) -> str:
        both = await run.gather(run.call(busy, key), run.call(work, "meanwhile", 0.2))
        return both[0]

    @app.on()
    async def gives_up(run: rs.Run, key: str) -> str:
        try:
            return await run.call(wrong, key)
        except rs.StepFailed as error:
            await run.call(echo, error.code)
            return f"gave up: {error.code} after 1"

    @app.on()
    async def exhausts(run: rs.Run, key: str) -> str:
        try:
            return await run.call(hopeless, key)
        except rs.StepFailed as error:
            await run.call(echo, error.code)
            return f"exhausted: {error.code}"

    @app.on()
    async def runs_out_of_time(run: rs.Run, key: str) -> str:
        try:
            return await run.call(slow)
        except rs.StepFailed as error:
            return f"too slow: {error.code}"

    @app.on()
    async def parks(run: rs.Run, key: str) -> str:
        await run.call(echo, "before")
        return await run.call(broken, key)

    @app.on()
    async def once_only(run: rs.Run, key: str) -> str:
        try:
            return await run.call(charge, key)
        except rs.StepFailed as error:
            await run.call(echo, error.code)
            return f"unknown: {error.code}"

    @app.on()
    async def asks_for_effects(run: rs.Run, key: str) -> str:
        await run.effect(rs.SendEmail(to=["a@example.org"], subject=key, body_html="…"))
        await run.call(work, "between", 0.2)
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
        await run.call(work, "between", 0.2)
        await run.gather(run.effect(Post(text=f"{key} 2")), run.effect(Post(text=f"{key} 3")))
        return "posted"

    @app.on()
    async def posts_and_waits(run: rs.Run, key: str) -> str:
        first = await run.effect(Post(text="first"), wait=True)
        second = await run.effect(Post(text="second"), wait=True)
        await run.call(echo, second)
        return f"{first}, {second}"

    @app.on()
    async def posts_once(run: rs.Run, key: str) -> str:
        for number in range(3):
            await run.effect(Post(text=f"once {key} {number}"), at_most_once=True)
            await run.call(work, "between", 0.1)
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
        await run.call(work, "tick", 0.2)
        return "ticked"

    @app.on(key=lambda key: "desk", concurrency=1)
    async def takes_turns(run: rs.Run, key: str) -> str:
        await run.call(work, "turn", 0.5)
        await run.sleep(rs.seconds(2))
        return "turn taken"

    @app.on(key=lambda key: "pool", concurrency=2)
    async def shares_lanes(run: rs.Run, key: str) -> str:
        await run.call(work, "share", 0.8)
        return "shared"

    @app.on()
    async def keeps_records(run: rs.Run, key: str) -> str:
        def record(entity_id: str, change: dict[str, Any], **more: Any) -> rs.SorUpdate:
            evidence = {"key": key}
            return rs.SorUpdate(
                entity_type="RECORD", entity_id=entity_id, change=change, evidence_pack=evidence, **more
            )

        await run.compensate(record("shared", {key: None}))
        first = await run.effect(record("shared", {key: {"seen": 1}}), wait=True)
        await run.call(echo, first)
        await run.effect(record("shared", {key: {"seen": 2}}), at_most_once=True)
        await run.effect(record(key, {"version": first["version"]}))
        try:
            await run.effect(record("shared", {"never": True}, expected_version=0), wait=True)
        except rs.EffectFailed as failed:
            return failed.code
        return "there was nothing"

    @app.on(approval=True)
    async def needs_approval(run: rs.Run, key: str) -> str:
        await run.call(echo, key)
        return "approved"

    @app.on()
    async def remembers(run: rs.Run, key: str) -> str:
        for number in (1, 2, 3):
            run.set("number", number)
            run.emit({"number": number})
            await run.call(work, "x", 0.1)
        await run.skip("postscript", "nothing to add")
        run.set("last", True)
        return f"{run.get('number', int)} of 3"

    @app.on()
    async def sees_the_same(run: rs.Run, key: str) -> str:
        async def look(place: int) -> None:
            for _ in range(2):
                seen = [run.now().isoformat(), run.random(), str(run.uuid())]
                await run.call(echo, seen)
                await run.call(vary, f"{place}")

        await run.gather(look(0), look(1))
        await run.call(echo, [run.now().isoformat(), run.random(), str(run.uuid())])
        return "the same"

    @app.on()
    async def is_patched(run: rs.Run, key: str) -> str:
        await run.call(work, "x", 0.5)
        if version != "1" and await run.patched("better"):
            await run.call(echo, "new")
            await run.sleep(rs.seconds(2))
            return "new way"
        await run.sleep(rs.seconds(2))
        return "old way"

    @app.on()
    async def reads_mail(run: rs.Run, key: str) -> str:
        letters = []
        for _ in range(3):
            letters.append(await run.wait("mail", str))
            await run.call(work, "read", 0.4)
        return " ".join(letters)

    @app.on()
    async def waits_everywhere(run: rs.Run, key: str) -> str:
        async def wait(name: str) -> str:
            answer = await run.wait(name, str)
            await run.call(echo, answer)
            return answer

        async def sleep() -> str:
            await run.sleep(rs.seconds(3))
            return "slept"

        return " ".join(await run.gather(wait("left"), wait("right"), sleep()))

    @app.on()
    async def breaks(run: rs.Run, key: str) -> str:
        await run.call(echo, "so far so good")
        raise LookupError("broken by design")

    @app.on()
    async def catches_a_branch(run: rs.Run, key: str) -> str:
        async def bad() -> str:
            await run.call(work, "x", 0.3)
            raise RuntimeError("this branch is rotten")

        async def good() -> str:
            await run.call(work.options(name="long"), "x", 20.0)
            return "never"

        try:
            await run.gather(bad(), good())
        except RuntimeError as error:
            went = await run.call(echo, "went on")
            return f"caught: {type(error).__name__}, {went}"
        return "nothing happened"

    @app.on()
    async def loops(run: rs.Run, key: str) -> str:
        total = 0
        for number in range(12):
            total += await run.call(echo, number)
        return str(total)

    @app.on(rs.Webhook)
    async def hears_a_hook(run: rs.Run, hook: rs.Webhook) -> str:
        await run.call(work, "listen", 0.2)
        return f"heard {hook.event_type}"

    return app
