"""What goes wrong below the store, in the port's words (§STO-3).

SQLSTATE decides. What the server refuses for itself (classes 22, 23, P0) is the fault of one commit, and a
batch is split to find it. What it refuses because of others (class 40) is tried again as it is. An outage
(classes 08, 53, 57, a lost connection) says nothing about what was submitted: the same bytes are
submitted again, and compare-and-set makes that harmless.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Final

import asyncpg

from runstone.errors import (
    CommitRefused,
    DuplicateKey,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnusable,
)


class Kind(Enum):
    """What to do about an error."""

    REFUSED = "one commit is to blame: split the batch, and tell the one that is left"
    AGAIN = "others were in the way: the same again, at once"
    BLOCKED = "somebody's transaction is in the way, and stays open: the same again, but let others go first"
    OUTAGE = "the server or the way to it failed: the same again, on another connection"
    FATAL = "nothing helps until somebody acts"


LOST: Final = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the driver raises when a connection is gone; whether its statement was carried out is open."""

DRIVER: Final = (asyncpg.PostgresError, *LOST)
"""Everything that has to be translated."""

_STREAMS_KEY: Final = "streams_pkey"
_UNIQUE: Final = "23505"
_READ_ONLY: Final = "25006"
_DISK_FULL: Final = "53100"
_LOCK_TIMEOUT: Final = "55P03"
_BY_CLASS: Final = {
    "22": Kind.REFUSED,
    "23": Kind.REFUSED,
    "P0": Kind.REFUSED,
    "54": Kind.REFUSED,
    "40": Kind.AGAIN,
    "55": Kind.AGAIN,
    "08": Kind.OUTAGE,
    "53": Kind.OUTAGE,
    "57": Kind.OUTAGE,
}

_URL: Final = "--store, RUNSTONE_STORE, DATABASE_URL or runstone.toml, as `runstone db status` shows"
_POOLED: Final = ("42P05", "26000")
_POOL: Final = (
    "This is a pool in transaction mode, which keeps no prepared statements: "
    "connect to the server itself or to a pool in session mode"
)
_NO_TLS: Final = "The server offers no TLS: switch ssl on there, or drop sslmode=require"
_WHY_READ_ONLY: Final = (
    "Either this server is a standby: connect to the primary, or say target_session_attrs=primary in a URL "
    "with several hosts. Or default_transaction_read_only is on for this user or database: switch it off"
)
_ADVICE: Final = {
    "28P01": f"That is the user in the store's URL (from {_URL}): put user and password right there",
    "28000": f"Check the user in the store's URL (from {_URL}), and pg_hba.conf of the server",
    "3D000": "Create it: createdb --encoding=UTF8 --template=template0 {database}",
    "53300": "Raise max_connections, or the CONNECTION LIMIT of the user or the database: "
    "a process that works takes up to 10",
    "57014": "If it took too long: ALTER ROLE … SET statement_timeout = 0 for Runstone's logins",
    **dict.fromkeys(_POOLED, _POOL),
}
"""What to do about a SQLSTATE, where its class says too little."""


def classify(error: BaseException) -> Kind:
    """What to do about an error of the driver's."""
    if not isinstance(error, asyncpg.PostgresError):
        return Kind.OUTAGE
    state = error.sqlstate or ""
    if state == _UNIQUE and error.constraint_name == _STREAMS_KEY:
        # Somebody opened the stream while this statement waited: the next one sees it, and loses by it.
        return Kind.AGAIN
    if state == _READ_ONLY:  # a standby, or a primary that is about to become one
        return Kind.OUTAGE
    if state == _LOCK_TIMEOUT:
        return Kind.BLOCKED
    return _BY_CLASS.get(state[:2], Kind.FATAL)


def pause(attempt: int, kind: Kind) -> float:
    """Seconds before the next: longer each time, never two alike; who was in the way is gone in a moment."""
    longest = 1.0 if kind is Kind.OUTAGE else 0.05
    return random.random() * min(longest, 0.005 * float(2 ** min(attempt, 10)))


def leaves_open(error: BaseException) -> bool:
    """Whether the statement may have been carried out all the same."""
    if not isinstance(error, asyncpg.PostgresError):
        return True
    state = error.sqlstate or ""
    return state[:2] in ("08", "57") and state != "57014"


def translate(error: BaseException, where: str, *, written: bool = False) -> StoreError:
    """The port's word for an error; `written` says that it met a change which may have been carried out."""
    found = _translated(error, where, written)
    found.__cause__ = error
    return found


def _translated(error: BaseException, where: str, written: bool) -> StoreError:
    said = f"{where}: {_message(error)}"
    if written and leaves_open(error):
        return OutcomeUnknown(f"{said}. It is unknown whether this was written: submit the same again")
    if not isinstance(error, asyncpg.PostgresError):
        no_tls = "rejected SSL upgrade" in said
        return StoreUnusable(
            f"{said}. {_NO_TLS if no_tls else 'Check that the server runs and can be reached'}"
        )
    state = error.sqlstate or ""
    if state == _UNIQUE:
        return DuplicateKey(_taken(error))
    if state == _DISK_FULL:
        return StoreFull(f"{said}. Free some space; nothing that was acknowledged is lost")
    if state == _READ_ONLY:
        return StoreReadOnly(f"{said}. {_WHY_READ_ONLY}")
    if state in ("XX001", "XX002"):
        return StoreCorrupt(f"{said}. Restore a backup, or import bundles into a new database")
    if state == "42501":
        return StoreReadOnly(f"{said}. Let the user of this connection be a member of runstone_engine")
    kind = _BY_CLASS.get(state[:2], Kind.FATAL)
    if kind is Kind.REFUSED:
        return CommitRefused(f"The store's own rules refuse this: {_message(error)}")
    if kind is Kind.AGAIN:
        return StoreBusy(f"{said}. Others were in the way, again and again")
    if state in _ADVICE:
        return StoreUnusable(f"{said}. {_ADVICE[state].format(database=where.rpartition('/')[2])}")
    return StoreUnusable(f"{said} (SQLSTATE {state or 'unknown'})")


def _message(error: BaseException) -> str:
    said = str(error).strip()
    if (
        getattr(error, "sqlstate", None) in _POOLED
    ):  # the driver's own advice is for who can set it up otherwise
        said = said.partition("\n")[0]
    return said or type(error).__name__


def _taken(error: asyncpg.PostgresError) -> str:
    """The constraint, and the key as the server quotes it."""
    name = error.constraint_name or "a key"
    detail = (getattr(error, "detail", None) or "").removesuffix(" already exists.").removeprefix("Key ")
    return f"{name} {detail}".strip()
