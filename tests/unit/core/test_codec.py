"""JSON: what goes out has one form, what comes in has one reading, and a refusal says where."""

from __future__ import annotations

import enum
import json
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from runstone.core import codec
from runstone.errors import InvalidPayload

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
EXACT = st.none() | st.booleans() | st.integers(-codec.MAX_INTEGER, codec.MAX_INTEGER) | TEXT
SCALARS = EXACT | st.floats(allow_nan=False, allow_infinity=False)


def nested(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


def deep(levels: int, innermost: object = 1) -> Any:
    value = innermost
    for _ in range(levels):
        value = [value]
    return value


def refusal_of(value: object) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as refused:
        codec.canonical(value)
    return refused.value


def refusal_of_text(text: str | bytes) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as refused:
        codec.parse(text)
    return refused.value


class TestCanonical:
    """§PAY-1"""

    @given(nested(SCALARS))
    def test_reading_and_writing_again_gives_the_same_bytes(self, value: Any) -> None:
        once = bytes(codec.canonical(value))
        assert bytes(codec.canonical(codec.parse(once))) == once

    @given(nested(SCALARS))
    def test_the_value_survives(self, value: Any) -> None:
        assert codec.parse(bytes(codec.canonical(value))) == value

    @given(nested(EXACT))
    def test_another_encoder_told_the_same_rules_agrees(self, value: Any) -> None:
        other = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        assert bytes(codec.canonical(value)) == other.encode()

    @given(st.dictionaries(TEXT, EXACT, min_size=2))
    def test_the_order_in_which_keys_were_set_is_not_in_it(self, value: dict[str, Any]) -> None:
        backwards = dict(reversed(value.items()))
        assert bytes(codec.canonical(backwards)) == bytes(codec.canonical(value))

    def test_keys_are_sorted_by_code_point(self) -> None:
        """UTF-16 would put the astral key before U+FFFF."""
        value = {"\U00010000": 1, "\uffff": 2, "é": 3, "z": 4, "Z": 5}
        assert bytes(codec.canonical(value)).decode() == '{"Z":5,"z":4,"é":3,"\uffff":2,"\U00010000":1}'

    @pytest.mark.parametrize(
        ("number", "text"),
        [(0, "0"), (-7, "-7"), (0.1, "0.1"), (1e22, "1e22"), (-0.0, "-0.0"), (5e-324, "5e-324")],
    )
    def test_numbers_are_as_short_as_they_can_be_read_back(self, number: float, text: str) -> None:
        assert bytes(codec.canonical(number)).decode() == text

    def test_what_json_takes_as_it_is_is_not_escaped(self) -> None:
        assert bytes(codec.canonical('é/\x7f\u2028"\\\n\x01')).decode() == '"é/\x7f\u2028\\"\\\\\\n\\u0001"'

    def test_common_python_values_have_a_form(self) -> None:
        class Color(enum.Enum):
            RED = "red"

        class Point(msgspec.Struct):
            y: int
            x: int

        noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
        value = {"enum": Color.RED, "moment": noon, "struct": Point(2, 1), "tuple": (1, 2), "set": {2, 1}}
        assert json.loads(bytes(codec.canonical(value))) == {
            "enum": "red",
            "moment": "2026-03-01T12:00:00Z",
            "struct": {"x": 1, "y": 2},
            "tuple": [1, 2],
            "set": [1, 2],
        }

    def test_a_users_own_type_can_be_explained(self) -> None:
        """What the hook makes of it is checked like anything else, and a place is named past it."""

        class Money:
            pass

        def explain(value: object) -> object:
            if isinstance(value, Money):
                return {"cents": 5}
            raise TypeError(f"no idea what {value!r} is")

        assert bytes(codec.canonical([Money()], explain)) == b'[{"cents":5}]'
        with pytest.raises(InvalidPayload, match="no idea") as refused:
            codec.canonical({"a": Money(), "b": [1, len]}, explain)
        assert refused.value.pointer == "/b/1"
        with pytest.raises(InvalidPayload) as refused:
            codec.canonical({"a": Money()}, lambda _: 2**60)
        assert refused.value.pointer == "/a"

    def test_encode_is_the_same_form_without_the_checks(self) -> None:
        assert codec.encode({"b": 1, "a": [None, True]}) == b'{"a":[null,true],"b":1}'
        assert codec.encode("\0") == rb'"\u0000"'

    def test_null_is_at_hand(self) -> None:
        assert bytes(codec.NULL) == b"null"


class TestRefusedValues:
    """§PAY-5 to §PAY-13, for what handlers and executors return (§PAY-14)."""

    @pytest.mark.parametrize(
        ("value", "pointer", "reason"),
        [
            (math.nan, "", "nan is not a JSON number"),
            ({"a": [0, math.inf]}, "/a/1", "inf is not a JSON number"),
            ({"a": {"b": -math.inf}}, "/a/b", "-inf is not a JSON number"),
            ([{"text": "a\0b"}], "/0/text", "NUL"),
            ({"list": [{"a\0b": 1}]}, "/list/0", "NUL"),
            ({"a": "\ud800"}, "/a", "lone surrogate"),
            ([{"\udfff": 1}], "/0", "lone surrogate"),
            ({"n": 2**53}, "/n", "integer"),
            ([-(2**53)], "/0", "integer"),
            ({"n": 2**70}, "/n", "integer"),
            ({"a": {1: 2}}, "/a", "not a string"),
            ([{None: 1}], "/0", "not a string"),
            (deep(129), "/0" * 128, "nested deeper than 128"),
        ],
    )
    def test_with_their_place(self, value: object, pointer: str, reason: str) -> None:
        refused = refusal_of(value)
        assert refused.pointer == pointer
        assert reason in refused.reason

    @pytest.mark.parametrize(
        ("value", "pointer"),
        [({"a": [0, object()]}, "/a/1"), ({"f": len}, "/f"), ([{1: 2, "a": 3}], "/0")],
    )
    def test_a_type_json_does_not_have_is_found_too(self, value: object, pointer: str) -> None:
        """§PAY-13: the error names the place, whatever is wrong with it."""
        assert refusal_of(value).pointer == pointer

    @pytest.mark.parametrize(
        ("key", "token"), [("a/b", "a~1b"), ("a~b", "a~0b"), ("~1", "~01"), ("", ""), ("é", "é")]
    )
    def test_the_pointer_escapes_as_the_standard_says(self, key: str, token: str) -> None:
        """RFC 6901"""
        assert refusal_of({key: math.nan}).pointer == f"/{token}"

    def test_a_circle_is_refused(self) -> None:
        circle: list[object] = []
        circle.append(circle)
        assert "not storable" in refusal_of(circle).reason

    def test_what_stands_at_the_bounds_is_taken(self) -> None:
        for value in (deep(128), [codec.MAX_INTEGER, -codec.MAX_INTEGER], "x" * (codec.MAX_BYTES - 2)):
            assert codec.parse(bytes(codec.canonical(value))) == value

    def test_a_byte_more_than_8_mib_is_refused(self) -> None:
        assert str(codec.MAX_BYTES) in refusal_of("x" * (codec.MAX_BYTES - 1)).reason

    def test_the_check_alone_knows_foreign_types(self) -> None:
        with pytest.raises(InvalidPayload, match="set is not a JSON value") as refused:
            codec.check({"a": [set()]})
        assert refused.value.pointer == "/a/0"


class TestRefusedText:
    """The same rules for JSON that comes from outside."""

    @pytest.mark.parametrize(
        ("text", "pointer", "reason"),
        [
            ('{"a":[1,1e400]}', "/a/1", "inf is not a JSON number"),
            (r'{"a":"x\u0000"}', "/a", "NUL"),
            (r'{"a":[{"x\u0000":1}]}', "/a/0", "NUL"),
            (r'["\ud800"]', "/0", "lone surrogate"),
            (r'{"\udc00":1}', "", "lone surrogate"),
            ('{"a":1,"a":1}', "", "'a' stands there twice"),
            ('{"a":[0,{"b":{"c":1,"d":2,"c":3}}]}', "/a/1/b", "'c' stands there twice"),
            (r'{"a":{"b":1,"\u0062":1}}', "/a", "'b' stands there twice"),
            ('{"n":9007199254740992}', "/n", "integer"),
            ('{"n":-9007199254740992}', "/n", "integer"),
            ("[" * 129 + "]" * 129, "/0" * 128, "nested deeper than 128"),
        ],
    )
    def test_with_its_place(self, text: str, pointer: str, reason: str) -> None:
        for form in (text, text.encode()):
            refused = refusal_of_text(form)
            assert refused.pointer == pointer
            assert reason in refused.reason

    @pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
    def test_numbers_that_are_none_are_found(self, constant: str) -> None:
        """§PAY-6, §PAY-13"""
        refused = refusal_of_text(f'{{"a":[0,{constant}]}}')
        assert refused.pointer == "/a/1"
        assert "is not a JSON number" in refused.reason

    @pytest.mark.parametrize(
        "text",
        ["", "{", "{'a':1}", "[1,]", "01", "nul", "1 2", '"a\nb"', '"a\0b"', "\ufeff1", "[" * 100_000],
    )
    def test_what_is_no_json_at_all(self, text: str) -> None:
        refusal_of_text(text)

    def test_an_integer_too_long_to_read_is_refused(self) -> None:
        refusal_of_text("9" * 5000)

    def test_bytes_that_are_no_utf_8(self) -> None:
        assert "not valid UTF-8: byte 3" in refusal_of_text(b'"ab\xff"').reason

    def test_the_size_is_counted_in_bytes_however_the_text_comes(self) -> None:
        """§PAY-12: as bytes this text is over 8 MiB, as characters it is not."""
        text = '"' + "é" * (codec.MAX_BYTES // 2) + '"'
        assert str(codec.MAX_BYTES) in refusal_of_text(text.encode()).reason
        assert str(codec.MAX_BYTES) in refusal_of_text(text).reason

    def test_good_text_is_read(self) -> None:
        text = '{"a": [1, 1.5, 1e2, "é", null, true], "b": {}}'
        assert codec.parse(text) == {"a": [1, 1.5, 100.0, "é", None, True], "b": {}}
        assert codec.parse(text.encode()) == codec.parse(text)


class Item(msgspec.Struct):
    name: str
    sizes: list[int] = []


class Box(msgspec.Struct):
    items: list[Item]
    by_name: dict[str, int] = {}


class TestDecodeAs:
    def test_stored_bytes_become_a_typed_value(self) -> None:
        assert codec.decode_as(b'{"items":[{"name":"a","sizes":[1]}]}', Box) == Box([Item("a", [1])])
        assert codec.decode_as(Raw(b"[1,2]"), tuple[int, ...]) == (1, 2)

    @pytest.mark.parametrize(
        ("stored", "pointer"),
        [
            (b'{"items":[{"name":"a"},{"name":2}]}', "/items/1/name"),
            (b'{"items":[{"name":"a","sizes":[1,"x"]}]}', "/items/0/sizes/1"),
            (b'{"items":[{}]}', "/items/0"),
            (b"[]", ""),
            (b"{", ""),
        ],
    )
    def test_a_mismatch_names_its_place(self, stored: bytes, pointer: str) -> None:
        with pytest.raises(InvalidPayload) as refused:
            codec.decode_as(stored, Box)
        assert refused.value.pointer == pointer

    def test_a_mismatch_inside_a_map_leads_at_least_to_the_map(self) -> None:
        """The decoder does not say which key it was."""
        with pytest.raises(InvalidPayload) as refused:
            codec.decode_as(b'{"items":[],"by_name":{"a":"x"}}', Box)
        assert refused.value.pointer in ("/by_name", "/by_name/a")

    def test_damaged_text_is_an_invalid_payload_like_any_other(self) -> None:
        with pytest.raises(InvalidPayload):
            codec.decode_as(b'{"items":[{"name":"\xff"}]}', Box)
