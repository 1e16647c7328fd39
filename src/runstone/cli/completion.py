"""`runstone completion`: the script with which a shell completes our verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from runstone.cli.output import put


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash, put this into ~/.bashrc:  eval "$(runstone completion bash)"
    """
    completion = get_completion_class(shell)
    assert completion is not None, "the choices are the shells that click knows"
    program = ctx.find_root()
    name = program.info_name or ""
    put(completion(program.command, {}, name, f"_{name}_COMPLETE".upper()).source())
