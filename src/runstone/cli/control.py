"""`runstone control`: control signals to a run, as a handle sends them, without its app (§ENG-25).

Whoever can reach the store may send them. Each stands in the run's log with who sent it, and why it was
refused if it was.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import click
from msgspec import UNSET

from runstone.cli.lookup import load_run
from runstone.cli.options import Options, with_options
from runstone.cli.outbox import operator
from runstone.cli.output import say
from runstone.cli.overview import open_waits, retryable_steps, waits_for_approval
from runstone.core import codec
from runstone.core.keys import control_signal_id
from runstone.core.payloads import ControlKind, OptionalJson
from runstone.core.state import RunState
from runstone.core.transitions import RUN
from runstone.errors import ControlRefused, InvalidPayload, NotFound, TooManyControls
from runstone.ports.store import Store


@click.group("control", invoke_without_command=True)
@with_options
@click.pass_context
def control_command(ctx: click.Context) -> None:
    """Tell a run something: resume, answer, cancel and more.

    It needs no app and no worker of its own: workers see it in the store. Who did it stands in the log.
    `runstone show RUN` says what can be done.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """What every control signal takes."""
    for decorate in (click.pass_obj, with_options, _ID):
        command = decorate(command)
    return command


_ID: Final = click.option(
    "--id",
    "signal_id",
    metavar="ID",
    help="A name for this signal: sent again under the same one, it is one signal.",
)
_REASON: Final = click.option("--reason", metavar="TEXT", default="", help="Why; it stands in the log.")


@control_command.command("approve")
@click.argument("run")
@_common
def approve_command(options: Options, run: str, signal_id: str | None) -> None:
    """Let a run start that waits for approval.

    For example:  runstone control approve order-42
    """
    run_id, _ = asyncio.run(_send(options, run, "APPROVE", signal_id))
    say(f"{run_id} is approved")


@control_command.command("pause")
@click.argument("run")
@_REASON
@_common
def pause_command(options: Options, run: str, reason: str, signal_id: str | None) -> None:
    """Stop a run after the steps that are under way.

    For example:  runstone control pause order-42 --reason "the bank is closed"
    """
    run_id, _ = asyncio.run(_send(options, run, "PAUSE", signal_id, reason=reason))
    say(f"{run_id} is paused; steps that are under way end")


@control_command.command("resume")
@click.argument("run")
@_common
def resume_command(options: Options, run: str, signal_id: str | None) -> None:
    """Let a paused run go on, after a fix or whenever you like.

    A handler whose step had parked the run sees its failure then; `retry` tries the step again instead.

    For example:  runstone control resume order-42
    """
    run_id, _ = asyncio.run(_send(options, run, "RESUME", signal_id))
    say(f"{run_id} goes on")


@control_command.command("cancel")
@click.argument("run")
@_REASON
@_common
def cancel_command(options: Options, run: str, reason: str, signal_id: str | None) -> None:
    """End a run at once.

    Effects of it that nobody has begun are withdrawn.

    For example:  runstone control cancel order-42 --reason "ordered twice"
    """
    run_id, _ = asyncio.run(_send(options, run, "CANCEL", signal_id, reason=reason))
    say(f"{run_id} is cancelled")


@control_command.command("retry")
@click.argument("run")
@click.argument("step")
@_common
def retry_command(options: Options, run: str, step: str, signal_id: str | None) -> None:
    """Try the step again that parked its run.

    Or one that failed while the run was paused: it goes on with the last of them. STEP is its key, as
    `runstone show` has it.

    For example:  runstone control retry order-42 charge#1
    """
    run_id, state = asyncio.run(_send(options, run, "RETRY_STEP", signal_id, target=step))
    left = retryable_steps(state)
    still = f"; it stays paused until these are tried again too: {', '.join(left)}" if left else ""
    say(f"{run_id} tries {step} again{still}")


@control_command.command("answer")
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON")
@click.option("--early", is_flag=True, help="Also if no wait has this name yet: it is kept for one to come.")
@_common
def answer_command(
    options: Options, run: str, name: str, value: str, early: bool, signal_id: str | None
) -> None:
    """Answer a wait of a run; - reads the JSON from standard input.

    A text needs the quotes of JSON, and those of the shell around them.

    For example:  runstone control answer order-42 reply '"yes"'
    """
    data = _json(sys.stdin.buffer.read() if value == "-" else value)
    run_id, _ = asyncio.run(_send(options, run, "ANSWER", signal_id, target=name, data=data, early=early))
    say(f"{run_id} has its answer to {name}")


def _json(text: str | bytes) -> OptionalJson:
    try:
        return codec.canonical(codec.parse(text))
    except InvalidPayload as error:
        hint = " A text needs quotes of its own: '\"yes\"'." if _is_word(text) else ""
        raise click.UsageError(f"The answer is {error}.{hint}") from error


def _is_word(text: str | bytes) -> bool:
    return isinstance(text, str) and not text.lstrip().startswith(("{", "[", '"'))


async def _send(
    options: Options,
    name: str,
    kind: ControlKind,
    signal_id: str | None,
    *,
    target: str | None = None,
    data: OptionalJson = UNSET,
    reason: str = "",
    early: bool = True,
) -> tuple[str, RunState]:
    """Sends it; the run as it is then. A refusal says what could be done instead."""
    async with _gateway(options) as (store, control):
        before, _ = await load_run(store, options.tenant_id, name)
        run_id = before.stream_id
        if not early:
            _check_wait(before, target or "", signal_id)
        try:
            await control(
                options.tenant_id,
                run_id,
                kind,
                sender=operator().actor,
                target=target,
                data=data,
                reason=reason,
                control_signal_id=signal_id,
            )
        except TooManyControls:
            raise
        except ControlRefused as error:
            now, _ = await load_run(store, options.tenant_id, run_id)
            possible = _possible(now, kind, target)
            raise ControlRefused(f"{error}{possible}") from error
        after, _ = await load_run(store, options.tenant_id, run_id)
        return run_id, after


@asynccontextmanager
async def _gateway(options: Options) -> AsyncIterator[tuple[Store, Callable[..., Any]]]:
    """The same way into the log that handles use, with the bell that workers elsewhere hear."""
    from runstone.runtime import Runtime

    async with options.open_store() as store:
        runtime = Runtime(store, {}, worker=False, threads=0)
        runtime.start()
        try:
            yield store, runtime.gateway.control
        finally:
            await runtime.stop()


def _check_wait(state: RunState, name: str, signal_id: str | None) -> None:
    """A name that is misspelt would be kept for ever: it takes a word that this is meant (§ENG-24).

    Not for what has ended, nor for what was sent before: about these the run's log decides.
    """
    assert state.run is not None
    sent = signal_id is not None and control_signal_id(state.stream_id, signal_id) in state.controls
    if sent or state.run.status in RUN.terminal:
        return
    if name not in _answerable(state):
        raise NotFound(
            f"No wait of run {state.stream_id} is called {name!r} now. {_waits(state)}. "
            "With --early the answer is kept for a wait to come"
        )


def _answerable(state: RunState) -> list[str]:
    return [wait.name for wait in open_waits(state) if wait.takes_answer and wait.name is not None]


def _waits(state: RunState) -> str:
    return f"Open waits: {_listed(_answerable(state))}"


def _possible(state: RunState, kind: ControlKind, target: str | None) -> str:
    """What could be done instead, where the refusal itself does not say so."""
    assert state.run is not None
    if state.run.status in RUN.terminal:
        return ". Nothing can be told to a run that has ended: see `runstone show`"
    if kind == "RETRY_STEP":
        steps = retryable_steps(state)
        named = steps and target not in state.latest_steps
        return "" if named else f". Steps that can be tried again: {_listed(steps)}"
    if kind == "ANSWER":
        return f". {_waits(state)}"
    return f". What it takes now: {_listed(verb for verb, can in _verbs(state) if can)}"


def _verbs(state: RunState) -> Iterable[tuple[str, bool]]:
    assert state.run is not None
    status = state.run.status
    yield "approve", waits_for_approval(state)
    yield "pause", status == "RUNNING"
    yield "resume", status == "PAUSED"
    yield "retry", bool(retryable_steps(state))
    yield "answer", bool(_answerable(state))
    yield "cancel", True


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
