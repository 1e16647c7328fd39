"""What each class of SQLSTATE means for a batch, and in the port's words (§STO-3)."""

from __future__ import annotations

import asyncpg
import pytest

from runstone.errors import (
    CommitRefused,
    DuplicateKey,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnusable,
)
from runstone.stores.postgres.faults import Kind, classify, leaves_open, translate


def server_error(state: str, **fields: str) -> asyncpg.PostgresError:
    """An error as the driver makes it of the server's answer."""
    return asyncpg.PostgresError.new({"C": state, "M": "as it happens", **fields})


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("22021", Kind.REFUSED),
        ("22P02", Kind.REFUSED),
        ("23503", Kind.REFUSED),
        ("23505", Kind.REFUSED),
        ("23514", Kind.REFUSED),
        ("P0001", Kind.REFUSED),
        ("54000", Kind.REFUSED),
        ("40001", Kind.AGAIN),
        ("40P01", Kind.AGAIN),
        ("55P03", Kind.BLOCKED),
        ("55006", Kind.AGAIN),
        ("08006", Kind.OUTAGE),
        ("53100", Kind.OUTAGE),
        ("53300", Kind.OUTAGE),
        ("57P01", Kind.OUTAGE),
        ("57P03", Kind.OUTAGE),
        ("57014", Kind.OUTAGE),
        ("25006", Kind.OUTAGE),
        ("42P01", Kind.FATAL),
        ("42501", Kind.FATAL),
        ("XX001", Kind.FATAL),
    ],
)
def test_sqlstate_decides(state: str, kind: Kind) -> None:
    assert classify(server_error(state)) is kind


def test_a_stream_that_somebody_else_opened_is_looked_at_again() -> None:
    assert classify(server_error("23505", n="streams_pkey")) is Kind.AGAIN


@pytest.mark.parametrize(
    "error", [OSError("no route"), TimeoutError(), asyncpg.InterfaceError("connection is closed")]
)
def test_a_lost_connection_leaves_everything_open(error: Exception) -> None:
    assert classify(error) is Kind.OUTAGE
    assert leaves_open(error)
    assert isinstance(translate(error, "here", written=True), OutcomeUnknown)
    assert type(translate(error, "here")) is StoreUnusable


@pytest.mark.parametrize(
    ("state", "open_"),
    [("57P01", True), ("08006", True), ("57014", False), ("53100", False), ("40001", False)],
)
def test_what_the_server_undid_is_not_open(state: str, open_: bool) -> None:
    assert leaves_open(server_error(state)) is open_


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("23505", DuplicateKey),
        ("23503", CommitRefused),
        ("P0001", CommitRefused),
        ("40P01", StoreBusy),
        ("53100", StoreFull),
        ("25006", StoreReadOnly),
        ("42501", StoreReadOnly),
        ("XX001", StoreCorrupt),
        ("42P01", StoreUnusable),
    ],
)
def test_errors_have_the_ports_words(state: str, kind: type[Exception]) -> None:
    error = server_error(state)
    found = translate(error, "postgresql://here/db")
    assert type(found) is kind
    assert found.__cause__ is error


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("28P01", "the user in the store's URL (from --store, RUNSTONE_STORE, DATABASE_URL or runstone.toml"),
        ("28000", "pg_hba.conf"),
        ("3D000", "Create it: createdb --encoding=UTF8 --template=template0 db"),
        ("53300", "CONNECTION LIMIT"),
        ("57014", "ALTER ROLE … SET statement_timeout = 0 for Runstone's logins"),
        ("42P05", "connect to the server itself or to a pool in session mode"),
        ("26000", "connect to the server itself or to a pool in session mode"),
        ("25006", "this server is a standby"),
        ("25006", "default_transaction_read_only is on"),
    ],
)
def test_who_is_told_of_a_trouble_is_told_what_to_do(state: str, advice: str) -> None:
    assert advice in str(translate(server_error(state), "postgresql://here/db"))


def test_what_the_driver_advises_about_pools_is_left_out() -> None:
    said = str(
        translate(server_error("42P05", M="it is there already", H="set statement_cache_size"), "here")
    )
    assert "it is there already" in said
    assert "statement_cache_size" not in said


def test_a_server_without_tls_is_told_of() -> None:
    error = ConnectionError('PostgreSQL server at "here:5432" rejected SSL upgrade')
    assert "drop sslmode=require" in str(translate(error, "here"))


def test_a_taken_key_is_quoted() -> None:
    error = server_error("23505", n="runs_by_key", D="Key (tenant_id, key)=(1, daily) already exists.")
    found = translate(error, "here")
    assert isinstance(found, DuplicateKey)
    assert found.what == "runs_by_key (tenant_id, key)=(1, daily)"
