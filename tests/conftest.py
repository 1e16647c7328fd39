"""Fixtures that tests of every kind share."""

import os

from hypothesis import HealthCheck, settings

from tests.servers.fixtures import (
    empty_postgres_url,
    fresh_postgres_url,
    postgres,
    postgres_database,
    postgres_engine,
    postgres_engine_url,
    postgres_logins,
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
    "postgres_logins",
    "postgres_older",
    "postgres_older_database",
    "postgres_older_template",
    "postgres_older_url",
    "postgres_template",
    "postgres_url",
]

# That one example of a hundred took long tells of the machine, and not of what is tested. The examples are
# the same in every run, unless somebody wants others: a change is judged by what it changed.
settings.register_profile(
    "even",
    deadline=None,
    derandomize="EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("even")
