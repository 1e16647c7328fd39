"""Calls of tools and specialists: what a step asks for, and what carrying it out does."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from msgspec import Raw

from runstone.core.run import Run as RunRow
from runstone.engine.cache import ResultCache
from runstone.engine.current import CURRENT_STEP, CurrentStep
from runstone.engine.execution import Execution
from runstone.engine.functions import Callee
from runstone.engine.requests import Begun, StepRequest


class Calls:
    """Makes the steps of one run that call a function of the app."""

    def __init__(
        self,
        run: RunRow,
        execution: Execution,
        *,
        threads: Executor | None,
        emit: Callable[[str, Any], None],
        cache: ResultCache,
    ) -> None:
        self._run = run
        self._execution = execution
        self._threads = threads
        self._emit = emit
        self._cache = cache

    def step(self, callee: Callee[Any, Any], key: str, arguments: Raw) -> StepRequest:
        """The step that calls it."""
        name, options = callee.name, callee.call_options
        is_tool = callee.step_type == "TOOL_SEQUENCE"
        recall = functools.partial(self._cache.find, self._run.tenant_id, name, arguments)
        return StepRequest(
            key=key,
            step_type=callee.step_type,
            arguments=arguments,
            specialist_id=None if is_tool else name,
            tool_name=name if is_tool else None,
            perform=functools.partial(self._perform, callee, key, arguments),
            recall=None if options.cache_ttl is None else recall,
            options=options,
        )

    async def _perform(self, callee: Callee[Any, Any], key: str, arguments: Raw, begun: Begun | None) -> Raw:
        """The call itself, on values that have been through the log's bytes."""
        given = callee.signature.unpack(arguments)
        CURRENT_STEP.set(self._current(key))
        value = await self._call(callee, given, begun)
        raw = callee.signature.result.written(value)
        holds = callee.call_options.cache_ttl
        if holds is not None:
            self._cache.keep(self._run.tenant_id, callee.name, arguments, raw, holds)
        return raw

    async def _call(self, callee: Callee[Any, Any], given: dict[str, Any], begun: Begun | None) -> Any:
        if callee.is_async:
            if begun is not None:
                begun()
            return await callee.function(**given)
        if self._threads is None:
            return _call_plain(callee.function, given, begun)
        loop = asyncio.get_running_loop()
        told = begun and functools.partial(loop.call_soon_threadsafe, begun)
        call = functools.partial(contextvars.copy_context().run, _call_plain, callee.function, given, told)
        return await loop.run_in_executor(self._threads, call)

    def _current(self, key: str) -> CurrentStep:
        return CurrentStep(
            run_id=self._run.id,
            tenant_id=self._run.tenant_id,
            step_key=key,
            logical_attempt=self._execution.attempts.number(key),
            engine_attempt=self._execution.engine_attempt,
            emit=functools.partial(self._emit, self._run.id),
        )


def _call_plain(
    function: Callable[..., Any], given: dict[str, Any], begun: Callable[[], object] | None
) -> Any:
    """Calls a plain function; no future can carry a `StopIteration` out of its thread."""
    if begun is not None:
        begun()
    try:
        return function(**given)
    except StopIteration as error:
        raise RuntimeError("StopIteration left the function") from error
