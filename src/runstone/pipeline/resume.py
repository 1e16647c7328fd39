"""Takes a run up that some process left: its files, what it had in hand, its state (§PIP-20 to §PIP-25)."""

from __future__ import annotations

import logging
from typing import Final

from runstone.core import payloads
from runstone.core.payloads import ErrorInfo
from runstone.errors import ArtifactInvalid, CommandRefused
from runstone.pipeline import plan
from runstone.pipeline.items import Declaration
from runstone.pipeline.runner import Runner
from runstone.pipeline.schemas import check_content

EXTERNAL: Final = "external"
"""Who wrote an artifact that no work item has written."""

_LOG: Final = logging.getLogger("runstone.pipeline")
_CUT_OFF: Final = ErrorInfo(
    category="INFRASTRUCTURE",
    code="INTERRUPTED",
    message="Its process ended before it did",
    retryable=True,
)


async def take_up(runner: Runner) -> None:
    """Puts a run right, so that it can go on. Safe to repeat: a crash in here loses nothing."""
    here = runner.state.run_state
    if here is None or here in runner.graph.terminal:
        return
    if here not in runner.graph.states:
        raise CommandRefused(
            f"The run is in {here}, a state that the graph of {runner.pipeline.name!r} does not have"
        )
    runner.files.sweep()
    await _look_at_files(runner)
    in_hand = [name for name, item in sorted(runner.state.work_items.items()) if item.status == "RUNNING"]
    await runner.journal.record(*(payloads.WorkItemFailed(item=name, error=_CUT_OFF) for name in in_hand))
    target = _target(runner, here)
    if target != here:
        _LOG.warning("RESUME_REWIND: %s → %s", here, target)
        await runner.journal.record(payloads.ResumeRewind(from_state=here, to_state=target))


async def _look_at_files(runner: Runner) -> None:
    """Compares every artifact with its file: somebody may have edited it, or taken it away (§PIP-25)."""
    for name in sorted(runner.state.artifacts):
        known = runner.state.artifacts[name]
        found = known.sha256 if known.stale else runner.files.sha256(name)
        if found is None:
            _LOG.warning("Artifact %s is gone and will be made again", name)
            gone = payloads.ArtifactInvalidated(name=name, because=name, reason="its file is gone")
            await runner.journal.record(*plan.downstream(runner.state, {name: None}), gone)
        elif found != known.sha256:
            _check_edit(runner, name)
            writer = _writer(runner, name)
            _LOG.warning("Artifact %s was changed by %s: what was made from it is made again", name, writer)
            adopted = payloads.ArtifactWritten(
                name=name,
                path=known.path,
                sha256=found,
                schema_id=known.schema_id,
                writer_worker=writer,
            )
            await runner.journal.record(*plan.downstream(runner.state, {name: found}), adopted)


def _check_edit(runner: Runner, name: str) -> None:
    """Whoever edits an artifact is held to its schema, too (§PIP-37)."""
    for declared in runner.pipeline.declarations.values():
        output = declared.may_make(name)
        if output is not None and output.schema is not None:
            try:
                check_content(name, runner.files.read(name) or b"", output.schema, output.id)
            except ArtifactInvalid as error:
                raise ArtifactInvalid(
                    f"{error}. Somebody edited it: mend it, or remove the file to have it made again"
                ) from error


def _writer(runner: Runner, name: str) -> str:
    """An item that died between its files and its events, or somebody outside."""
    for _, known in sorted(runner.state.work_items.items()):
        declared = runner.pipeline.declarations.get(known.worker)
        if known.status == "RUNNING" and declared is not None and declared.may_make(name):
            return declared.name
    return EXTERNAL


def _target(runner: Runner, here: str) -> str:
    """From a transitional state the last stable one; an earlier one, if work of before it is due again."""
    graph, state = runner.graph, runner.state
    wanted = [graph.last_stable(state) if graph[here].transitional else here]
    start = runner.wishes.from_state
    if start is not None:
        if start not in state.visits or graph.place(start) > graph.place(here):
            raise CommandRefused(f"The run is in {here} and cannot go back to {start}: it was not there yet")
        wanted.append(graph.stable_before(start, state))
    behind = _first_behind(runner, here)
    if behind is not None:
        wanted.append(graph.stable_before(behind, state))
    return min(wanted, key=graph.place)


def _first_behind(runner: Runner, here: str) -> str | None:
    """The first state before this one whose work is not all up to date."""
    for name in runner.states_until(here):
        if name != here and any(_is_behind(runner, declared) for declared in runner.pipeline.of(name)):
            return name
    return None


def _is_behind(runner: Runner, declared: Declaration) -> bool:
    try:
        verdicts = map(runner.verdict, runner.items(declared))
        return any(verdict.must_run or verdict.stands for verdict in verdicts)
    except Exception:  # it cannot be planned from what is there: going back shows why
        return True
