"""`App`: what a user registers, starts and runs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar, overload

from runstone.core.commands import CreateRun
from runstone.core.commit import Context
from runstone.core.effect_specs import EffectSpec, ScheduleTask
from runstone.core.ids import DEFAULT_TENANT, is_id
from runstone.core.payloads import StepType
from runstone.core.schedule import CHANNEL as SCHEDULE_CHANNEL
from runstone.engine.context import Run
from runstone.engine.current import in_handler
from runstone.engine.functions import (
    START_CHANNEL,
    A,
    Callee,
    CallOptions,
    Handler,
    OnExhausted,
    P,
    R,
    check_given,
)
from runstone.engine.policy import ONCE, Retry
from runstone.engine.values import write
from runstone.engine.worker import Worker
from runstone.errors import RegistrationError, RunstoneError, SignalConflict, UseRunCall
from runstone.handle import Handle
from runstone.ingest.gateway import Accepted, Incoming
from runstone.ingest.schedules import Schedule, cancel_schedule, read_schedule
from runstone.ingest.signals import ApiRequest, SignalSpec
from runstone.outbox.entities import Entity, read_entity, read_history
from runstone.outbox.services import TIMEOUT, Service, as_executor, checked_spec
from runstone.ports.store import Store
from runstone.runtime import Runtime, effect_options, open_store, write_options

S = TypeVar("S", bound=SignalSpec)
X = TypeVar("X")
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]

_TOOL_OPTIONS: Final = frozenset({"name", *CallOptions.__struct_fields__})
_SPECIALIST_OPTIONS: Final = _TOOL_OPTIONS - {"cache_ttl"}
_HANDLER_OPTIONS: Final = frozenset({"channel", "name", "key", "concurrency", "approval"})
_MAX_KEY: Final = 255
"""A key is the signal's id where it comes from."""


class _Decorator(Protocol):
    """What `@app.tool(…)` and `@app.specialist(…)` give: it keeps the function's own signature."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Callee[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callee[P, R]: ...


class _HandlerDecorator(Protocol):
    """What `@app.on()` gives: a handler takes its run and a value, or its run alone."""

    @overload
    def __call__(self, function: Callable[[Run], Awaitable[R]], /) -> Handler[None, R]: ...
    @overload
    def __call__(self, function: Callable[[Run, A], Awaitable[R]], /) -> Handler[A, R]: ...


class App:
    """A set of durable functions under one name and version.

    The version goes into every run: a worker executes runs of versions up to its own.
    """

    def __init__(self, name: str, *, version: str = "") -> None:
        self.name = name
        self.version = _checked_version(version)
        self.handlers: dict[str, Handler[Any, Any]] = {}
        self._callees: dict[str, Callee[Any, Any]] = {}
        self._services: dict[str, Service] = {}
        self._lifespans: list[Lifespan] = []
        self._runtime: Runtime | None = None

    # Registering

    @overload
    def tool(self, function: Callable[P, Awaitable[R]], /) -> Callee[P, R]: ...
    @overload
    def tool(self, function: Callable[P, R], /) -> Callee[P, R]: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        retry: Retry = ONCE,
        timeout: timedelta | None = None,
        at_most_once: bool = False,
        on_exhausted: OnExhausted = "fail",
        cache_ttl: timedelta | None = None,
    ) -> _Decorator: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Registers a tool: something a handler calls to look a thing up or work it out.

        `retry` says how often a call is tried, `timeout` how long one attempt may take. After a crash it is
        carried out again, unless it is `at_most_once`. `on_exhausted="park"` pauses the run before its
        handler sees the failure. For `cache_ttl` a result answers further calls with the same arguments, in
        this process.
        """
        return self._register("TOOL_SEQUENCE", function, options)

    @overload
    def specialist(self, function: Callable[P, Awaitable[R]], /) -> Callee[P, R]: ...
    @overload
    def specialist(self, function: Callable[P, R], /) -> Callee[P, R]: ...
    @overload
    def specialist(
        self,
        /,
        *,
        name: str | None = None,
        retry: Retry = ONCE,
        timeout: timedelta | None = None,
        at_most_once: bool = False,
        on_exhausted: OnExhausted = "fail",
    ) -> _Decorator: ...
    def specialist(self, function: Any = None, /, **options: Any) -> Any:
        """Registers a specialist: a model or an expert that reasons about its input.

        Its options are those of a tool, but for `cache_ttl`.
        """
        return self._register("SPECIALIST_CALL", function, options)

    def _register(self, step_type: StepType, function: Any, options: dict[str, Any]) -> Any:
        if step_type == "TOOL_SEQUENCE":
            check_given("@app.tool", options, _TOOL_OPTIONS)
        else:
            check_given("@app.specialist", options, _SPECIALIST_OPTIONS)
        name = options.pop("name", None)

        def register(function: Any) -> Callee[Any, Any]:
            callee: Callee[Any, Any] = Callee(
                function, step_type, name or function.__name__, CallOptions(**options)
            )
            if callee.name in self._callees:
                raise RegistrationError(f"{callee.name!r} is registered twice")
            self._callees[callee.name] = callee
            return callee

        return register if function is None else register(function)

    @overload
    def on(
        self,
        signal: type[S],
        *,
        channel: str | None = None,
        name: str | None = None,
        key: Callable[[S], str] | None = None,
        concurrency: int | None = None,
        approval: bool = False,
    ) -> Callable[[Callable[[Run, S], Awaitable[R]]], Handler[S, R]]: ...
    @overload
    def on(
        self,
        signal: None = None,
        *,
        name: str | None = None,
        key: Callable[[Any], str] | None = None,
        concurrency: int | None = None,
        approval: bool = False,
    ) -> _HandlerDecorator: ...
    def on(
        self, signal: Any = None, *, channel: str | None = None, name: str | None = None, **more: Any
    ) -> Any:
        """Registers a handler for a kind of signal, or for `app.start` alone.

        `channel` narrows it to signals that come in by that channel. `concurrency` is how many runs of it may
        be under way, in all processes together; with `key`, a function of the input, how many with the same
        key. With `approval` a run starts when somebody approves it. `name` is what the log knows it by.
        """

        check_given("@app.on", more, _HANDLER_OPTIONS)
        if signal is not None and not (isinstance(signal, type) and issubclass(signal, SignalSpec)):
            raise RegistrationError(
                f"app.on({signal!r}): that is no kind of signal, such as rs.Email; for none write `@app.on()`"
            )

        def register(function: Callable[..., Awaitable[Any]]) -> Handler[Any, Any]:
            handler: Handler[Any, Any] = Handler(
                function, name or function.__name__, signal=signal, channel=channel, **more
            )
            self._check_free(handler)
            self.handlers[handler.name] = handler
            return handler

        return register

    def _check_free(self, handler: Handler[Any, Any]) -> None:
        if handler.name in self.handlers:
            raise RegistrationError(f"{handler.name!r} is registered twice")
        for other in self.handlers.values():
            if handler.signal and (other.signal, other.channel) == (handler.signal, handler.channel):
                raise RegistrationError(
                    f"{handler.name!r} and {other.name!r} both want {handler.signal.__name__} "
                    f"of channel {handler.channel or 'any'}: let one handler decide"
                )

    def executor(self, spec: type[EffectSpec], *, timeout: timedelta = TIMEOUT) -> Callable[[X], X]:
        """Registers who does a type of effect: a function of its spec, or a class with `execute`.

        A function may take the call as its second argument, which has the idempotency key. Whatever it
        returns is the effect's result. It is called again, with the same key, after a crash or a failure.
        """
        kind = checked_spec(spec)

        def register(given: X) -> X:
            if kind.EFFECT_TYPE in self._services:
                raise RegistrationError(f"{kind.EFFECT_TYPE} has two executors")
            made = as_executor(given, lambda: self._runtime.threads if self._runtime else None)
            self._services[kind.EFFECT_TYPE] = Service(spec=kind, executor=made, timeout=timeout)
            return given

        return register

    @property
    def services(self) -> list[Service]:
        """The types of effect that this app executes itself."""
        return list(self._services.values())

    def lifespan(self, function: Callable[[], AsyncIterator[Any]]) -> Lifespan:
        """Registers what lives as long as the app runs, such as clients and pools: code, `yield`, code.

        They begin in the order in which they were registered, before any run does, and end in reverse.
        """
        manager = asynccontextmanager(function)
        self._lifespans.append(manager)
        return manager

    # Running

    @asynccontextmanager
    async def lifespans(self) -> AsyncIterator[None]:
        """Everything that was registered with `lifespan`, for as long as this is open."""
        async with AsyncExitStack() as stack:
            for lifespan in self._lifespans:
                await stack.enter_async_context(lifespan())
            yield

    def attach(self, runtime: Runtime | None) -> None:
        """Sends starts and signals through a runtime that somebody else starts and stops."""
        self._runtime = runtime

    @asynccontextmanager
    async def running(
        self,
        store: Store | str | None = None,
        *,
        worker: bool = True,
        outbox: bool | None = None,
        **options: Any,
    ) -> AsyncIterator[App]:
        """Opens the store, works on runs, schedules and effects, and drains at the end.

        It runs inside any asyncio program. `store` is a place as in the settings, `":memory:"` for one that
        ends with the block, or a store that is open. `worker` is for runs and schedules, `outbox` for
        effects: as `worker` unless said otherwise. Further options: `concurrency` (runs at once), `calls`
        (effects at once), `threads` (plain functions at once), `lease`, `grace` (how long draining may take),
        `authorization`, `write_latency_budget_ms`, `fail_open`, `never_fail_open`.
        """
        if self._runtime is not None:
            raise RunstoneError(f"{self.name!r} is running already")
        async with AsyncExitStack() as stack:
            if store is None or isinstance(store, str):
                store = await open_store(store)
                stack.push_async_callback(store.close)
            await stack.enter_async_context(self.lifespans())
            if worker if outbox is None else outbox:
                options = {**effect_options(self.services), **options}
            # Who schedules tasks himself knows best which there are.
            own = any(service.effect_type == ScheduleTask.EFFECT_TYPE for service in self.services)
            options = {**write_options(), "check_tasks": not own, **options}
            runtime = Runtime(store, self.handlers, version=self.version, worker=worker, **options)
            self.attach(runtime)
            runtime.start()
            try:
                yield self
            finally:
                self.attach(None)
                await runtime.stop()

    @property
    def runtime(self) -> Runtime:
        """The parts of the running app, such as its store; `RunstoneError` if it does not run."""
        if self._runtime is None:
            raise RunstoneError(f"{self.name!r} is not running: use `async with app.running():`")
        return self._runtime

    # Starting

    @overload
    async def start(
        self,
        handler: Handler[None, R],
        *,
        key: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
        connection: Any = None,
    ) -> Handle[R]: ...
    @overload
    async def start(
        self,
        handler: Handler[A, R],
        value: A,
        *,
        key: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
        connection: Any = None,
    ) -> Handle[R]: ...
    async def start(
        self,
        handler: Handler[Any, R],
        value: Any = None,
        *,
        key: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
        connection: Any = None,
    ) -> Handle[R]:
        """Starts a run of a handler. The same `key` again finds the first run.

        `SignalConflict` if the key was used with another value or for another handler, `InvalidPayload` if
        the handler cannot take the value. The run is durable when this returns.

        Inside a handler only with a key: replay calls it again. In a tool there is no such rule.
        `connection` is an asyncpg connection with a transaction open: the run is there when that commits, and
        is not if it does not.
        """
        if key is None and in_handler():  # §ENG-51
            raise UseRunCall
        if handler not in self.handlers.values():
            raise RegistrationError(f"app.start takes a handler of {self.name!r}: {handler!r} is none")
        runtime = self.runtime
        create = self._create(handler, handler.as_seen(value), ApiRequest.RUN_TYPE, _checked_key(key))
        payload = write(ApiRequest(operation=handler.name, arguments=value))
        incoming = Incoming(
            signal_type="API_CALL",
            source_channel=START_CHANNEL,
            source_id=key or runtime.new_id(),
            payload=payload,
            received_at=runtime.clock.now(),
            ingested_by=self.name,
        )
        return await self._receive(handler, incoming, create, _checked_tenant(tenant_id), connection)

    async def send(
        self,
        signal: SignalSpec,
        *,
        channel: str,
        source_id: str,
        tenant_id: str = DEFAULT_TENANT,
        connection: Any = None,
    ) -> Handle[Any]:
        """Takes a signal in for the handler of its kind and channel; its id again finds the first run.

        `source_id` is what the channel knows the signal by. `SignalConflict` if it came before with other
        content, `RunstoneError` if no handler is on it. `connection` as in `start`.
        """
        if channel in (START_CHANNEL, SCHEDULE_CHANNEL):
            raise RunstoneError(f"{channel!r} is a channel of our own: name another")
        handler = self._route(type(signal), channel)
        incoming = Incoming(
            signal_type=signal.SIGNAL_TYPE,
            source_channel=channel,
            source_id=source_id,
            payload=write(signal),
            received_at=self.runtime.clock.now(),
            ingested_by=self.name,
        )
        create = self._create(handler, signal, signal.RUN_TYPE, None)
        return await self._receive(handler, incoming, create, _checked_tenant(tenant_id), connection)

    def handle(self, handler: Handler[A, R], run_id: str, *, tenant_id: str = DEFAULT_TENANT) -> Handle[R]:
        """A handle for a run that was started before; whether it is there is found out when it is asked."""
        return Handle(self.runtime, _checked_tenant(tenant_id), run_id, handler.signature.result)

    async def find(
        self, handler: Handler[A, R], key: str, *, tenant_id: str = DEFAULT_TENANT
    ) -> Handle[R] | None:
        """A handle for the run that was started with this key; none if there is no such run."""
        tenant_id = _checked_tenant(tenant_id)
        run = await self.runtime.store.find_run(tenant_id, key)
        if run is None:
            stone = await self.runtime.store.find_tombstone(tenant_id, run_key=key)
            return None if stone is None else self.handle(handler, stone.stream_id, tenant_id=tenant_id)
        if run.plan_id != handler.name:
            raise SignalConflict(f"The key {key!r} belongs to a run of {run.plan_id!r}, not {handler.name!r}")
        return self.handle(handler, run.id, tenant_id=tenant_id)

    # The system of record

    async def entity(
        self, entity_type: str, entity_id: str, *, tenant_id: str = DEFAULT_TENANT
    ) -> Entity | None:
        """An entity of the system of record as it is now; none if no run has written to it."""
        return await read_entity(self.runtime.store, _checked_tenant(tenant_id), entity_type, entity_id)

    async def entity_history(
        self, entity_type: str, entity_id: str, *, tenant_id: str = DEFAULT_TENANT
    ) -> list[Entity]:
        """The entity after each of its changes, the first one first."""
        owner = _checked_tenant(tenant_id)
        history = read_history(self.runtime.store, owner, entity_type, entity_id)
        return [version async for version in history]

    # Schedules

    async def find_schedule(self, name: str, *, tenant_id: str = DEFAULT_TENANT) -> Schedule | None:
        """The schedule of this name as it is now; none if no run has scheduled it."""
        return await read_schedule(self.runtime.store, _checked_tenant(tenant_id), name)

    async def cancel_schedule(self, name: str, *, reason: str = "", tenant_id: str = DEFAULT_TENANT) -> None:
        """Takes a schedule back: it fires no more. Runs that it has started go on."""
        runtime, tenant_id = self.runtime, _checked_tenant(tenant_id)
        context = Context(now=runtime.clock.now(), new_id=runtime.new_id, actor=f"app:{self.name}")
        await cancel_schedule(runtime.store, tenant_id, name, reason, context=context)

    def _route(self, signal: type[SignalSpec], channel: str) -> Handler[Any, Any]:
        found = [
            handler
            for handler in self.handlers.values()
            if handler.signal is signal and handler.channel in (channel, None)
        ]
        if not found:
            raise RunstoneError(f"No handler of {self.name!r} is on {signal.__name__} of channel {channel!r}")
        return max(found, key=lambda handler: handler.channel is not None)

    def _create(self, handler: Handler[Any, Any], value: Any, run_type: Any, key: str | None) -> CreateRun:
        return handler.create(value, run_type, version=self.version, key=key)

    async def _receive(
        self,
        handler: Handler[A, R],
        incoming: Incoming,
        create: CreateRun,
        tenant_id: str,
        connection: Any,
    ) -> Handle[R]:
        runtime = self.runtime
        if connection is not None:
            accepted = await runtime.gateway_within(connection).receive(tenant_id, incoming, create)
        elif runtime.worker is None or create.lane is not None or handler.approval:
            accepted = await runtime.gateway.receive(tenant_id, incoming, create)
        else:
            accepted = await self._receive_and_work(runtime.worker, incoming, create, tenant_id)
        return Handle(runtime, tenant_id, accepted.run_id, handler.signature.result)

    async def _receive_and_work(
        self, worker: Worker, incoming: Incoming, create: CreateRun, tenant_id: str
    ) -> Accepted:
        """The run is this process's own from the commit that creates it, if its worker has a place free."""
        with worker.reserve() as place:
            owner = worker.id if place else None
            accepted = await self.runtime.gateway.receive(tenant_id, incoming, create, owner=owner)
            if place and accepted.case is not None:
                worker.adopt(accepted.case)
        return accepted


def _checked_version(version: Any) -> str:
    if not isinstance(version, str) or (version and not re.fullmatch(r"\d+(\.\d+)*", version)):
        raise RegistrationError(
            f"version={version!r} has no order: use numbers with dots between them, such as '3' or '1.10.2'"
        )
    return version


def _checked_key(key: Any) -> str | None:
    if key is not None and not (isinstance(key, str) and key):
        raise RegistrationError(f"app.start(key={key!r}): a key is a text, such as 'order-42'")
    if key is not None and len(key) > _MAX_KEY:
        raise RegistrationError(f"app.start(key={key[:20]!r}…): a key has at most {_MAX_KEY} characters")
    return key


def _checked_tenant(tenant_id: Any) -> str:
    """Not every store would refuse another, and no verb could ever name it."""
    if not (isinstance(tenant_id, str) and is_id(tenant_id.lower())):
        raise RegistrationError(
            f"tenant_id={tenant_id!r}: a tenant's id is a UUID as text, such as {DEFAULT_TENANT!r}"
        )
    return tenant_id.lower()
