"""Between structs and tables: the columns are the struct's fields, in their order.

Ids and hashes are text in Python, `uuid` and `bytea` in a table; the server turns them back into text
when they are read, for that costs it less than it costs us. Payloads are read as text too: a
connection of the caller's own may have been taught to parse JSON, and the very bytes would be lost.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw

from runstone.core import codec
from runstone.core.checkpoint import Checkpoint
from runstone.core.events import Event
from runstone.core.rows import TABLES, Row
from runstone.core.stream import StreamHead
from runstone.core.tombstone import Tombstone
from runstone.errors import InvalidPayload, StoreCorrupt

_T = TypeVar("_T", bound=msgspec.Struct)

SCHEMA: Final = "runstone"

_IDS: Final = frozenset(
    {"id", "tenant_id", "stream_id", "run_id", "signal_id", "step_id", "aggregate_id"}
    | {"correlation_id", "causation_id", "control_signal_id", "effect_id", "last_run_id"}
)
_TYPES: Final[dict[Any, str]] = {
    datetime: "timestamptz",
    Raw: "json",
    Any: "json",
    bool: "boolean",
    int: "bigint",
    bytes: "bytea",
}
"""By type of field; all others are text."""


class Table(Generic[_T]):
    """One struct and the table that holds it."""

    def __init__(
        self,
        name: str,
        struct: type[_T],
        *,
        key: str = "id",
        renamed: dict[str, str] | None = None,
        hashes: frozenset[str] = frozenset(),
    ) -> None:
        hints = typing.get_type_hints(struct)
        self.name = f"{SCHEMA}.{name}"
        self.struct = struct
        self.key = key
        self.fields = struct.__struct_fields__
        self.columns = tuple((renamed or {}).get(field, field) for field in self.fields)
        kinds = [_plain(hints[field]) for field in self.fields]
        self.types = tuple(
            "bytea" if column in hashes else "uuid" if column in _IDS else _TYPES.get(kind, "text")
            for column, kind in zip(self.columns, kinds, strict=True)
        )
        self._into = [
            (place, bytes.fromhex if column in hashes else _text if kind is Raw else _encoded)
            for place, (column, kind) in enumerate(zip(self.columns, kinds, strict=True))
            if column in hashes or kind in (Raw, Any)
        ]
        self._out_of = [
            (place, _raw if kind is Raw else codec.parse)
            for place, kind in enumerate(kinds)
            if kind in (Raw, Any)
        ]
        self.selected = ", ".join(
            f"encode({column}, 'hex')"
            if column in hashes
            else f"{column}::text"
            if kind in ("uuid", "json")
            else column
            for column, kind in zip(self.columns, self.types, strict=True)
        )

    def pack(self, struct: msgspec.Struct) -> list[Any]:
        """A struct's values as they are bound."""
        values = list(msgspec.structs.astuple(struct))
        for place, into in self._into:
            if values[place] is not None:
                values[place] = into(values[place])
        return values

    def packer(self, names: Sequence[str]) -> Callable[[msgspec.Struct], list[Any]]:
        """What packs only some of the columns."""
        get = attrgetter(*(self.fields[self.columns.index(name)] for name in names))
        chosen = [self.columns.index(name) for name in names]
        into = [(chosen.index(place), change) for place, change in self._into if place in chosen]

        def pack(struct: msgspec.Struct) -> list[Any]:
            values = list(get(struct))
            for place, change in into:
                if values[place] is not None:
                    values[place] = change(values[place])
            return values

        return pack

    def unpack(self, row: Iterable[Any]) -> _T:
        """A struct from a row of `selected`."""
        values = list(row)
        place = 0
        try:
            for place, out_of in self._out_of:
                if values[place] is not None:
                    values[place] = out_of(values[place])
        except (ValueError, TypeError, InvalidPayload) as error:
            row_id = values[self.columns.index(self.key)]
            what = f"{self.name} {row_id}: its {self.columns[place]} cannot be read ({error})"
            raise StoreCorrupt(what) from error
        return self.struct(**dict(zip(self.fields, values, strict=True)))


def _raw(text: str) -> Raw:
    return Raw(text.encode())


def _text(raw: Raw) -> str:
    return str(raw, "utf-8")


def _encoded(value: Any) -> str:
    return codec.encode(value).decode()


def _plain(hint: Any) -> Any:
    """`datetime | None` and `Annotated[datetime, …]` are datetimes to a table."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return _plain(inner[0]) if len(inner) == 1 else None
    if typing.get_origin(hint) is typing.Annotated:
        return _plain(typing.get_args(hint)[0])
    return hint


EVENTS: Final = Table("orchestration_events", Event, hashes=frozenset({"idempotency_key", "prev_hash"}))
STREAMS: Final = Table("streams", StreamHead, renamed={"stream_id": "id"}, hashes=frozenset({"head"}))
CHECKPOINTS: Final = Table("run_checkpoints", Checkpoint)
TOMBSTONES: Final = Table("tombstones", Tombstone, key="stream_id", hashes=frozenset({"head"}))
ENTITIES: Final[dict[type[Row], Table[Any]]] = {
    struct: Table(name, struct, key="run_id" if name == "run_queue" else "id")
    for struct, name in TABLES.items()
}
