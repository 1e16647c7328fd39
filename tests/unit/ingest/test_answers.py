"""Answers against the schemas of their waits: the same judgement as the types they come from."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta
from pydantic import BaseModel

from runstone.engine.values import Shape, write
from runstone.errors import InvalidPayload
from runstone.ingest.answers import misfit


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=0, lt=10)] = 0


class Tree(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=5, pattern="^[a-z]*$")]
    leaves: Annotated[list[Leaf], Meta(max_length=2)] = []
    parent: Tree | None = None


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    barks: bool


TYPES: list[Any] = [
    bool,
    int,
    float,
    str,
    None,
    int | None,
    list[int],
    dict[str, int],
    tuple[int, str],
    Literal["a", 1],
    Colour,
    Leaf,
    Tree,
    Cat | Dog,
    Any,
]

VALUES: list[Any] = [
    None,
    True,
    0,
    1.5,
    "",
    "a",
    "red",
    [],
    [1, "a"],
    [1],
    {},
    {"a": 1},
    {"a": "b"},
    {"count": 3},
    {"count": 10},
    {"count": -1},
    {"count": True},
    {"count": 1, "more": 2},
    {"name": "oak"},
    {"name": ""},
    {"name": "OAK"},
    {"name": "sequoia"},
    {"name": "oak", "leaves": [{}, {"count": 2}]},
    {"name": "oak", "leaves": [{}, {}, {}]},
    {"name": "oak", "parent": {"name": "root", "parent": {"name": ""}}},
    {"type": "cat", "lives": 9},
    {"type": "dog", "lives": 9},
    {"type": "cow"},
]


def fits(kind: Any, value: Any) -> bool:
    try:
        Shape(kind, "it").read(write(value))
    except InvalidPayload:
        return False
    return True


def schema_of(kind: Any) -> dict[str, Any]:
    schema = Shape(kind, "it").schema()
    found: dict[str, Any] = msgspec.json.decode(schema) if isinstance(schema, msgspec.Raw) else {}
    return found


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_value_fits_when_its_type_can_read_it(kind: Any) -> None:
    schema = schema_of(kind)
    for value in VALUES:
        assert (misfit(value, schema) is None) == fits(kind, value), (value, misfit(value, schema))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-20, 20) | st.text("abAB", max_size=7),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "leaves", "parent", "count", "type", "x"]), inner, max_size=4
        )
    ),
)


@given(json_values, st.sampled_from(TYPES))
def test_nothing_that_its_type_can_read_is_refused(value: Any, kind: Any) -> None:
    if fits(kind, value):
        assert misfit(value, schema_of(kind)) is None


def test_it_says_where() -> None:
    schema = schema_of(Tree)
    assert misfit({"name": "oak", "leaves": [{}, {"count": 10}]}, schema) == (
        "/leaves/1/count is beyond exclusiveMaximum 10"
    )
    assert misfit({}, schema) == "/name is missing"
    assert misfit([], schema) == "it is not of type object"


def test_formats_are_left_to_the_handler() -> None:
    assert misfit("not a date", schema_of(date)) is None


class Model(BaseModel):
    name: str
    inner: list[Model] = []


class Silent(BaseModel):
    """A model that cannot describe itself."""

    function: Callable[[], int] | None = None


def test_models_describe_themselves_or_take_anything() -> None:
    assert misfit({}, schema_of(Model)) == "/name is missing"
    assert (
        misfit({"name": "a", "inner": [{"name": 1}]}, schema_of(Model))
        == "/inner/0/name is not of type string"
    )
    assert misfit({"name": "a", "inner": [{"name": "b"}]}, schema_of(Model)) is None
    assert schema_of(Silent) == {}
