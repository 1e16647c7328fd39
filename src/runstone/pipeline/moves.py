"""A run's moves along its graph, its end among them (§PIP-13, §PIP-14, §PIP-32)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from runstone.core import payloads
from runstone.core.codec import canonical
from runstone.core.payloads import ErrorInfo, Payload
from runstone.core.pipeline import PipelineState
from runstone.core.run import Run
from runstone.errors import StateTransitionError
from runstone.pipeline.graph import CANCELLED, FAILED, Graph
from runstone.pipeline.journal import Journal

_LOG: Final = logging.getLogger("runstone.pipeline")
_REASON_CHARACTERS: Final = 100
_MESSAGE_CHARACTERS: Final = 10_000


class Moves:
    """Moves one run. Takes a graph and a journal, and none of the pipeline's own code."""

    def __init__(self, graph: Graph, journal: Journal) -> None:
        self.graph = graph
        self.journal = journal

    @property
    def state(self) -> PipelineState:
        return self.journal.state

    @property
    def here(self) -> str:
        """The state the run is in."""
        assert self.state.run_state is not None, "the graph was entered"
        return self.state.run_state

    async def move(self, to_state: str, *before: Payload) -> None:
        """Goes to another state; a move that the graph does not have is recorded and refused."""
        here = self.state.run_state
        if not self.graph.allows(here, to_state):
            origin = here or "nowhere"
            _LOG.error("Invalid transition: %s → %s", origin, to_state)
            await self.journal.record(payloads.InvalidStateTransition(from_state=origin, to_state=to_state))
            raise StateTransitionError("run state", self.journal.run_id, here, to_state)
        await self.journal.record(*before, payloads.RunStateChanged(from_state=here, to_state=to_state))

    async def cancel(self, reason: str) -> None:
        """Ends the run because somebody wants it to end."""
        await self.move(CANCELLED)
        await self.settle(storable(reason))

    async def fail(self, code: str, issue: str, message: str, *events: Payload) -> None:
        """Ends the run with a complete trail: what went wrong, the blocker, the state, the end."""
        blocker = payloads.IssueOpened(issue=issue, code=code, severity="BLOCKER", message=storable(message))
        await self.move(FAILED, *events, blocker)
        await self.settle()

    async def settle(self, reason: str = "") -> None:
        """Ends the run itself when its graph has ended; a crash may have come in between."""
        run = await self.journal.run()
        if self.here in self.graph.terminal and run.status == "RUNNING":
            await self.journal.record(*self._last_facts(run, reason))

    def _last_facts(self, run: Run, reason: str) -> Iterator[Payload]:
        if self.here == CANCELLED:
            yield payloads.RunCancelled(exit_reason=(reason or CANCELLED)[:_REASON_CHARACTERS])
        elif self.here == FAILED:
            blockers = [issue for issue in self.state.issues.values() if issue.severity == "BLOCKER"]
            code, message = (blockers[-1].code, blockers[-1].message) if blockers else (FAILED, "")
            error = ErrorInfo(category="APPLICATION", code=code, message=message)
            yield payloads.RunFailed(exit_reason=code[:_REASON_CHARACTERS], error=error)
        else:
            if run.result is None:
                yield payloads.RunHandlerReturned(result=canonical({"run_state": self.here}))
            yield payloads.RunCompleted()


def storable(text: str) -> str:
    """Any text as the log can keep it."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return clean[:_MESSAGE_CHARACTERS]
