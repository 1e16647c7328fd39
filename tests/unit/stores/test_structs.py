"""Structs in and out of rows: what is written for each of them does what a loop over its fields would."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from runstone.errors import StoreCorrupt
from runstone.stores.structs import StructTable, kinds_of


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    size: int | None = None
    name: str = ""
    price: Annotated[float | None, msgspec.Meta(description="In whole cents below.")] = None


THINGS = StructTable(
    "things",
    Thing,
    "thing_id",
    ("thing_id", "size", "name", "price"),
    into={"size": str, "price": lambda price: round(price * 100)},
    out_of={"size": int, "price": lambda cents: cents / 100},
)
CHAIR = Thing(id="a", size=7, name="chair", price=9.5)


@pytest.mark.parametrize("thing", [CHAIR, Thing(id="b"), Thing(id="c", size=0, price=0.0)])
def test_what_goes_in_comes_out(thing: Thing) -> None:
    assert THINGS.unpack(THINGS.pack(thing)) == thing


def test_values_are_bound_in_the_order_of_the_columns() -> None:
    assert THINGS.pack(CHAIR) == ["a", "7", "chair", 950]
    assert THINGS.pack(Thing(id="b")) == ["b", None, "", None]


def test_some_columns_are_packed_in_the_order_in_which_they_are_named() -> None:
    assert THINGS.packer(("price", "thing_id"))(CHAIR) == [950, "a"]
    assert THINGS.packer(("price", "thing_id"))(Thing(id="b")) == [None, "b"]


def test_each_packing_makes_a_list_of_its_own() -> None:
    assert THINGS.pack(CHAIR) is not THINGS.pack(CHAIR)


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("behind", [[], ["more"]])
def test_a_row_may_have_something_before_and_behind(first: int, behind: list[Any]) -> None:
    unpack = THINGS.unpacker(first)
    before = ["?"] * first
    assert unpack([*before, *THINGS.pack(CHAIR), *behind]) == CHAIR
    with pytest.raises(StoreCorrupt, match=r"^things a: its size cannot be read \(invalid literal"):
        unpack([*before, "a", "seven", "chair", "much", *behind])
    with pytest.raises(StoreCorrupt, match=r"^things a: its price cannot be read"):
        unpack([*before, "a", None, "chair", "much", *behind])


def test_the_type_of_a_field_is_found_below_what_is_said_of_it() -> None:
    assert kinds_of(Thing) == {"id": str, "size": int, "name": str, "price": float}

    class Mixed(msgspec.Struct):
        either: int | str
        maybe: Annotated[int, msgspec.Meta(ge=0)] | None

    assert kinds_of(Mixed) == {"either": None, "maybe": int}
