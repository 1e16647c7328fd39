"""`runstone show`: one run on a page, and what can be done about it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import click

from runstone.cli.lookup import load_run
from runstone.cli.options import Options, with_options
from runstone.cli.output import counted, say, say_json, table, when
from runstone.cli.overview import EffectView, Failure, Overview, Pause, StepView, Wait, overview
from runstone.core.signal import Signal
from runstone.core.state import SignalState
from runstone.ports.store import Store

_STEP_HEADINGS: Final = ("step", "type", "status", "attempts", "took", "error")
_EFFECT_HEADINGS: Final = ("effect", "type", "status", "tries", "next try", "step", "error")
_MOST_STEPS: Final = 50
"""How many steps are listed, the latest ones; JSON has them all."""
_MOST_TEXT: Final = 600
"""How many characters of a value are shown."""


@click.command("show")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Everything, as one JSON object.")
@with_options
@click.pass_obj
def show_command(options: Options, run: str, as_json: bool) -> None:
    """Show one run, and what can be done about it.

    Status, times, result or error, what it waits for, its variables, steps and effects.

    For example:  runstone show order-42
    """
    page = asyncio.run(_load(options, run))
    if as_json:
        say_json(page)
        return
    for label, text in _lines(page):
        say(f"{label:<12} {text}")
    _say_steps(page.steps)
    _say_effects(page.effects)
    if page.to_do:
        say("")
        say("to do")
        for one in page.to_do:
            say(f"  {one}")


async def _load(options: Options, name: str) -> Overview:
    async with options.open_store(folders=True) as store:
        state, events = await load_run(store, options.tenant_id, name)
        assert state.run is not None
        signal = await _signal(store, options.tenant_id, state.run.signal_id)
        return overview(state, events, signal)


async def _signal(store: Store, tenant_id: str, signal_id: str) -> Signal | None:
    """By its stream: a folder of runs has that, and no table of signals."""
    stream = await store.load(tenant_id, signal_id)
    state = None if stream is None else stream.fold()
    return state.signal if isinstance(state, SignalState) else None


def _lines(page: Overview) -> Iterator[tuple[str, str]]:
    yield "run", page.id
    yield "status", page.status + (f" ({page.exit_reason})" if page.exit_reason else "")
    if page.approval_required:
        yield "", "waits for approval"
    if page.paused is not None:
        yield from _pause(page.paused)
    version = f", code version {page.code_version}" if page.code_version else ""
    generation = f", generation {page.generation}" if page.generation > 1 else ""
    yield "handler", page.handler + version + generation
    if page.pipeline_state is not None:
        yield "state", page.pipeline_state
    if page.key is not None:
        yield "key", page.key
    yield "correlation", page.correlation_id
    if page.source is not None:
        yield "signal", f"{page.source.type} through {page.source.channel}, {page.source.source_id}"
    yield from _times(page)
    if page.error is not None:
        yield "error", _said(page.error) + (f" (step {page.error.step})" if page.error.step else "")
    if page.result is not None:
        yield "result", _short(bytes(page.result).decode())
    for name, value in page.variables.items():
        yield "variable", f"{name} = {_short(bytes(value).decode())}"
    for wait in page.waits:
        yield "waits for", _wait(wait)
    for step in page.retryable_steps:
        yield "to retry", f"step {step} failed, and the handler has not seen it"


def _pause(pause: Pause) -> Iterator[tuple[str, str]]:
    yield "paused", f"{pause.reason}, since {when(pause.since)}, by {pause.by}"
    if pause.details is not None:
        yield "", _short(bytes(pause.details).decode())


def _times(page: Overview) -> Iterator[tuple[str, str]]:
    yield "received", when(page.received_at)
    if page.started_at is not None:
        yield "started", when(page.started_at)
    if page.completed_at is not None:
        took = f", after {_lasted(page.duration_ms)}" if page.duration_ms is not None else ""
        yield "ended", when(page.completed_at) + took
        return
    if page.wake_at is not None:
        due = "" if page.suspended else ": a worker has it since, or is to take it"
        yield "wakes" if page.suspended else "due", when(page.wake_at) + due
    yield "last event", f"{when(page.last_at)}, number {page.last_seq}, by {page.last_actor}"


def _wait(wait: Wait) -> str:
    until = _until(wait.until)
    if wait.name is None:
        return f"a time{until}"
    if not wait.takes_answer:
        return f"the outcome of {wait.name}{until}"
    return f"an answer to {wait.name}{until} (step {wait.step})"


def _until(moment: datetime | None) -> str:
    return "" if moment is None else f", until {when(moment)}"


def _said(error: Failure | None) -> str:
    return "" if error is None else _short(f"{error.code}: {error.message}")


def _say_steps(steps: tuple[StepView, ...]) -> None:
    if not steps:
        return
    say("")
    say(f"{counted(len(steps), 'step')}")
    if len(steps) > _MOST_STEPS:
        say(f"  (the first {len(steps) - _MOST_STEPS} are left out: see --json)")
    table(
        _STEP_HEADINGS,
        (
            (one.step, one.type, one.status, one.attempts, _lasted(one.duration_ms), _said(one.error))
            for one in steps[-_MOST_STEPS:]
        ),
    )


def _say_effects(effects: tuple[EffectView, ...]) -> None:
    if not effects:
        return
    say("")
    say(f"{counted(len(effects), 'effect')}")
    table(
        _EFFECT_HEADINGS,
        (
            (one.id, one.type, one.status, one.tries, when(one.next_retry_at), one.step, _said(one.error))
            for one in effects
        ),
    )


def _lasted(milliseconds: int | None) -> str:
    """How long something took, as exactly as a person wants to know."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {seconds} s"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}… ({len(text)} characters: see --json)"
