"""Between structs and tables: the columns are the struct's fields, in their order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from runstone.core import codec
from runstone.core.checkpoint import Checkpoint
from runstone.core.events import Event
from runstone.core.rows import CHANGING, TABLES, Row
from runstone.core.stream import StreamHead
from runstone.core.tombstone import Tombstone
from runstone.stores.structs import StructTable, kinds_of

_T = TypeVar("_T", bound=msgspec.Struct)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """A time as SQLite keeps it."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """A time as Python keeps it."""
    return _EPOCH + timedelta(microseconds=micros)


def _text(raw: Raw) -> str:
    return bytes(raw).decode()


def _raw(text: str) -> Raw:
    """JSON holds no NUL: that is what a page reads as that the disk has lost."""
    if "\0" in text:
        raise ValueError("there is a NUL in it")
    return Raw(text.encode())


def _flag(value: int) -> bool:
    """Nothing but 0 and 1: any other number was not written by this store."""
    if value not in (0, 1):
        raise ValueError(f"{value!r} is neither 0 nor 1")
    return bool(value)


_CONVERSIONS: Final[dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    datetime: (to_micros, from_micros),
    Raw: (_text, _raw),
    bool: (int, _flag),
    Any: (lambda value: codec.encode(value).decode(), codec.parse),
}
"""By type of field: how it goes in, how it comes out. All others go as they are."""


class Table(StructTable[_T]):
    """The same, and the statements that write its rows."""

    def __init__(
        self,
        name: str,
        struct: type[_T],
        key: str = "id",
        columns: Sequence[str] | None = None,
        changing: Sequence[str] = (),
    ) -> None:
        changes = {
            field: _CONVERSIONS[kind] for field, kind in kinds_of(struct).items() if kind in _CONVERSIONS
        }
        super().__init__(
            name,
            struct,
            key,
            columns or struct.__struct_fields__,
            into={field: into for field, (into, _) in changes.items()},
            out_of={field: out_of for field, (_, out_of) in changes.items()},
        )
        self._changing = changing
        self.selected = ", ".join(self.columns)

    @cache  # noqa: B019  (tables live as long as the program)
    def insert(self, rows: int) -> str:
        """An insert of up to so many rows at once: those without a key are not there."""
        marks = f"({', '.join('?' * len(self.columns))})"
        names = ", ".join(f"column{place}" for place in range(1, len(self.columns) + 1))
        key = self.columns.index(self.key) + 1
        values = f"(VALUES {', '.join([marks] * rows)}) WHERE column{key} IS NOT NULL"
        return f"INSERT INTO {self.name} ({self.selected}) SELECT {names} FROM {values}"

    @cache  # noqa: B019
    def upsert(self, rows: int) -> str:
        """The same, where a row that is there already takes the new values."""
        return self._upsert(rows, [name for name in self.columns if name != self.key])

    @cache  # noqa: B019
    def write(self, rows: int) -> str:
        """The same, where a row that is there already takes the values that can have changed."""
        return self._upsert(rows, self._changing) if self._changing else self.insert(rows)

    def _upsert(self, rows: int, names: Sequence[str]) -> str:
        changes = ", ".join(f"{name} = excluded.{name}" for name in names)
        return f"{self.insert(rows)} ON CONFLICT ({self.key}) DO UPDATE SET {changes}"


EVENTS: Final = Table("orchestration_events", Event)
STREAMS: Final = Table(
    "streams",
    StreamHead,
    columns=("id", *StreamHead.__struct_fields__[1:]),
    changing=("last_seq", "head", "last_at", "fence"),
)
CHECKPOINTS: Final = Table("run_checkpoints", Checkpoint)
TOMBSTONES: Final = Table("tombstones", Tombstone, "stream_id")
ROWS: Final[dict[type[Row], Table[Any]]] = {
    struct: Table(name, struct, "run_id" if name == "run_queue" else "id", changing=CHANGING[struct])
    for struct, name in TABLES.items()
}
"""Where the rows of each kind lie."""


SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""How many rows a statement takes: a few prepared ones serve every batch, each table's in a single call."""


def chunks(rows: Sequence[list[Any]], most: int = SIZES[-1]) -> Iterable[list[list[Any]]]:
    """Splits rows into as few parts as can be, each filled up to one of the sizes with rows of nothing."""
    for start in range(0, len(rows), most):
        part = list(rows[start : start + most])
        size = SIZES[bisect_left(SIZES, len(part))]
        part += [[None] * len(part[0])] * (size - len(part))
        yield part
