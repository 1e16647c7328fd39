"""Does a run's work: what its state asks for, one item after the other, and then the move to the next.

Every fact is in the log before anything follows from it, so a process may die at any point: whoever
takes the run up next finds what was done and does the rest (§PIP-22, §PIP-23, §PIP-29).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from runstone.core import payloads
from runstone.core.payloads import ErrorInfo, Payload
from runstone.core.pipeline import PipelineState
from runstone.errors import ArtifactInvalid, StoreError
from runstone.pipeline import plan
from runstone.pipeline.declaration import Pipeline
from runstone.pipeline.files import Files
from runstone.pipeline.graph import FAILED
from runstone.pipeline.items import Declaration, Item
from runstone.pipeline.journal import Journal
from runstone.pipeline.moves import Moves, storable
from runstone.pipeline.plan import Wishes
from runstone.pipeline.results import Results
from runstone.pipeline.reuse import Base
from runstone.pipeline.work import Reader, Work
from runstone.ports.exits import stops_the_process

SCRATCH: Final = "scratch"
"""The folder of a run for what is no artifact."""

_LOG: Final = logging.getLogger("runstone.pipeline")


@dataclass(frozen=True)
class Progress:
    """Where a run is just now: how many of the items of one kind are done, and the one in hand."""

    state: str
    item: str
    done: int
    total: int


class _WorkFailed(Exception):
    """Ends the run: an item, or the code that plans items, went wrong."""

    def __init__(self, item: str, cause: BaseException, *events: Payload) -> None:
        super().__init__(item)
        self.item = item
        self.cause = cause
        self.events = events


class Runner:
    """One run in hand. Its journal is loaded, and its folder is this process's alone."""

    def __init__(
        self,
        pipeline: Pipeline,
        journal: Journal,
        *,
        params: Mapping[str, str],
        base: Base | None = None,
        wishes: Wishes | None = None,
        threads: Executor | None = None,
        watch: Callable[[Progress], None] = lambda _: None,
        cancelled: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.pipeline = pipeline
        self.graph = pipeline.graph
        self.journal = journal
        self.moves = Moves(pipeline.graph, journal)
        self.folder = journal.folders.folder(journal.run_id)
        self.files = Files(self.folder)
        self.wishes = wishes or Wishes()
        self._results = Results(self.files)
        self._params = params
        self._base = base
        self._threads = threads
        self._watch = watch
        self._cancelled = cancelled
        self._done_here: set[str] = set()
        """Items that this process has done: no wish is granted twice."""
        self._seen: PipelineState | None = None
        self._fresh: dict[str, str] = {}
        self._there: dict[str, str] = {}

    @property
    def state(self) -> PipelineState:
        return self.journal.state

    def _available(self, declared: Declaration) -> dict[str, str]:
        """The artifacts that may be used now."""
        if self._seen is not self.state:
            self._seen = self.state
            self._fresh, self._there = plan.fresh(self.state), plan.there(self.state)
        return self._there if declared.in_loop else self._fresh

    # From state to state

    async def run(self) -> str:
        """Goes on until the run ends; the state it ends in."""
        if self.state.run_state is None:
            await self.moves.move(self.graph.initial)
        while self.moves.here not in self.graph.terminal:
            if (reason := self._cancelled()) is not None:
                await self.moves.cancel(reason)
            else:
                await self._pass(self.moves.here)
        await self.moves.settle()
        return self.moves.here

    async def _pass(self, here: str) -> None:
        """Does the work of the state the run is in, and leaves it."""
        try:
            await self._work(here)
            wanted = self._next(here)
        except _WorkFailed as failure:
            await self._fail(failure)
            return
        if self._cancelled() is not None:
            return
        if wanted == FAILED and FAILED not in self.graph[here].targets:
            spent = [name for name in self.graph[here].targets if self.graph.exhausted(self.state, name)]
            message = f"The run was in {', '.join(spent)} as often as it may be"
            await self.moves.fail("LoopLimitReached", f"limit/{here}", message)
        else:
            await self.moves.move(wanted)

    def _next(self, here: str) -> str:
        try:
            return self.graph.next(self.state)
        except Exception as error:  # `choose` is a user's function
            raise _WorkFailed(here, error) from error

    async def _fail(self, failure: _WorkFailed) -> None:
        kind, text = type(failure.cause).__name__, str(failure.cause)
        message = f"{failure.item}: {kind}: {text}" if text else f"{failure.item}: {kind}"
        _LOG.error("The run fails: %s", message, exc_info=failure.cause)
        await self.moves.fail("WorkItemFailed", f"failed/{failure.item}", message, *failure.events)

    # Within a state

    async def _work(self, here: str) -> None:
        """Does what this state asks for; in a loop, first what the loop has made stale of earlier states."""
        for name in self.states_until(here) if self.graph.loops(here) else [here]:
            for declared in plan.in_order(self.pipeline.of(name)):
                await self._do_all(declared, self.items(declared))

    def states_until(self, here: str) -> list[str]:
        """The states passed up to this one, without loops, whose work belongs to one attempt."""
        passed = self.graph.names[: self.graph.place(here)]
        open_ended = [name for name in passed if self.graph[name].limit is None]
        return [*(name for name in open_ended if name in self.state.visits), here]

    def items(self, declared: Declaration) -> list[Item]:
        """The work items that there are now of a declaration."""
        reader = Reader(self.files, self.state, self._params, self._available(declared))
        try:
            return declared.items(reader, self.state.visits.get(declared.state, 1))
        except StoreError:
            raise
        except Exception as error:  # `each` is a user's function
            raise _WorkFailed(declared.name, error) from error

    async def _do_all(self, declared: Declaration, items: list[Item]) -> None:
        await self._retire(declared, items)
        for done, item in enumerate(items):
            if self._cancelled() is not None:
                return
            self._watch(Progress(self.moves.here, item.name, done, len(items)))
            await self._bring_up_to_date(item)
        if items:
            self._watch(Progress(self.moves.here, "", len(items), len(items)))

    async def _retire(self, declared: Declaration, items: list[Item]) -> None:
        """What was made for a key that is there no more goes."""
        if declared.each is None or declared.in_loop:
            return
        names = {item.name for item in items}
        ours = [name for name, known in self.state.work_items.items() if known.worker == declared.name]
        gone = [name for name in ours if name not in names]
        await self._drop(self._results.orphans(self.state, gone), "nothing makes it any more")

    async def _drop(self, names: Iterable[str], reason: str) -> None:
        dropped = sorted(names)
        own = [payloads.ArtifactInvalidated(name=name, because=name, reason=reason) for name in dropped]
        await self.journal.record(*plan.downstream(self.state, dict.fromkeys(dropped)), *own)
        for name in dropped:
            self.files.remove(name)

    def verdict(self, item: Item) -> plan.Verdict:
        """What is to be done about an item."""
        return plan.judge(item, self.state, self._available(item.declaration), self._forced(item))

    def _forced(self, item: Item) -> bool:
        return item.name not in self._done_here and self.wishes.mean(item, self.graph)

    async def _bring_up_to_date(self, item: Item) -> None:
        try:
            if stale := plan.stale_input(item, self.state):
                raise ArtifactInvalid(
                    f"Work item {item.name!r} needs {stale!r}, which is stale: resume the run"
                )
            verdict = self.verdict(item)
            inputs = plan.inputs_of(item, self._available(item.declaration))
        except Exception as error:  # an input that nobody has made
            raise _WorkFailed(item.name, error) from error
        if verdict.must_run:
            await self._do(item, inputs, verdict.forced)
            self._done_here.add(item.name)
        else:
            await self.journal.record(*(payloads.ArtifactRevalidated(name=name) for name in verdict.stands))

    async def _do(self, item: Item, inputs: Mapping[str, str], forced: bool) -> None:
        """One try at one item: recorded, done, put in place, recorded."""
        span_id = self.journal.new_span()
        worker = item.declaration.name
        await self.journal.record(
            payloads.WorkItemStarted(item=item.name, worker=worker, forced=forced, inputs=dict(inputs)),
            span_id=span_id,
        )
        work = self._work_for(item, inputs)
        try:
            reused_from = self._reused(item, inputs, work)
            if reused_from is None:
                await self._call(item, work)
            result = self._results.of(item, work, self.state)
            self._results.put(result)
        except StoreError:  # a full disk, say: the run stops here, and goes on when it is resumed
            raise
        except (Exception, SystemExit) as error:  # `sys.exit` is the item's end, and no end of the process
            if stops_the_process(error):
                raise
            details = ErrorInfo(
                category="APPLICATION", code=type(error).__name__, message=storable(str(error))
            )
            failed = payloads.WorkItemFailed(item=item.name, error=details)
            raise _WorkFailed(item.name, error, failed) from error
        done = payloads.WorkItemCompleted(item=item.name, outputs=result.outputs, reused_from=reused_from)
        await self.journal.record(*result.events, done, span_id=span_id)
        await self._drop(result.dropped, f"{item.name} makes it no more")

    def _reused(self, item: Item, inputs: Mapping[str, str], work: Work) -> str | None:
        """The run whose result takes the place of this item's work, if there is one."""
        base = self._base
        if base is None or self._forced(item) or base.without.mean(item, self.graph):
            return None
        return base.run_id if base.fill(work, item, inputs) else None

    def _work_for(self, item: Item, inputs: Mapping[str, str]) -> Work:
        return Work(
            item=item.name,
            key=item.key,
            run_id=self.journal.run_id,
            scratch=self.folder / SCRATCH,
            writes=lambda name: item.makes(name) is not None,
            files=self.files,
            state=self.state,
            params=self._params,
            inputs=inputs,
        )

    async def _call(self, item: Item, work: Work) -> None:
        arguments = (work,) if item.declaration.each is None else (work, item.key)
        function = item.declaration.function
        if item.declaration.is_async:
            await function(*arguments)  # type: ignore[misc]
        else:
            # In a thread: a plain function that takes long must not keep Ctrl-C waiting.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, _called, function, *arguments)


def _called(function: Callable[..., object], *arguments: object) -> None:
    """Calls it; asyncio cannot carry a StopIteration over from a thread, and would wait for ever."""
    try:
        function(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"StopIteration: {error}") from error
