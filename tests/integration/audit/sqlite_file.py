"""Where in a SQLite file the value of each column stands, read from the file format and not through SQLite.

https://www.sqlite.org/fileformat.html: a table is a tree of pages, a row is a record in a cell, and
what does not fit into its page goes on in overflow pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LEAF_TABLE: Final = 0x0D
_INNER_TABLE: Final = 0x05
_LEAF_INDEX: Final = 0x0A
_INNER_INDEX: Final = 0x02
_SIZES: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Bytes of a value by its serial type, up to 9: NULL, integers, a float, and the constants 0 and 1."""


@dataclass(frozen=True)
class Value:
    """One value of one row: the offset in the file of each of its bytes."""

    table: str
    column: str
    offsets: tuple[int, ...]


def values(path: Path) -> list[Value]:
    """Every value in every table of the file that takes any bytes."""
    with sqlite3.connect(path) as connection:
        tables = connection.execute(
            "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        columns = {
            name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name, _ in tables
        }
    connection.close()
    file = _File(path.read_bytes())
    return [
        Value(name, column, offsets)
        for name, root in tables
        for record in file.records(root)
        for column, offsets in zip(columns[name], file.fields(record), strict=False)
        if offsets
    ]


class _File:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.page_size = self._number(16, 2) if self._number(16, 2) != 1 else 65536
        self.usable = self.page_size - content[20]

    def records(self, page: int) -> Iterator[list[int]]:
        """The records of a tree, each as the offsets of its bytes."""
        start = (page - 1) * self.page_size
        header = start + (100 if page == 1 else 0)
        kind = self.content[header]
        inner = kind in (_INNER_TABLE, _INNER_INDEX)
        for place in range(self._number(header + 3, 2)):
            cell = start + self._number(header + (12 if inner else 8) + 2 * place, 2)
            if inner:
                yield from self.records(self._number(cell, 4))
                cell += 4
            if kind != _INNER_TABLE:
                yield self._payload(cell, kind == _LEAF_TABLE)
        if inner:
            yield from self.records(self._number(header + 8, 4))

    def fields(self, record: list[int]) -> Iterator[tuple[int, ...]]:
        """The offsets of each value of a record."""
        header_size, place = self._varint(record, 0)
        body = header_size
        while place < header_size:
            kind, place = self._varint(record, place)
            size = _SIZES[kind] if kind < len(_SIZES) else (kind - 12) // 2
            yield tuple(record[body : body + size])
            body += size

    def _payload(self, cell: int, with_rowid: bool) -> list[int]:
        where = list(range(cell, cell + 20))
        size, used = self._varint(where, 0)
        if with_rowid:
            _, used = self._varint(where, used)
        first = cell + used
        local = self._local(size, with_rowid)
        offsets = list(range(first, first + local))
        following = self._number(first + local, 4) if local < size else 0
        while following:
            page = (following - 1) * self.page_size
            taken = min(size - len(offsets), self.usable - 4)
            offsets += range(page + 4, page + 4 + taken)
            following = self._number(page, 4) if len(offsets) < size else 0
        return offsets

    def _local(self, size: int, with_rowid: bool) -> int:
        """How much of a payload stands in its own page."""
        most = self.usable - 35 if with_rowid else (self.usable - 12) * 64 // 255 - 23
        least = (self.usable - 12) * 32 // 255 - 23
        if size <= most:
            return size
        fitting = least + (size - least) % (self.usable - 4)
        return fitting if fitting <= most else least

    def _number(self, offset: int, size: int) -> int:
        return int.from_bytes(self.content[offset : offset + size], "big")

    def _varint(self, where: list[int], place: int) -> tuple[int, int]:
        """A number of one to nine bytes, and the place after it."""
        number = 0
        for length in range(1, 10):
            byte = self.content[where[place + length - 1]]
            if length == 9:
                return number << 8 | byte, place + 9
            number = number << 7 | byte & 0x7F
            if byte < 0x80:
                return number, place + length
        raise AssertionError("the ninth byte is the last")
