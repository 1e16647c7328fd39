"""A run's pen: writes what happens to the log, knows the state that follows, tells whoever listens."""

from __future__ import annotations

from runstone.core.commit import Context, span_of
from runstone.core.ids import NewId
from runstone.core.payloads import Payload
from runstone.core.pipeline import PipelineState
from runstone.core.run import Run
from runstone.errors import NotFound
from runstone.ports.clock import Clock
from runstone.ports.folder import RunFolders
from runstone.ports.telemetry import SILENCE, Telemetry


class Journal:
    """One run's log, and the state it adds up to."""

    def __init__(
        self,
        folders: RunFolders,
        tenant_id: str,
        run_id: str,
        *,
        actor: str,
        clock: Clock,
        new_id: NewId,
        telemetry: Telemetry = SILENCE,
    ) -> None:
        self.folders = folders
        self.tenant_id = tenant_id
        self.run_id = run_id
        self.state = PipelineState()
        self._actor = actor
        self._clock = clock
        self._new_id = new_id
        self._telemetry = telemetry

    def new_span(self) -> str:
        """A span for events that belong together, those of one work item for example."""
        return span_of(self._new_id())

    def context(self, span_id: str = "") -> Context:
        """Who writes now; the trace is the run's correlation, which the log knows (§EVT-3)."""
        return Context(now=self._clock.now(), new_id=self._new_id, actor=self._actor, span_id=span_id)

    async def load(self) -> PipelineState:
        """The state as the log has it."""
        state = await self.folders.pipeline(self.tenant_id, self.run_id)
        self.state = state or PipelineState()
        return self.state

    async def tell_all(self) -> None:
        """Tells what happened before this process: a listener that was down then knows each event once."""
        after = 0
        while events := await self.folders.fetch(self.tenant_id, self.run_id, after_seq=after):
            for event in events:
                self._telemetry.tell(event)
            after = events[-1].run_seq

    async def record(self, *data: Payload, span_id: str = "") -> None:
        """Adds to the log, in this order; durable on return."""
        if not data:
            return
        context = self.context(span_id or self.new_span())
        events = await self.folders.record(self.tenant_id, self.run_id, *data, context=context)
        await self.load()
        for event in events:
            self._telemetry.tell(event)

    async def run(self) -> Run:
        """The run's own row."""
        run = await self.folders.run(self.tenant_id, self.run_id)
        if run is None:
            raise NotFound(f"There is no run {self.run_id}")
        return run
