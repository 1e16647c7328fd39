"""Between structs and tables: the columns are the struct's fields, in their order.

Ids and hashes are text in Python, `uuid` and `bytea` in a table; the server turns them back into text
when they are read, for that costs it less than it costs us. Payloads are read as text too: a
connection of the caller's own may have been taught to parse JSON, and the very bytes would be lost.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from runstone.core import codec
from runstone.core.checkpoint import Checkpoint
from runstone.core.events import Event
from runstone.core.rows import TABLES, Row
from runstone.core.stream import StreamHead
from runstone.core.tombstone import Tombstone
from runstone.stores.structs import StructTable, kinds_of

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


class Table(StructTable[_T]):
    """The same, the types of its columns, and how they are read."""

    def __init__(
        self,
        name: str,
        struct: type[_T],
        *,
        key: str = "id",
        renamed: dict[str, str] | None = None,
        hashes: frozenset[str] = frozenset(),
    ) -> None:
        kinds = kinds_of(struct)
        columns = [(renamed or {}).get(field, field) for field in kinds]
        super().__init__(
            f"{SCHEMA}.{name}",
            struct,
            key,
            columns,
            into={
                field: bytes.fromhex if field in hashes else _text if kind is Raw else _encoded
                for field, kind in kinds.items()
                if field in hashes or kind in (Raw, Any)
            },
            out_of={
                field: _raw if kind is Raw else codec.parse
                for field, kind in kinds.items()
                if kind in (Raw, Any)
            },
        )
        self.types = tuple(
            "bytea" if column in hashes else "uuid" if column in _IDS else _TYPES.get(kind, "text")
            for column, kind in zip(columns, kinds.values(), strict=True)
        )
        self.selected = ", ".join(
            f"encode({column}, 'hex')"
            if column in hashes
            else f"{column}::text"
            if kind in ("uuid", "json")
            else column
            for column, kind in zip(columns, self.types, strict=True)
        )


def _raw(text: str) -> Raw:
    return Raw(text.encode())


def _text(raw: Raw) -> str:
    return str(raw, "utf-8")


def _encoded(value: Any) -> str:
    return codec.encode(value).decode()


EVENTS: Final = Table("orchestration_events", Event, hashes=frozenset({"idempotency_key", "prev_hash"}))
STREAMS: Final = Table("streams", StreamHead, renamed={"stream_id": "id"}, hashes=frozenset({"head"}))
CHECKPOINTS: Final = Table("run_checkpoints", Checkpoint)
TOMBSTONES: Final = Table("tombstones", Tombstone, key="stream_id", hashes=frozenset({"head"}))
ROWS: Final[dict[type[Row], Table[Any]]] = {
    struct: Table(name, struct, key="run_id" if name == "run_queue" else "id")
    for struct, name in TABLES.items()
}
"""Where the rows of each kind lie."""
