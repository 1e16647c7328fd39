"""Pydantic models: whatever their aliases, what is written reads back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import pytest
from msgspec import Raw
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, computed_field

from runstone.engine import models
from runstone.engine.values import Shape, write
from runstone.errors import InvalidPayload, RegistrationError

T = TypeVar("T")


class Plain(BaseModel):
    name: str


class Aliased(BaseModel):
    name: str = Field(alias="the name")


class WrittenOtherwise(BaseModel):
    name: str = Field(serialization_alias="out")


class ReadOtherwise(BaseModel):
    name: str = Field(validation_alias=AliasChoices("in", "into"))
    inner: Aliased


class Computing(BaseModel):
    model_config = ConfigDict(extra="forbid")

    side: int

    @computed_field
    def area(self) -> int:
        return self.side**2


class Numbers(RootModel[list[int]]): ...


class Box(BaseModel, Generic[T]):
    item: T


class Node(BaseModel):
    below: list[Node] = []


class Held(msgspec.Struct):
    model: Aliased | None


ALIASED = Aliased.model_validate({"the name": "x"})
EXAMPLES: list[tuple[Any, Any, str]] = [
    (Plain, Plain(name="x"), '{"name":"x"}'),
    (Aliased, ALIASED, '{"the name":"x"}'),
    (WrittenOtherwise, WrittenOtherwise(name="x"), '{"name":"x"}'),
    (
        ReadOtherwise,
        ReadOtherwise.model_validate({"into": "x", "inner": {"the name": "y"}}),
        '{"inner":{"name":"y"},"name":"x"}',
    ),
    (Computing, Computing(side=2), '{"side":2}'),
    (Numbers, Numbers([1, 2]), "[1,2]"),
    (Box[Aliased], Box[Aliased](item=ALIASED), '{"item":{"the name":"x"}}'),
    (Node, Node(below=[Node()]), '{"below":[{"below":[]}]}'),
    (list[Aliased], [ALIASED], '[{"the name":"x"}]'),
    (Held, Held(ALIASED), '{"model":{"the name":"x"}}'),
    (Plain | Aliased | None, ALIASED, '{"the name":"x"}'),
    (dict[str, Computing | Numbers], {"a": Numbers([1])}, '{"a":[1]}'),
]


@pytest.mark.parametrize(("annotation", "value", "kept"), EXAMPLES, ids=lambda given: str(given)[:40])
def test_what_is_written_reads_back(annotation: Any, value: Any, kept: str) -> None:
    raw = write(value)
    assert bytes(raw).decode() == kept
    assert Shape(annotation, "it").read(raw) == value


@pytest.mark.parametrize("name", ["name", "in", "into"])
def test_either_name_is_read(name: str) -> None:
    raw = write({name: "x", "inner": {"name": "y"}})
    assert Shape(ReadOtherwise, "it").read(raw).name == "x"


def test_a_schema_has_the_names_under_which_values_are_written() -> None:
    assert set(models.schema(Aliased)["properties"]) == {"the name"}
    assert set(models.schema(ReadOtherwise)["properties"]) == {"name", "inner"}


@pytest.mark.parametrize("annotation", [Plain, Plain | Aliased])
def test_what_is_no_such_model_is_refused(annotation: Any) -> None:
    with pytest.raises(InvalidPayload, match="name"):
        Shape(annotation, "it").read(Raw(b'{"name":7}'))


class Loose(BaseModel):
    """It cannot describe itself, so it is kept by its names."""

    name: str = Field(alias="the name")
    thing: Callable[[], int] | None = None


def test_a_model_that_cannot_describe_itself_is_kept_by_its_names() -> None:
    value = Loose.model_validate({"the name": "x"})
    assert bytes(write(value)) == b'{"name":"x","thing":null}'
    assert Shape(Loose, "it").read(write(value)) == value
    assert Shape(Loose, "it").schema() is msgspec.UNSET


def test_a_union_without_models_is_not_pydantics() -> None:
    with pytest.raises(RegistrationError, match="cannot be read back"):
        Shape(Held | Other, "it")


class Other(msgspec.Struct):
    name: str
