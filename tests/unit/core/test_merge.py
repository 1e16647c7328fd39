"""JSON merge patch, by the examples of RFC 7396 and by what it has to keep."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstone.core.merge import merge_patch

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text("ab", max_size=1), json_values, max_size=3)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        (None, {"a": [None]}, {"a": [None]}),
    ],
)
def test_the_examples(target: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(target, patch) == expected


@given(target=json_values, patch=objects)
def test_it_sets_what_it_names_and_leaves_the_rest(target: Any, patch: dict[str, Any]) -> None:
    before = copy.deepcopy((target, patch))
    merged = merge_patch(target, patch)
    assert (target, patch) == before
    for name, change in patch.items():
        if change is None:
            assert name not in merged
        elif not isinstance(change, dict):
            assert merged[name] == change
    if isinstance(target, dict):
        assert {name: merged[name] for name in target.keys() - patch.keys()} == {
            name: target[name] for name in target.keys() - patch.keys()
        }
    assert merge_patch(merged, patch) == merged, "the same change again changes nothing"
