"""A handle: one run, seen from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Final, Generic

import msgspec
from msgspec import UNSET, Raw

from runstone.core import codec
from runstone.core.events import Event
from runstone.core.payloads import ControlKind, ErrorInfo
from runstone.core.run import Run
from runstone.core.snapshot import RunSnapshot
from runstone.core.transitions import RUN
from runstone.engine.functions import R, checked_duration
from runstone.engine.values import Shape, write
from runstone.errors import NotFound, RunCancelled, RunFailed
from runstone.runtime import Runtime

_SHORTEST_POLL: Final = 0.01
_LONGEST_POLL: Final = 0.5

_AFTER_A_PAUSE: Final = frozenset({"RUN_RESUMED", "RUN_FAILED", "RUN_CANCELLED"})


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """What stopped a run until somebody resumes it."""

    reason: str
    """`OPERATOR`, `PARKED`, `NON_DETERMINISTIC`, `QUARANTINED`, or what whoever paused it said."""
    details: Any
    """What helps to fix the cause: the step and its error, or what replay expected and found."""
    since: datetime


class Handle(Generic[R]):
    """Ask a run for its result, or tell it something."""

    def __init__(self, runtime: Runtime, tenant_id: str, run_id: str, shape: Shape) -> None:
        self.id = run_id
        self._runtime = runtime
        self._tenant_id = tenant_id
        self._shape = shape

    async def result(self, *, timeout: timedelta | None = None) -> R:
        """What the handler returned, as soon as that is durable; `RunFailed` if it did not get there.

        It waits as long as the run takes: a run that is paused is waited for until somebody resumes
        or cancels it. `TimeoutError` after `timeout`; the run goes on.
        """
        checked_duration("timeout", timeout)
        if timeout is None:
            return await self._result()
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                return await self._result()
        except TimeoutError:
            raise TimeoutError(f"Run {self.id} has no result after {timeout}, and goes on") from None

    async def _result(self) -> R:
        poll = _SHORTEST_POLL
        run = None
        while True:
            if run is None and self._runtime.works_on(self.id):
                run = await self._runtime.changed(self.id, _LONGEST_POLL)
            run = run or await self.status()
            if run.result is not None and run.status not in ("FAILED", "CANCELLED"):
                result: R = self._shape.read(await self._whole(run.result))
                return result
            if run.status in RUN.terminal:
                _raise(run)
            run = await self._runtime.changed(self.id, poll)
            poll = min(_LONGEST_POLL, poll * 2)

    async def _whole(self, shown: Raw) -> Raw:
        """A result over 2 KB stands in its event."""
        if not bytes(shown).startswith(b'{"$event":'):
            return shown
        stream = await self._runtime.store.load(self._tenant_id, self.id)
        return stream.fold().whole(shown) if stream else shown

    async def status(self) -> Run:
        """The run's row, which is not the `Run` of its handler: `status`, `exit_reason`, times, counts."""
        run = await self._runtime.store.get_run(self._tenant_id, self.id)
        if run is None:
            raise await self._missing()
        return run

    async def _missing(self) -> NotFound:
        stone = await self._runtime.store.find_tombstone(self._tenant_id, stream_id=self.id)
        return NotFound(f"There is no run {self.id}") if stone is None else stone.error

    async def paused(self) -> Paused | None:
        """Why and since when the run is paused; none if it is not."""
        stream = await self._runtime.store.load(self._tenant_id, self.id)
        if stream is None:
            raise await self._missing()
        for event in reversed(stream.events):
            if event.event_type in _AFTER_A_PAUSE:
                return None
            if event.event_type == "RUN_PAUSED":
                data = msgspec.json.decode(event.event_data)
                return Paused(reason=data["reason"], details=data.get("details"), since=event.occurred_at)
        return None

    async def snapshot(self) -> RunSnapshot | None:
        """The run and the latest attempt at each of its steps, as one document; none if it is archived."""
        return await self._runtime.store.snapshot(self._tenant_id, self.id)

    async def events(self, *, follow: bool = False) -> AsyncIterator[Event]:
        """The run's log, from its beginning; with `follow`, until the run has ended."""
        seen, poll = 0, _SHORTEST_POLL
        while True:
            last_page = not follow or (await self.status()).status in RUN.terminal
            page = await self._runtime.store.fetch(self._tenant_id, self.id, after_seq=seen)
            for event in page:
                seen = event.run_seq
                yield event
            if page:
                poll = _SHORTEST_POLL
                continue
            if last_page:
                return
            await self._runtime.changed(self.id, poll)
            poll = min(_LONGEST_POLL, poll * 2)

    def emitted(self) -> AsyncIterator[Any]:
        """What the run shows with `run.emit` from now on, in this process, until it has ended."""
        return self._emitted(self._runtime.follow(self.id))

    async def _emitted(self, queue: asyncio.Queue[Any]) -> AsyncIterator[Any]:
        try:
            while True:
                try:
                    yield await asyncio.wait_for(queue.get(), _LONGEST_POLL)
                except TimeoutError:
                    if (await self.status()).status in RUN.terminal and queue.empty():
                        return
        finally:
            self._runtime.unfollow(self.id, queue)

    # Control signals. Each has an id: what is sent again under the same one is one signal.

    async def answer(
        self, name: str, value: object = None, *, id: str | None = None, sender: str = "app"
    ) -> None:
        """Answers a wait; one that has not begun yet finds the answer when it does."""
        await self._control("ANSWER", sender, id, target=name, data=write(value))

    async def cancel(
        self, reason: str = "CANCELLED_BY_CALLER", *, id: str | None = None, sender: str = "app"
    ) -> None:
        """Ends the run; its handler may clean up."""
        await self._control("CANCEL", sender, id, reason=reason)

    async def pause(self, reason: str = "OPERATOR", *, id: str | None = None, sender: str = "app") -> None:
        """Stops the run after the steps that are under way."""
        await self._control("PAUSE", sender, id, reason=reason)

    async def resume(self, *, id: str | None = None, sender: str = "app") -> None:
        """Lets a paused run go on."""
        await self._control("RESUME", sender, id)

    async def approve(self, *, id: str | None = None, sender: str = "app") -> None:
        """Lets a run start that waits for approval."""
        await self._control("APPROVE", sender, id)

    async def retry_step(self, step_key: str, *, id: str | None = None, sender: str = "app") -> None:
        """Tries the step again that parked the run, or that failed while it was paused, and resumes it."""
        await self._control("RETRY_STEP", sender, id, target=step_key)

    async def _control(
        self,
        kind: ControlKind,
        sender: str,
        id: str | None,
        *,
        target: str | None = None,
        data: Raw | msgspec.UnsetType = UNSET,
        reason: str = "",
    ) -> None:
        await self._runtime.gateway.control(
            self._tenant_id,
            self.id,
            kind,
            sender=sender,
            target=target,
            data=data,
            reason=reason,
            control_signal_id=id,
        )


def _raise(run: Run) -> None:
    reason = run.exit_reason or run.status
    if run.status == "CANCELLED":
        raise RunCancelled(run.id, reason)
    message = codec.decode_as(run.error_details, ErrorInfo).message if run.error_details else ""
    raise RunFailed(run.id, reason, message)
