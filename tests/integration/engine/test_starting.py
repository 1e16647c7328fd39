"""Ways in: starts by key, signals by kind and channel, and what is refused when an app is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from runstone.errors import NotFound, RegistrationError
from tests.integration.engine.lab import FAST, suspended, within


async def test_the_same_key_with_the_same_value_is_the_same_run(path: str) -> None:
    app = rs.App("desk")
    calls: list[str] = []

    @app.on()
    async def handle(run: rs.Run, text: str) -> str:
        calls.append(text)
        return text.upper()

    async with app.running(path):
        first = await app.start(handle, "a", key="order-42")
        assert await within(first.result()) == "A"
        again = await app.start(handle, "a", key="order-42")
        assert again.id == first.id
        assert await within(again.result()) == "A"
        other = await app.start(handle, "a")
        assert await within(other.result()) == "A"
        found = await app.runtime.store.find_run(DEFAULT_TENANT, "order-42")
        assert found is not None
        assert found.id == first.id
    assert len(calls) == 2


async def test_a_handler_starts_others_by_key_or_from_a_tool_and_replay_starts_none(path: str) -> None:
    app = rs.App("desk")
    ran: list[str] = []

    @app.on()
    async def child(run: rs.Run, name: str) -> str:
        ran.append(name)
        return name

    @app.on(rs.ChatMessage)
    async def chat(run: rs.Run, message: rs.ChatMessage) -> str:
        ran.append(message.text)
        return message.text

    @app.tool
    async def start_one() -> str:
        return (await app.start(child, "by a tool")).id

    @app.on()
    async def parent(run: rs.Run) -> list[str]:
        by_key = await app.start(child, "by key", key=f"{run.id}/child")
        sent = await app.send(
            rs.ChatMessage(channel_id="c", user_id="u", text="sent"), channel="x", source_id=run.id
        )
        by_tool = await run.call(start_one)
        with pytest.raises(rs.UseRunCall):
            await app.start(child, "by nobody")
        await run.wait("go")
        return [by_key.id, sent.id, by_tool]

    async with app.running(path, poll=FAST):
        handle = await app.start(parent)
        await suspended(app, handle)
        await handle.answer("go")
        children = await within(handle.result())
        assert len(set(children)) == 3
        for run_id in children:
            await within(app.handle(child, run_id).result())
    assert sorted(ran) == ["by a tool", "by key", "sent"]


async def test_the_same_key_with_another_value_is_a_conflict_on_record(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, text: str) -> str:
        return text

    async with app.running(path):
        first = await app.start(handle, "a", key="k")
        assert await within(first.result()) == "a"
        with pytest.raises(rs.SignalConflict) as conflict:
            await app.start(handle, "b", key="k")
        told = f"Key 'k' belongs to run {first.id} of 'handle', started with another value"
        assert str(conflict.value) == told
        signal_id = (await first.status()).signal_id
        events = await app.runtime.store.fetch(DEFAULT_TENANT, signal_id)
        assert [event.event_type for event in events].count("SIGNAL_CONFLICT") == 1


async def test_a_key_belongs_to_the_handler_that_had_it_first(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def one(run: rs.Run, text: str) -> str:
        return text

    @app.on()
    async def two(run: rs.Run, text: str) -> str:
        return text

    async with app.running(path):
        first = await app.start(one, "a", key="k")
        with pytest.raises(rs.SignalConflict) as conflict:
            await app.start(two, "a", key="k")
        assert str(conflict.value) == f"Key 'k' belongs to run {first.id} of 'one', not of 'two'"
        assert await within(first.result()) == "a"


async def test_many_starts_of_one_key_at_once_make_one_run(path: str) -> None:
    app = rs.App("desk")
    calls: list[int] = []

    @app.on()
    async def handle(run: rs.Run) -> int:
        calls.append(1)
        return len(calls)

    async with app.running(path):
        handles = await asyncio.gather(*(app.start(handle, key="k") for _ in range(20)))
        assert len({found.id for found in handles}) == 1
        assert await within(handles[7].result()) == 1
    assert calls == [1]


async def test_signals_go_to_the_handler_of_their_kind_and_channel(path: str) -> None:
    app = rs.App("desk")

    @app.on(rs.ChatMessage)
    async def any_chat(run: rs.Run, message: rs.ChatMessage) -> str:
        return f"any: {message.text}"

    @app.on(rs.ChatMessage, channel="sales")
    async def sales(run: rs.Run, message: rs.ChatMessage) -> str:
        return f"sales: {message.text}"

    @app.on(rs.Email)
    async def mail(run: rs.Run, email: rs.Email) -> str:
        return f"mail from {email.sender}"

    async with app.running(path):
        message = rs.ChatMessage(channel_id="c", user_id="u", text="hi")
        first = await app.send(message, channel="support", source_id="1")
        second = await app.send(message, channel="sales", source_id="1")
        third = await app.send(rs.Email(sender="a@example.org"), channel="inbox", source_id="1")
        again = await app.send(message, channel="sales", source_id="1")
        assert await within(first.result()) == "any: hi"
        assert await within(second.result()) == "sales: hi"
        assert await within(third.result()) == "mail from a@example.org"
        assert again.id == second.id
        with pytest.raises(rs.SignalConflict, match="sales 1 came before with other content"):
            await app.send(
                rs.ChatMessage(channel_id="c", user_id="u", text="bye"), channel="sales", source_id="1"
            )
        with pytest.raises(rs.RunstoneError, match="No handler of 'desk' is on Webhook"):
            await app.send(rs.Webhook(webhook_id="w", event_type="e", payload={}), channel="x", source_id="1")
        for ours in ("app.start", "app.schedule"):
            with pytest.raises(rs.RunstoneError, match=f"{ours}' is a channel of our own"):
                await app.send(message, channel=ours, source_id="1")
        assert (await first.status()).run_type == "SIGNAL_PROCESSING"
        signal = await app.runtime.store.find_signal(DEFAULT_TENANT, "inbox", "1")
        assert signal is not None
        assert (signal.signal_type, signal.ingested_by) == ("EMAIL", "desk")


async def test_tenants_do_not_see_each_other(path: str) -> None:
    app = rs.App("desk")
    other_tenant = "018e0000-0000-7000-8000-000000000001"

    @app.on()
    async def handle(run: rs.Run, text: str) -> str:
        return f"{text} of {run.tenant_id}"

    async with app.running(path):
        mine = await app.start(handle, "a", key="k")
        theirs = await app.start(handle, "b", key="k", tenant_id=other_tenant)
        assert await within(theirs.result()) == f"b of {other_tenant}"
        assert await within(mine.result()) == f"a of {DEFAULT_TENANT}"
        with pytest.raises(NotFound):
            await app.handle(handle, theirs.id).status()
        with pytest.raises(NotFound):
            await app.handle(handle, theirs.id).cancel()


async def test_a_handle_can_be_had_again(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        return "done"

    async with app.running(path):
        run_id = (await app.start(handle)).id
        assert await within(app.handle(handle, run_id).result()) == "done"


async def test_an_app_that_is_not_running_says_so() -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> None: ...

    with pytest.raises(rs.RunstoneError, match="'desk' is not running"):
        await app.start(handle)


async def test_an_app_runs_once_at_a_time(path: str) -> None:
    app = rs.App("desk")
    async with app.running(path):
        with pytest.raises(rs.RunstoneError, match="running already"):
            async with app.running(path):
                pass
    async with app.running(path):
        pass


async def test_lifespans_open_before_any_run_and_close_after_all(path: str) -> None:
    app = rs.App("desk")
    notes: list[str] = []

    @app.lifespan
    async def first() -> AsyncIterator[None]:
        notes.append("first opens")
        yield
        notes.append("first closes")

    @app.lifespan
    async def second() -> AsyncIterator[None]:
        notes.append("second opens")
        yield
        notes.append("second closes")

    @app.on()
    async def handle(run: rs.Run) -> None:
        notes.append("runs")

    async with app.running(path):
        await within((await app.start(handle)).result())
    assert notes == ["first opens", "second opens", "runs", "second closes", "first closes"]


def test_two_handlers_for_one_signal_are_refused() -> None:
    app = rs.App("desk")

    @app.on(rs.Email)
    async def one(run: rs.Run, email: rs.Email) -> None: ...

    @app.on(rs.Email, channel="vip")
    async def vip(run: rs.Run, email: rs.Email) -> None: ...

    with pytest.raises(RegistrationError, match="'two' and 'one' both want Email of channel any"):

        @app.on(rs.Email)
        async def two(run: rs.Run, email: rs.Email) -> None: ...

    with pytest.raises(RegistrationError, match="'vip' is registered twice"):

        @app.on(rs.Webhook, name="vip")
        async def other(run: rs.Run, webhook: rs.Webhook) -> None: ...


def test_functions_that_cannot_work_are_refused_where_they_are_written() -> None:
    app = rs.App("desk")

    @app.tool
    async def known() -> None: ...

    with pytest.raises(RegistrationError, match="'known' is registered twice"):
        app.tool(name="known")(lambda: None)
    with pytest.raises(RegistrationError, match="cannot be a name"):

        @app.tool(name="a/b")
        async def slashed() -> None: ...

    with pytest.raises(RegistrationError, match="`async def`"):

        @app.on()  # type: ignore[arg-type]
        def plain(run: rs.Run) -> None: ...

    with pytest.raises(RegistrationError, match="at most one value"):

        @app.on()  # type: ignore[arg-type]
        async def greedy(run: rs.Run, one: int, two: int) -> None: ...

    with pytest.raises(RegistrationError, match="by their names"):

        @app.tool
        async def starred(*numbers: int) -> None: ...

    with pytest.raises(RegistrationError, match="cannot be read back"):

        @app.tool
        async def unreadable(given: type[Any] | complex) -> None: ...


@pytest.mark.parametrize("tenant_id", ["acme", "", DEFAULT_TENANT.replace("-", ""), f"{DEFAULT_TENANT}\n", 7])
async def test_a_tenant_is_a_uuid(path: str, tenant_id: Any) -> None:
    """§TEN-26: not every store would refuse it, and then nobody could name it any more."""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, text: str) -> str:
        return text

    @app.on(rs.Email)
    async def answer(run: rs.Run, mail: rs.Email) -> None: ...

    mail = rs.Email(sender="ada@example.org")
    async with app.running(path, worker=False):
        with pytest.raises(RegistrationError, match="a tenant's id is a UUID"):
            await app.start(handle, "a", tenant_id=tenant_id)
        with pytest.raises(RegistrationError, match="a tenant's id is a UUID"):
            await app.send(mail, channel="c", source_id="1", tenant_id=tenant_id)
        with pytest.raises(RegistrationError, match="a tenant's id is a UUID"):
            await app.find(handle, "a", tenant_id=tenant_id)
        with pytest.raises(RegistrationError, match="a tenant's id is a UUID"):
            app.handle(handle, DEFAULT_TENANT, tenant_id=tenant_id)
        with pytest.raises(RegistrationError, match="a tenant's id is a UUID"):
            await app.entity("CASE", "1", tenant_id=tenant_id)
        with pytest.raises(RegistrationError, match="a tenant's id is a UUID"):
            await app.entity_history("CASE", "1", tenant_id=tenant_id)
        with pytest.raises(RegistrationError, match="a tenant's id is a UUID"):
            await app.find_schedule("nightly", tenant_id=tenant_id)
        with pytest.raises(RegistrationError, match="a tenant's id is a UUID"):
            await app.cancel_schedule("nightly", tenant_id=tenant_id)
        assert await app.runtime.store.count_events() == 0


async def test_a_tenant_is_the_same_however_its_id_is_written(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, text: str) -> str:
        return text

    tenant_id = "0190d3f6-1f00-7000-8000-00000000ac3e"
    async with app.running(path, worker=False):
        run = await app.start(handle, "a", key="k", tenant_id=tenant_id.upper())
        found = await app.find(handle, "k", tenant_id=tenant_id)
        assert found is not None
        assert found.id == run.id
