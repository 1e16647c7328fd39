"""How results are shown: tables and bars to a person at a terminal, plain lines to a program."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from traceback import TracebackException
from types import TracebackType
from typing import Final, TypeVar

import msgspec

from runstone.audit.trace import printable
from runstone.core import codec
from runstone.core.ids import UUID_PATTERN

_T = TypeVar("_T")

_NARROWEST: Final = 5
"""How narrow a column may get whose cells go on in the next line."""
_ID: Final = re.compile(UUID_PATTERN)
_TIME: Final = re.compile(r"^\d{4}-(\d\d-\d\d)T(\d\d:\d\d)[:.\d]*Z$")


def put(text: str) -> None:
    """Output for a program, as it is. It is not flushed: a listing can be long."""
    sys.stdout.write(f"{text}\n")


def say(line: str) -> None:
    """One line for a person. It may hold anybody's text: nothing of it is left that a terminal would obey."""
    put(printable(line))


def say_data(value: object) -> None:
    """A value as JSON on many lines, for a person."""
    for line in _json(value, indent=2).split("\n"):
        say(line)


def say_json(value: object) -> None:
    """A value as JSON on one line, for a program; payloads in it may have been written with line breaks."""
    put(_json(value, indent=-1))


def _json(value: object, indent: int) -> str:
    """To a program it says the same as ever; what a terminal would obey is escaped as JSON has it."""
    text = msgspec.json.format(codec.encode(value), indent=indent).decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


class LogLines(logging.Formatter):
    """Log records for a terminal: they tell of anybody's errors, on one line or on several."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def log_to_stderr(form: str, level: int) -> None:
    """Has the process's log written for a person."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines(form))
    logging.basicConfig(handlers=[handler], level=level)


def show_traceback(error: BaseException, frames: TracebackType | None) -> None:
    """Where an error came from, on stderr, through these frames of its traceback."""
    report = "".join(TracebackException(type(error), error, frames).format())
    for line in report.removesuffix("\n").split("\n"):
        sys.stderr.write(f"{printable(line)}\n")


def when(moment: datetime | None) -> str:
    """A time to the second, or nothing."""
    return "" if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def counted(number: int, noun: str) -> str:
    """`1 event`, `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table at a terminal, else its rows with tabs between their values.

    However narrow the terminal is, ids stay whole: they are there to be pasted.
    """
    cells = ([printable("" if value is None else str(value)) for value in row] for row in rows)
    if not sys.stdout.isatty():
        for row in cells:
            put("\t".join(row))
        return
    _draw(headings, list(cells))


def _draw(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = [[heading, *(row[place] for row in rows)] for place, heading in enumerate(headings)]
    if sum(map(_widest, columns)) + len(columns) > console.width:
        columns = [[heading, *map(_squeezed, cells)] for heading, *cells in columns]
    drawn = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    least = 0
    for column in columns:
        whole = _stays_whole(column[1:])
        least += (_widest(column) if whole else min(_widest(column), _NARROWEST)) + 1
        drawn.add_column(column[0], no_wrap=whole, overflow="fold")
    for row in zip(*(column[1:] for column in columns), strict=True):
        drawn.add_row(*map(Text, row))
    # In a terminal that is too narrow even so, the terminal itself breaks the lines.
    (console if console.width >= least else Console(width=least)).print(drawn)


def _widest(column: Sequence[str]) -> int:
    return max(map(len, column))


def _squeezed(cell: str) -> str:
    """A time to the minute, without its year: there is no room for more."""
    return _TIME.sub(r"\1 \2", cell)


def _stays_whole(cells: Sequence[str]) -> bool:
    """Ids are there to be pasted, and a status in two lines is none."""
    return any(_ID.match(cell) for cell in cells) or all(
        len(cell) < 10 and cell == cell.upper() for cell in cells
    )


def listing(
    found: Iterable[_T], as_json: bool, headings: Sequence[str], row: Callable[[_T], Sequence[object]]
) -> None:
    """What was found: a table, or all of it, one JSON object a line."""
    if not as_json:
        table(headings, map(row, found))
        return
    for one in found:
        say_json(one)


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
