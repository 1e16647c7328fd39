"""Values between users and the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from pydantic import BaseModel

from runstone.engine.values import Shape, Signature, write
from runstone.errors import InvalidPayload, RegistrationError


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclass
class Pair:
    left: Point
    right: list[int]


class Model(BaseModel):
    name: str


def example(point: Point, pair: Pair, *, model: Model | None = None, anything=None) -> Model:  # type: ignore[no-untyped-def]
    raise AssertionError("never called")


def text(raw: Raw) -> str:
    return bytes(raw).decode()


def test_arguments_are_kept_by_name_however_they_are_given() -> None:
    signature = Signature(example)
    pair = Pair(Point(1), [2])
    by_place = signature.pack((Point(1), pair), {})
    by_name = signature.pack((), {"pair": pair, "point": Point(1)})
    assert text(by_place) == '{"pair":{"left":{"x":1,"y":0},"right":[2]},"point":{"x":1,"y":0}}'
    assert bytes(by_place) == bytes(by_name)
    assert signature.unpack(by_place) == {"pair": pair, "point": Point(1)}


def test_every_argument_at_its_place_takes_the_short_way_to_the_same_bytes() -> None:
    def plain(a: int, b: str = "x") -> None: ...

    signature = Signature(plain)
    assert bytes(signature.pack((1, "x"), {})) == bytes(signature.pack((), {"b": "x", "a": 1}))
    assert text(signature.pack((1,), {})) == '{"a":1}'


def test_models_are_dumped_and_validated() -> None:
    signature = Signature(example)
    raw = signature.pack((Point(1), Pair(Point(1), [])), {"model": Model(name="ada")})
    assert '"model":{"name":"ada"}' in text(raw)
    assert signature.unpack(raw)["model"] == Model(name="ada")
    assert signature.result.read(Raw(b'{"name":"bob"}')) == Model(name="bob")


def test_arguments_that_the_function_does_not_have_any_more_are_passed_over() -> None:
    assert Signature(example).unpack(Raw(b'{"gone":1,"point":{"x":3}}')) == {"point": Point(3)}


def test_a_call_that_does_not_fit_the_signature_is_a_type_error() -> None:
    signature = Signature(example)
    with pytest.raises(TypeError, match="missing a required argument"):
        signature.pack((), {})
    with pytest.raises(TypeError, match="unexpected keyword"):
        signature.pack((Point(1), Pair(Point(1), [])), {"other": 1})


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"a": [1, object()]}, "/a/1"),
        ({"a": {"b": float("inf")}}, "/a/b"),
        ([0, 2**53], "/1"),
        ("\0", ""),
        ({"a": "\ud800"}, "/a"),
    ],
)
def test_what_cannot_be_stored_says_where(value: object, pointer: str) -> None:
    with pytest.raises(InvalidPayload) as refused:
        write(value)
    assert refused.value.pointer == pointer


def test_what_does_not_fit_its_annotation_is_refused() -> None:
    with pytest.raises(InvalidPayload, match="Expected `int`, got `str`"):
        Shape(Point, "a point").read(Raw(b'{"x":"one"}'))


def test_without_an_annotation_anything_goes() -> None:
    assert Signature(example).unpack(Raw(b'{"anything":[1,{"a":null}]}')) == {"anything": [1, {"a": None}]}


def test_a_skipped_parameter_is_not_part_of_the_signature() -> None:
    assert Signature(example, skip=1).names == ("pair", "model", "anything")


def starred(*many: int) -> None: ...


def keyworded(**more: int) -> None: ...


def by_place_only(one: int, /) -> None: ...


def unknown(one: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def unreadable(one: int | complex | Point | Pair) -> None: ...


@pytest.mark.parametrize("function", [starred, keyworded, by_place_only, unknown, unreadable])
def test_signatures_that_cannot_work_are_refused_at_once(function: Any) -> None:
    with pytest.raises(RegistrationError, match=function.__name__):
        Signature(function)


def test_a_type_that_is_neither_is_refused_when_it_is_met() -> None:
    class Odd: ...

    with pytest.raises(InvalidPayload, match="Odd has no JSON form"):
        write(Odd())
    with pytest.raises((InvalidPayload, TypeError), match="cannot be read from JSON"):
        Shape(Odd, "odd").read(Raw(b"{}"))


def test_object_stands_for_anything() -> None:
    def function() -> dict[str, object]:
        raise AssertionError("never called")

    assert Signature(function).result.read(Raw(b'{"a":[1,null]}')) == {"a": [1, None]}
