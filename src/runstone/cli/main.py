"""`runstone`: finds the verb, runs it, and tells in one line what went wrong.

Exit codes: 0 all is well, 1 something was found that is not as it has to be, 2 it could not be
done, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Final, NoReturn

import click

from runstone import __version__
from runstone.cli.options import Options, with_options
from runstone.errors import RunstoneError

NAME: Final = "runstone"
VERBS: Final = {
    "completion": "completion",
    "control": "control",
    "db": "db",
    "doctor": "doctor",
    "effects": "effects",
    "entities": "entities",
    "events": "events",
    "export": "bundles",
    "import": "bundles",
    "outbox": "outbox",
    "pipeline": "pipeline",
    "runs": "runs",
    "schedules": "schedules",
    "show": "show",
    "trace": "trace",
    "verify": "verify",
    "worker": "worker",
}
"""Each verb and the module that knows it."""

FAILED: Final = 2
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141


class _Verbs(click.Group):
    """Loads a verb's module when somebody asks for the verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = import_module(f"{NAME}.cli.{VERBS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            outcome = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered would fail again when Python flushes it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(PIPE_CLOSED)
        return outcome


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from runstone.core.contract import CONTRACT_VERSION

        click.echo(f"{NAME} {__version__} (contract {CONTRACT_VERSION})")
        ctx.exit()


@click.group(
    cls=_Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the versions of the package and of its contract.",
)
@with_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable runs, written in stone: look at them, prove them, carry them around.

    RUN is a run's id, the beginning of one (6 characters or more), or the key you gave it.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = Options()
    try:
        code = cli.main(arguments, prog_name=NAME, standalone_mode=False, obj=options)
    except click.Abort:
        code = INTERRUPTED
    except (click.ClickException, RunstoneError, OSError) as error:
        if options.debug:
            _show_traceback(error)
        click.echo(f"{NAME}: {_one_line(error)}", err=True)
        code = FAILED
    except Exception as error:  # a mistake of ours; Python's own exit code would say that something was found
        _show_traceback(error)
        code = FAILED
    sys.exit(code if isinstance(code, int) else 0)


def _show_traceback(error: Exception) -> None:
    from runstone.cli.output import show_traceback

    show_traceback(error, error.__traceback__)


def _one_line(error: Exception) -> str:
    from runstone.audit.trace import printable

    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text += f" See `{error.ctx.command_path} --help`."
    return printable(" ".join(text.split()))
