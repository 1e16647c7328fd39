"""The docs pipeline in a process that kills itself in the state that DOCS_DEATHS names.

Once as the state is entered, and once for each kind of work item: when its files are in place and what it has
done outside is done, just before the log says so. DOCS_NOTES is the file in which it keeps how it died.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from examples.docs_pipeline.pipeline import pipeline as pipeline
from runstone.core.payloads import Payload, RunStateChanged, WorkItemCompleted
from runstone.pipeline.journal import Journal

NOTES = Path(os.environ["DOCS_NOTES"])
DEADLY = os.environ["DOCS_DEATHS"]

_record = Journal.record


def _pass(place: str) -> None:
    deaths = NOTES.read_text().splitlines() if NOTES.exists() else []
    if place not in deaths:
        with NOTES.open("a") as notes:
            notes.write(f"{place}\n")
        os.kill(os.getpid(), signal.SIGKILL)


async def _record_and_die(self: Journal, *data: Payload, span_id: str = "") -> None:
    for each in data:
        if isinstance(each, WorkItemCompleted) and self.state.run_state == DEADLY:
            _pass(self.state.work_items[each.item].worker)
    await _record(self, *data, span_id=span_id)
    for each in data:
        if isinstance(each, RunStateChanged) and each.to_state == DEADLY:
            _pass("entered")


Journal.record = _record_and_die  # type: ignore[method-assign]
