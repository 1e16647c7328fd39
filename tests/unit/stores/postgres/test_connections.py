"""What is shown of a URL: where, and never who or with what password."""

from __future__ import annotations

import pytest

from runstone.stores.postgres.connections import one_by_one, shown


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://ada:secret@h:5433/db?sslmode=require", "postgresql://h:5433/db"),
        ("postgresql://ada@one:1,two:2/db", "postgresql://one:1,two:2/db"),
        ("postgresql://h/db", "postgresql://h/db"),
        ("postgresql:///db?host=/run/pg", "postgresql://localhost/db"),
        ("postgresql://", "postgresql://localhost"),
        ("postgresql://ada:secret/1@h/db", "postgresql://h/db"),
        ("postgresql://ada:secret?1@h/db", "postgresql://h/db"),
        ("postgresql://ada:secret#1@h/db", "postgresql://h/db"),
        ("postgresql://ada:secret@1@h/db", "postgresql://h/db"),
        ("postgresql://ada:secret@h:port/db", "postgresql://h:port/db"),
        ("postgresql://h/db?password=c@secret", "postgresql://…"),
        ("postgresql://ada:secret?a=1@h/db", "postgresql://…"),
    ],
)
def test_a_place_is_shown_without_user_and_password(url: str, place: str) -> None:
    assert shown(url) == place


@pytest.mark.parametrize(
    ("url", "each"),
    [
        ("postgresql:///db?host=/run/pg", ["postgresql:///db?host=/run/pg"]),
        (
            "postgresql://ada:a,b@one:1,[::1]/db?target_session_attrs=primary",
            [
                "postgresql://ada:a,b@one:1/db?target_session_attrs=primary",
                "postgresql://ada:a,b@[::1]/db?target_session_attrs=primary",
            ],
        ),
        ("postgresql://ada:a,b@one/db", ["postgresql://ada:a,b@one/db"]),
    ],
)
def test_each_host_has_a_url(url: str, each: list[str]) -> None:
    assert one_by_one(url) == each
