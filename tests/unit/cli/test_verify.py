"""How a difference between two long values is shown."""

from __future__ import annotations

from runstone.cli.verify import around_difference


def test_short_values_are_shown_whole() -> None:
    assert around_difference('"A"', '"B"') == ('"A"', '"B"')
    assert around_difference("", "x") == ("", "x")
    assert around_difference("same", "same") == ("same", "same")


def test_long_values_are_shown_where_they_part() -> None:
    expected, found = around_difference("x" * 1000 + "A" + "y" * 1000, "x" * 1000 + "B" + "y" * 1000)
    assert expected == "…" + "x" * 40 + "A" + "y" * 159 + "… (2001 characters)"
    assert found == "…" + "x" * 40 + "B" + "y" * 159 + "… (2001 characters)"


def test_a_value_that_was_cut_off_is_shown_at_its_end() -> None:
    expected, found = around_difference("x" * 300 + "end", "x" * 300)
    assert expected == "…" + "x" * 40 + "end"
    assert found == "…" + "x" * 40


def test_a_difference_at_the_start_hides_nothing_before_it() -> None:
    expected, found = around_difference("A" + "x" * 300, "B")
    assert expected == "A" + "x" * 199 + "… (301 characters)"
    assert found == "B"
