"""The composition root of pipelines: a declaration, a folder store and whoever listens, put together."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from runstone.core.catalogue import CATALOGUE
from runstone.core.codec import canonical
from runstone.core.events import Event
from runstone.core.ids import DEFAULT_TENANT, NewId
from runstone.core.payloads import RunCreated
from runstone.core.pipeline import PipelineState
from runstone.core.run import Run
from runstone.core.transitions import RUN
from runstone.errors import CommandRefused, NotFound, RunstoneError
from runstone.pipeline.declaration import Pipeline
from runstone.pipeline.files import Files
from runstone.pipeline.graph import Graph
from runstone.pipeline.journal import Journal
from runstone.pipeline.moves import Moves
from runstone.pipeline.plan import Wishes, matches
from runstone.pipeline.resume import take_up
from runstone.pipeline.reuse import Base
from runstone.pipeline.runner import Progress, Runner
from runstone.ports.clock import Clock, SystemClock, new_id
from runstone.ports.folder import RunFolders
from runstone.ports.telemetry import SILENCE, Telemetry
from runstone.stores.folder import FolderStore

CANCEL: Final = "cancel"
"""A file in a run's folder by which its process is asked to end it; it holds the reason."""

_LOG: Final = logging.getLogger("runstone.pipeline")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a run says of itself in its first event, so that it can be taken up by its id alone."""

    pipeline: str
    source: str = ""
    """Where the pipeline's code is: a file, from the folder that `runs/` is in, or a module."""
    params: dict[str, str] = {}
    graph: list[dict[str, Any]] = []
    reuse: str = ""
    """The run whose results it takes over, also after it was stopped; except for these:"""
    force: tuple[str, ...] = ()
    from_state: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    run_id: str
    run_state: str
    exit_reason: str | None = None
    message: str = ""
    notes: tuple[str, ...] = ()
    """What was found wrong with its files when it was taken up, and put right."""


class Pipelines:
    """Runs pipelines in the folders of one root."""

    def __init__(
        self,
        folders: RunFolders,
        *,
        tenant_id: str = DEFAULT_TENANT,
        telemetry: Telemetry = SILENCE,
        clock: Clock | None = None,
        ids: NewId | None = None,
        threads: ThreadPoolExecutor | None = None,
        watch: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.folders = folders
        self.tenant_id = tenant_id
        self.new_id = ids or new_id
        self._telemetry = telemetry
        self._clock = clock or SystemClock()
        self._threads = threads
        self._watch = watch

    # Running

    async def run(
        self,
        pipeline: Pipeline,
        *,
        params: Mapping[str, str] | None = None,
        reuse: str | None = None,
        force: Sequence[str] = (),
        from_state: str | None = None,
        source: str = "",
        run_id: str | None = None,
        begun: Callable[[str], None] = lambda _: None,
    ) -> Outcome:
        """Starts a run and sees it through; `begun` is told its id as soon as it is there.

        `reuse` names a run whose results are taken over where they were made from the same inputs, except
        those of `force` and of the states from `from_state` on. A run of another version of the pipeline, or
        with other parameters, has none to offer.
        """
        wishes = _wishes(pipeline, force, from_state)
        given = pipeline.given(params or {})
        base = await self._base(pipeline, reuse, given, wishes) if reuse else None
        about = About(
            pipeline=pipeline.name,
            source=source,
            params=given,
            graph=pipeline.graph.describe(),
            reuse=reuse or "",
            force=wishes.force,
            from_state=from_state,
        )
        journal = self._journal(pipeline.name, run_id or self.new_id())
        await self.folders.create(
            self.tenant_id,
            journal.run_id,
            plan_id=pipeline.name,
            plan_version=pipeline.version,
            metadata=canonical(msgspec.to_builtins(about)),
            context=journal.context(),
        )
        begun(journal.run_id)
        await journal.load()
        await journal.tell_all()
        return await self._see_through(self._runner(pipeline, journal, given, base, wishes))

    async def resume(
        self,
        pipeline: Pipeline | Callable[[About | None], Pipeline],
        run_id: str,
        *,
        force: Sequence[str] = (),
        from_state: str | None = None,
    ) -> Outcome:
        """Takes a run up where it was left, and sees it through.

        `pipeline` may be a function that finds the pipeline by what the run says of itself.
        """
        journal = self._journal("resume", run_id)
        recovery = await self.folders.recover(self.tenant_id, run_id, context=journal.context())
        if recovery.failed is not None:
            return await self._outcome(run_id, recovery.notes)
        about = await self.about(run_id)
        found = pipeline if isinstance(pipeline, Pipeline) else pipeline(about)
        if about is not None and about.pipeline != found.name:
            raise CommandRefused(f"Run {run_id} is of pipeline {about.pipeline!r}, not of {found.name!r}")
        wishes = _wishes(found, force, from_state)
        journal = self._journal(found.name, run_id)
        run = await journal.run()
        if run.status in RUN.terminal and (force or from_state):
            raise CommandRefused(f"Run {run_id} has ended ({run.status}): start another one that reuses it")
        await journal.load()
        await journal.tell_all()
        base = await self._base_again(found, about) if about and about.reuse else None
        runner = self._runner(found, journal, about.params if about else {}, base, wishes)
        if run.status not in RUN.terminal:
            await self._enter(runner.moves, found.name)
            await take_up(runner)
            return await self._see_through(runner, recovery.notes)
        return await self._outcome(run_id, recovery.notes)

    async def _see_through(self, runner: Runner, notes: tuple[str, ...] = ()) -> Outcome:
        await runner.run()
        (runner.folder / CANCEL).unlink(missing_ok=True)
        return await self._outcome(runner.journal.run_id, notes)

    async def _outcome(self, run_id: str, notes: tuple[str, ...]) -> Outcome:
        run, state = await self.look(run_id)
        blockers = [issue.message for issue in state.issues.values() if issue.severity == "BLOCKER"]
        return Outcome(
            run_id=run_id,
            run_state=state.run_state or "",
            exit_reason=run.exit_reason,
            message=blockers[-1] if blockers and run.status == "FAILED" else "",
            notes=notes,
        )

    async def cancel(self, run_id: str, reason: str) -> None:
        """Ends a run that no process has in hand; `StoreBusy` if one has: `ask_to_cancel` then."""
        journal = self._journal(CANCEL, run_id)
        await self.folders.recover(self.tenant_id, run_id, context=journal.context())
        await journal.load()
        await journal.tell_all()
        about = await self.about(run_id)
        if about is None:
            raise CommandRefused(f"Run {run_id} was not begun by a pipeline: it has no graph to end in")
        moves = Moves(Graph.described(about.graph), journal)
        await self._enter(moves, about.pipeline)
        await moves.cancel(reason)
        (self.folders.folder(run_id) / CANCEL).unlink(missing_ok=True)

    async def _enter(self, moves: Moves, plan_id: str) -> None:
        """Brings a run into its graph whose process died before it could."""
        journal = moves.journal
        if (await journal.run()).status == "PENDING":
            context = journal.context()
            await self.folders.create(self.tenant_id, journal.run_id, plan_id=plan_id, context=context)
        if moves.state.run_state is None:
            await moves.move(moves.graph.initial)

    def ask_to_cancel(self, run_id: str, reason: str) -> None:
        """Asks the process that has the run in hand to end it after the work item it is at."""
        request = self.folders.folder(run_id) / CANCEL
        draft = request.with_name(f".{CANCEL}.{self.new_id()}")
        draft.write_text(reason, "utf-8", "replace")
        draft.replace(request)

    def _journal(self, actor: str, run_id: str) -> Journal:
        return Journal(
            self.folders,
            self.tenant_id,
            run_id,
            actor=f"pipeline/{actor}",
            clock=self._clock,
            new_id=self.new_id,
            telemetry=self._telemetry,
        )

    def _runner(
        self,
        pipeline: Pipeline,
        journal: Journal,
        params: Mapping[str, str],
        base: Base | None,
        wishes: Wishes,
    ) -> Runner:
        request = self.folders.folder(journal.run_id) / CANCEL

        def cancelled() -> str | None:
            return request.read_text("utf-8", "replace") if request.exists() else None

        return Runner(
            pipeline,
            journal,
            params=params,
            base=base,
            wishes=wishes,
            threads=self._threads,
            watch=self._watch,
            cancelled=cancelled,
        )

    async def _base_again(self, pipeline: Pipeline, about: About) -> Base | None:
        """The run to take results from, as it was named when this one began; it may be gone since."""
        wishes = Wishes(force=about.force, from_state=about.from_state)
        try:
            return await self._base(pipeline, about.reuse, about.params, wishes)
        except RunstoneError as error:
            _LOG.warning("Run %s cannot be reused any more: %s", about.reuse, error)
            return None

    async def _base(
        self, pipeline: Pipeline, run_id: str, given: Mapping[str, str], without: Wishes
    ) -> Base | None:
        """A run to take results from; none if its code or its parameters were others (§PIP-40)."""
        run, state = await self.look(run_id)
        if run.plan_id != pipeline.name:
            raise CommandRefused(
                f"Run {run_id} is of pipeline {run.plan_id!r}: {pipeline.name!r} cannot reuse it"
            )
        about = await self.about(run_id)
        before = (run.plan_version, about.params if about else {})
        if before != (pipeline.version, dict(given)):
            _LOG.warning("Run %s had another version or other parameters: all is made anew", run_id)
            return None
        return Base(run_id, state, Files(self.folders.folder(run_id)), await self.events(run_id), without)

    # Looking

    async def look(self, run_id: str) -> tuple[Run, PipelineState]:
        """A run's row and its pipeline's state."""
        run = await self.folders.run(self.tenant_id, run_id)
        state = await self.folders.pipeline(self.tenant_id, run_id)
        if run is None or state is None:
            raise NotFound(f"There is no run {run_id}")
        return run, state

    async def about(self, run_id: str) -> About | None:
        """What a run says of itself; none if some other program began it."""
        for event in await self.folders.fetch(self.tenant_id, run_id, limit=1):
            data = CATALOGUE.decode(event)
            if isinstance(data, RunCreated) and isinstance(data.metadata, Raw):
                try:
                    return msgspec.json.decode(data.metadata, type=About)
                except msgspec.DecodeError:
                    return None
        return None

    async def events(self, run_id: str) -> list[Event]:
        """A run's whole log."""
        found: list[Event] = []
        while page := await self.folders.fetch(self.tenant_id, run_id, after_seq=len(found)):
            found += page
        return found


@asynccontextmanager
async def open_pipelines(root: str | Path = ".", **options: Any) -> AsyncIterator[Pipelines]:
    """Pipelines in the folders below a root: `<root>/runs/<run_id>/`.

    `telemetry` is whoever wants to hear of events; it is closed at the end.
    """
    threads = ThreadPoolExecutor(1, "runstone-item")
    telemetry: Telemetry = options.setdefault("telemetry", SILENCE)
    try:
        async with await FolderStore.open(root) as store:
            yield Pipelines(store, threads=threads, **options)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        await telemetry.close()


def _wishes(pipeline: Pipeline, force: Sequence[str], from_state: str | None) -> Wishes:
    """What a person asks for, if there is such a thing."""
    for pattern in force:
        known = pipeline.declarations
        if not any(matches(name, [pattern.partition("#")[0].partition("/")[0]]) for name in known):
            raise NotFound(
                f"There is no work item {pattern!r}: there are {', '.join(sorted(known)) or 'none'}"
            )
    if from_state is not None and from_state not in pipeline.graph.states:
        raise NotFound(f"There is no state {from_state!r}: there are {', '.join(pipeline.graph.names)}")
    return Wishes(force=tuple(force), from_state=from_state)
