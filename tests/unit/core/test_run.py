"""Code versions as text that sorts the way versions do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstone.core.run import code_rank

PARTS = st.lists(st.integers(0, 99_999_999), min_size=1, max_size=4)


@given(PARTS, PARTS)
def test_numbers_are_compared_as_numbers_part_by_part(one: list[int], other: list[int]) -> None:
    """§ENG-46"""
    ranks = [code_rank(".".join(map(str, parts))) for parts in (one, other)]
    assert (ranks[0] < ranks[1]) == (one < other)


def test_a_long_number_is_still_a_number() -> None:
    """A build number or a date with its time has more than eight digits."""
    assert code_rank("1.99999999") < code_rank("1.100000000")
    assert code_rank("20250101") < code_rank("202401011200")


@pytest.mark.parametrize("version", ["", "beta", "rc1.x", "²"])
def test_what_is_no_number_stays_as_it_is(version: str) -> None:
    assert code_rank(version) == version
