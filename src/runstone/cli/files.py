"""Where a verb's result goes with `-o`: to a file, whole or not at all, or to whatever else has that name.

A link is followed: what it points to is replaced, and the link stays. A pipe, a terminal or a device is
written to as it is; nothing ever takes its place. Errors tell of the name that was given.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

STANDARD: Final = "-"


def check_target(output: str, *, force: bool) -> None:
    """Refuses what cannot be written to, or must not; to be asked before work is done for it."""
    if output == STANDARD:
        return
    if not output:
        raise click.UsageError("The name of the file is empty: name one, or - for standard output.")
    found = _found(output)
    if found is None:
        folder = Path(os.path.realpath(output)).parent if os.path.basename(output) else Path(output)
        if not folder.is_dir():
            raise click.UsageError(
                f"There is no folder {_shown(folder, output)} for {output}: make it first."
            )
    elif stat.S_ISDIR(found.st_mode):
        raise click.UsageError(f"{output} is a folder: name a file in it.")
    elif stat.S_ISREG(found.st_mode) and not force and not _is_stdout(found):
        raise _exists(output)


def write_target(output: str, content: bytes, *, force: bool) -> None:
    """Writes it all, or says why not."""
    check_target(output, force=force)
    found = None if output == STANDARD else _found(output)
    if output == STANDARD or _is_stdout(found):
        sys.stdout.buffer.write(content)
    elif found is None or stat.S_ISREG(found.st_mode):
        _write_file(output, content, force, found)
    else:
        _write_through(output, content)


def _found(output: str) -> os.stat_result | None:
    """What has this name, links followed."""
    try:
        return os.stat(output)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_stdout(found: os.stat_result | None) -> bool:
    """Whether it is /dev/stdout under any name: what was written there before must stay."""
    try:
        return found is not None and os.path.samestat(found, os.fstat(sys.stdout.fileno()))
    except (AttributeError, OSError, ValueError):  # there is none, it was closed, or it is no file
        return False


def _shown(folder: Path, output: str) -> Path:
    """The missing folder as it was named, unless a link leads elsewhere."""
    named = Path(output).parent
    return folder if named.is_dir() else named


def _write_through(output: str, content: bytes) -> None:
    """Into a pipe or a device; if it is gone meanwhile, no file is made in its place."""
    with _named(output), open(os.open(output, os.O_WRONLY | os.O_NOCTTY), "wb") as file:
        file.write(content)


def _write_file(output: str, content: bytes, force: bool, replaced: os.stat_result | None) -> None:
    """All of it or nothing: under another name first, then, durable, under its own.

    Who may read what is replaced may read what replaces it, and nobody else, at no time.
    """
    target = Path(os.path.realpath(output))
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with _named(output), open(draft, "xb") as file:
            if replaced is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(replaced.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with _named(output):
            _publish(draft, target, force)
    except FileExistsError as error:
        raise _exists(output) from error
    finally:
        draft.unlink(missing_ok=True)


def _publish(draft: Path, target: Path, force: bool) -> None:
    """Gives the file its name; a link, unlike a rename, never replaces what came in between."""
    if not force:
        try:
            os.link(draft, target)
            return
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
    os.replace(draft, target)


@contextmanager
def _named(output: str) -> Iterator[None]:
    """Nobody knows the name of the draft, and a failed write has none at all."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, output) from error


def _exists(output: str) -> click.UsageError:
    return click.UsageError(f"{output} exists: choose another name, or replace it with --force.")
