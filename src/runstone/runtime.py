"""The composition root: the only module that knows every part and puts them together."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from runstone.core.effect import Effect
from runstone.core.effect_specs import ScheduleTask
from runstone.core.ids import NewId
from runstone.core.run import Run
from runstone.engine.budget import MAY_BE_LATE, MUST_NOT, write_budget
from runstone.engine.functions import Handler
from runstone.engine.tasks import HandlerTasks
from runstone.engine.worker import LEASE, POLL, Worker
from runstone.errors import RunstoneError, SettingsInvalid
from runstone.ingest.gateway import Gateway
from runstone.ingest.scheduler import POLL as LOOK
from runstone.ingest.scheduler import Scheduler
from runstone.outbox.alerts import Alerts, Notify
from runstone.outbox.builtin import alert_by_apprise, built_in_services, email_table
from runstone.outbox.dispatcher import CONCURRENCY as CALLS
from runstone.outbox.dispatcher import Dispatcher
from runstone.outbox.services import Service
from runstone.ports.authorization import AllowAll, Authorization
from runstone.ports.bell import Bell
from runstone.ports.clock import Clock, SystemClock, new_id
from runstone.ports.store import Store
from runstone.settings import Settings, load_effect_settings, load_settings, load_write_settings
from runstone.stores.folder import FolderStore
from runstone.stores.sqlite import SqliteStore

_log = logging.getLogger("runstone")

THREADS: Final = 64
"""How many plain functions run at once: they mostly wait for something outside. With none they block."""


class Runtime:
    """One process's parts: a store, a gateway, and usually a worker, a scheduler and a dispatcher."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler[Any, Any]],
        *,
        version: str = "",
        clock: Clock | None = None,
        ids: NewId | None = None,
        authorization: Authorization | None = None,
        worker: bool = True,
        concurrency: int = 256,
        lease: timedelta = LEASE,
        poll: float = POLL,
        threads: int = THREADS,
        jitter: Callable[[], float] | None = None,
        worker_id: str | None = None,
        grace: timedelta = timedelta(seconds=10),
        write_latency_budget_ms: int = 3000,
        fail_open: Iterable[str] = MAY_BE_LATE,
        never_fail_open: Iterable[str] = MUST_NOT,
        services: Iterable[Service] = (),
        calls: int = CALLS,
        notify: Notify | None = None,
        check_tasks: bool = True,
    ) -> None:
        budget = write_budget(write_latency_budget_ms, fail_open, never_fail_open)
        self.store = store
        self._services = {service.effect_type: service for service in services}
        check_sees_all = getattr(store, "check_sees_all", None)
        if check_sees_all is not None and (worker or self._services):
            check_sees_all()  # who sees nothing would look for work for ever
        # A store that processes share has a clock that they agree on, and a bell that all of them hear.
        self.clock: Clock = clock or getattr(store, "clock", None) or SystemClock()
        self.bell: Bell = getattr(store, "bell", None) or Bell()
        self._grace = grace
        self.new_id = ids or new_id
        self._authorization = authorization or AllowAll()
        self.gateway = self._gateway(store, self.bell)
        self._threads = ThreadPoolExecutor(threads, "runstone-step") if threads else None
        self._watchers: dict[str, list[asyncio.Future[Run]]] = {}
        self._followers: dict[str, list[asyncio.Queue[Any]]] = {}
        self.worker: Worker | None = None
        self._working: list[asyncio.Task[None]] = []
        self.broken = asyncio.Event()
        """A part has ended that nobody told to: an error of ours, which `stop` raises."""
        name = worker_id or f"{socket.gethostname()}:{os.getpid()}:{self.new_id()}"
        self.dispatcher: Dispatcher | None = None
        if self._services:
            self.dispatcher = Dispatcher(
                store,
                self._services,
                worker_id=name,
                clock=self.clock,
                new_id=self.new_id,
                bell=self.bell,
                concurrency=calls,
                lease=lease,
                poll=poll,
                jitter=jitter or random.random,
                alerts=Alerts(notify, clock=self.clock),
                ended=self._ended,
                performed=self._performed,
            )
        self.scheduler: Scheduler | None = None
        if worker:
            tasks = HandlerTasks(handlers, version)
            self.scheduler = Scheduler(
                store,
                tasks,
                worker_id=name,
                clock=self.clock,
                new_id=self.new_id,
                bell=self.bell,
                jitter=jitter or random.random,
                version=version,
                poll=max(poll, LOOK),
            )
            self.worker = Worker(
                store,
                handlers,
                worker_id=name,
                clock=self.clock,
                new_id=self.new_id,
                bell=self.bell,
                version=version,
                concurrency=concurrency,
                lease=lease,
                poll=poll,
                threads=self._threads,
                emit=self._emitted,
                ended=self._ended,
                budget=budget,
                jitter=jitter or random.random,
                requested=self._requested,
                check_task=tasks.check if check_tasks else lambda task: None,
            )

    def _gateway(self, store: Store, bell: Bell) -> Gateway:
        return Gateway(
            store, clock=self.clock, new_id=self.new_id, bell=bell, authorization=self._authorization
        )

    def gateway_within(self, connection: Any) -> Gateway:
        """A gateway into a transaction of the caller's; it rings for nothing that is not committed yet."""
        within = getattr(self.store, "within", None)
        if within is None:
            raise RunstoneError(
                "This store has no transactions of others: `connection=` takes one on PostgreSQL"
            )
        return self._gateway(within(connection), Bell())

    @property
    def served(self) -> list[str]:
        """The types of effect that this process executes."""
        return sorted(self._services)

    @property
    def threads(self) -> ThreadPoolExecutor | None:
        """Where plain functions run."""
        return self._threads

    def start(self) -> None:
        """Lets the worker, the dispatcher and the scheduler work."""
        self.bell.start()
        self._working = [asyncio.ensure_future(self._run(part)) for part in self._parts]

    async def _run(self, part: Worker | Dispatcher | Scheduler) -> None:
        try:
            await part.run()
        except Exception as error:
            _log.critical(
                "the %s has ended, and nothing in this process does its work now: start the process again",
                type(part).__name__.lower(),
                exc_info=error,
            )
            self.broken.set()
            raise

    @property
    def _parts(self) -> list[Worker | Dispatcher | Scheduler]:
        return [part for part in (self.worker, self.dispatcher, self.scheduler) if part is not None]

    async def stop(self, deadline: timedelta | None = None) -> None:
        """Drains all of them, then lets go of what belongs to the process; the store is its opener's.

        Raises what a part has ended with, if one has.
        """
        grace = self._grace if deadline is None else deadline
        await asyncio.gather(*(part.drain(grace) for part in self._parts))
        ends = await asyncio.gather(*self._working, return_exceptions=True)
        await self.bell.stop()
        outer = (one.outer for one in self._services.values())
        for executor in {id(one): one for one in outer if one is not None}.values():
            await executor.aclose()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for error in ends:
            if error is not None:
                raise error

    # What others in the process hear

    def _ended(self, run: Run) -> None:
        for watcher in self._watchers.pop(run.id, ()):
            if not watcher.done():
                watcher.set_result(run)

    def _performed(self, effect: Effect) -> None:
        if self.scheduler is not None and effect.effect_type == ScheduleTask.EFFECT_TYPE:
            self.scheduler.wake()

    def _requested(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def _emitted(self, run_id: str, value: Any) -> None:
        for queue in self._followers.get(run_id, ()):
            queue.put_nowait(value)

    def works_on(self, run_id: str) -> bool:
        """Whether this process's own worker has the run in its hands, and will say when it lets go."""
        return self.worker is not None and self.worker.holds(run_id)

    async def changed(self, run_id: str, most: float) -> Run | None:
        """The run as this process's worker left it, as soon as it does; nothing after a while."""
        watcher: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(run_id, []).append(watcher)
        try:
            async with asyncio.timeout(most):
                return await watcher
        except TimeoutError:
            return None
        finally:
            waiting = self._watchers.get(run_id, [])
            if watcher in waiting:
                waiting.remove(watcher)
                if not waiting:
                    del self._watchers[run_id]

    def follow(self, run_id: str) -> asyncio.Queue[Any]:
        """What the run emits from now on, in this process."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._followers.setdefault(run_id, []).append(queue)
        return queue

    def unfollow(self, run_id: str, queue: asyncio.Queue[Any]) -> None:
        followers = self._followers[run_id]
        followers.remove(queue)
        if not followers:
            del self._followers[run_id]


def effect_options(own: Iterable[Service]) -> dict[str, Any]:
    """What the settings say about how effects go out; an app's own executor comes before a built-in one."""
    settings = load_effect_settings(environment=os.environ, folder=Path.cwd())
    tables = dict(settings.tables)
    if settings.smtp_url is not None:
        tables["email"] = {**tables.get("email", {}), **email_table(settings.smtp_url)}
    return {
        "services": (*built_in_services(tables, settings.secrets), *own),
        "notify": alert_by_apprise(settings.alerts) if settings.alerts else None,
    }


def write_options() -> dict[str, Any]:
    """What the settings say about how long writing may take."""
    return load_write_settings(environment=os.environ, folder=Path.cwd()).options()


async def open_store(location: str | None = None) -> Store:
    """The store that is named here, or by the settings."""
    settings = load_settings(store=location, environment=os.environ, folder=Path.cwd())
    return await open_as_set(settings, api=True)


async def open_folders(settings: Settings) -> FolderStore:
    """The folder of runs of these settings; it is an `EventLog`, and can be asked what it holds."""
    assert settings.folder is not None, "only a folder has folders"
    return await FolderStore.open(settings.folder)


async def open_as_set(settings: Settings, *, api: bool = False) -> Store:
    """The store of these settings: a file, or a database with what it takes to talk to it.

    With `api` a member of `runstone_api` may open it too, and can use no more than `connection=` of it.
    """
    if settings.folder is not None:
        raise SettingsInvalid(
            f"The store {settings.place} (from {settings.store.origin}) is a folder of runs, which has no "
            "queue to work from: name a SQLite file or a PostgreSQL database, with --store or "
            "RUNSTONE_STORE. `runstone export` and `import` carry runs between them"
        )
    if settings.database_url is None:
        return await SqliteStore.open(settings.store_path)
    with needs_driver(settings):
        from runstone.stores.postgres import PostgresStore
    return await PostgresStore.open(settings.database_url, unsafe=settings.unsafe, api=api)


@contextmanager
def needs_driver(settings: Settings) -> Iterator[None]:
    """Says what to install when there is nothing to talk to PostgreSQL with."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise SettingsInvalid(
            f"The store {settings.place} (from {settings.store.origin}) is a PostgreSQL database, "
            "and its driver is not installed: pip install 'runstone[postgres]'"
        ) from error
