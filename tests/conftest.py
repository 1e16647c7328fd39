"""Fixtures that tests of every kind share."""

from tests.servers.fixtures import (
    empty_postgres_url,
    fresh_postgres_url,
    postgres,
    postgres_database,
    postgres_engine,
    postgres_engine_url,
    postgres_older,
    postgres_older_database,
    postgres_older_template,
    postgres_older_url,
    postgres_template,
    postgres_url,
)

__all__ = [
    "empty_postgres_url",
    "fresh_postgres_url",
    "postgres",
    "postgres_database",
    "postgres_engine",
    "postgres_engine_url",
    "postgres_older",
    "postgres_older_database",
    "postgres_older_template",
    "postgres_older_url",
    "postgres_template",
    "postgres_url",
]
