"""How results are shown: tables and bars to a person at a terminal, plain lines to a program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from runstone.audit.trace import printable
from runstone.core import codec


def say(line: str) -> None:
    """One line of output. It is not flushed: a listing can be long."""
    sys.stdout.write(f"{line}\n")


def say_json(value: object) -> None:
    """A value as JSON on one line; payloads in it may have been written with line breaks."""
    say(msgspec.json.format(codec.encode(value), indent=-1).decode())


def counted(number: int, noun: str) -> str:
    """`1 event`, `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table at a terminal, else its rows with tabs between their values."""
    cells = ([printable("" if value is None else str(value)) for value in row] for row in rows)
    if not sys.stdout.isatty():
        for row in cells:
            say("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*headings, box=None, header_style="bold", pad_edge=False)
    for row in cells:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar that whoever works below moves on; at a terminal only, and gone when the work is done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)
