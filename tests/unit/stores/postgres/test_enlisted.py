"""Rows as text: whatever is in them, the server reads what was meant."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runstone.stores.postgres.enlisted import as_text


def test_parameters_are_cast_from_text() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    statement, arguments = as_text("SELECT $1::runstone.shape[], $12::timestamptz", [[], moment])
    assert statement == "SELECT $1::text::runstone.shape[], $12::text::timestamptz"
    assert arguments == ["{}", "2026-01-02T03:04:05.678901+00:00"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, ""),
        ("", r"\"\""),
        (7, r"\"7\""),
        (True, r"\"True\""),
        (b"\x00\xff", r"\"\\\\x00ff\""),
        ("a,b", r"\"a,b\""),
        ('say "so"', r"\"say \\\"so\\\"\""),
        ("back\\slash", r"\"back\\\\slash\""),
    ],
)
def test_values_are_quoted_twice(value: object, written: str) -> None:
    """Once for the row that they are in, and once for the array that the row is in."""
    _, (argument,) = as_text("", [[(1, value)]])
    assert argument == '{"(\\"1\\",' + written + ')"}'
