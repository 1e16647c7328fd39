"""How results are shown: tables and bars to a person at a terminal, plain lines to a program."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

import msgspec

from runstone.audit.trace import printable
from runstone.core import codec

_T = TypeVar("_T")


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


def when(moment: datetime | None) -> str:
    """A time to the second, or nothing."""
    return "" if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def counted(number: int, noun: str) -> str:
    """`1 event`, `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table at a terminal, else its rows with tabs between their values."""
    cells = ([printable("" if value is None else str(value)) for value in row] for row in rows)
    if not sys.stdout.isatty():
        for row in cells:
            put("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*headings, box=None, header_style="bold", pad_edge=False)
    for row in cells:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


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
