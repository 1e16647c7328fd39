"""Between structs and the rows of a table, whatever the database.

Every event and every step goes through here. So the way in and the way out are written out for each
struct, once, when its table is made: to name each field in code, as one would by hand, costs half of
what it costs to go through a list of them.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from runstone.errors import InvalidPayload, StoreCorrupt

_T = TypeVar("_T", bound=msgspec.Struct)

Changes: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""By field: what becomes of its value on the way in, or out. One that is missing stays so."""

Packer: TypeAlias = Callable[[msgspec.Struct], list[Any]]

_DAMAGE: Final = (ValueError, TypeError, ArithmeticError, AttributeError, InvalidPayload)


class StructTable(Generic[_T]):
    """One struct and the table that holds it: a column for each field, in their order."""

    def __init__(
        self, name: str, struct: type[_T], key: str, columns: Sequence[str], into: Changes, out_of: Changes
    ) -> None:
        self.name = name
        self.struct = struct
        self.key = key
        self.fields = struct.__struct_fields__
        self.columns = tuple(columns)
        self._into = into
        self._out_of = out_of
        self.pack = self.packer(self.columns)
        """A struct's values as they are bound."""
        self.unpack = self.unpacker()
        """A struct from its row."""

    def packer(self, columns: Sequence[str]) -> Packer:
        """What packs only some of the columns."""
        fields = [self.fields[self.columns.index(column)] for column in columns]
        values = ", ".join(_value(f"struct.{field}", field, self._into) for field in fields)
        pack: Packer = _written(f"lambda struct: [{values}]", self._into)
        return pack

    def unpacker(self, first: int = 0) -> Callable[[Any], _T]:
        """What unpacks a row that has something else before the place `first`."""
        values = ", ".join(
            f"{field}={_value(f'row[{place}]', field, self._out_of)}"
            for place, field in enumerate(self.fields, first)
        )
        make = _written(f"lambda row: struct({values})", self._out_of, struct=self.struct)

        def unpack(row: Any) -> _T:
            try:
                made: _T = make(row)
            except _DAMAGE as error:
                raise self._damage(tuple(row)[first:], error) from error
            return made

        return unpack

    def _damage(self, row: Sequence[Any], error: Exception) -> StoreCorrupt:
        values = zip(self.columns, self.fields, row, strict=False)  # a row may have more behind
        column = next(column for column, field, value in values if not self._is_readable(field, value))
        row_id = row[self.columns.index(self.key)]
        return StoreCorrupt(f"{self.name} {row_id}: its {column} cannot be read ({error})")

    def _is_readable(self, field: str, value: Any) -> bool:
        try:
            if value is not None and field in self._out_of:
                self._out_of[field](value)
        except _DAMAGE:
            return False
        return True


def kinds_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The type of each field: `datetime | None` and `Annotated[datetime, …]` are datetimes to a table."""
    hints = typing.get_type_hints(struct)
    return {field: _plain(hints[field]) for field in struct.__struct_fields__}


def _plain(hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return _plain(inner[0]) if len(inner) == 1 else None
    if typing.get_origin(hint) is typing.Annotated:
        return _plain(typing.get_args(hint)[0])
    return hint


def _value(value: str, field: str, changes: Changes) -> str:
    return f"None if {value} is None else change_{field}({value})" if field in changes else value


def _written(code: str, changes: Changes, **names: Any) -> Any:
    """Code is made of the names of fields and of places in rows, and never of anything in them."""
    return eval(code, {f"change_{field}": change for field, change in changes.items()} | names)
