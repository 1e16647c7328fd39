"""Which run somebody means: by its id, by the beginning of one, or by the key its user gave it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from runstone.core import codec
from runstone.core.events import Event
from runstone.core.ids import UUID_PATTERN, is_id
from runstone.core.state import RunState
from runstone.errors import InvalidPayload, NotFound, StoreCorrupt
from runstone.ports.store import Store

SHORTEST: Final = 6
"""How many characters of an id are enough to look for it."""

_SHOWN: Final = 3
_TEMPLATE: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"


async def find_run(store: Store, tenant_id: str, text: str) -> str:
    """The id of the run that is meant; a whole id needs no row, so that damage cannot hide a run."""
    try:
        codec.check_text(text)
    except InvalidPayload as error:  # no store could be asked for it
        raise NotFound(f"There is no run with the id or key {text!r}: {error}") from error
    named = text.lower()
    if re.fullmatch(UUID_PATTERN, named) and await _is_run(store, tenant_id, named):
        return named
    run = await store.find_run(tenant_id, text)
    if run is not None:
        return run.id
    await _refuse_archived(store, tenant_id, text)
    if len(named) < len(_TEMPLATE) and is_id(_filled(named)):
        return await _by_prefix(store, tenant_id, named)
    raise NotFound(f"There is no run with the id or key {text!r}: see `runstone runs`")


async def load_run(store: Store, tenant_id: str, text: str) -> tuple[RunState, Sequence[Event]]:
    """The run that is meant, folded, and the events that it was folded from."""
    run_id = await find_run(store, tenant_id, text)
    stream = await store.load(tenant_id, run_id)
    state = None if stream is None else stream.fold()
    if stream is None or not isinstance(state, RunState) or state.run is None:
        raise NotFound(f"There is no run {run_id}")
    return state, stream.events


async def _refuse_archived(store: Store, tenant_id: str, text: str) -> None:
    """Says where a run is that was archived."""
    whole = text.lower() if re.fullmatch(UUID_PATTERN, text.lower()) else None
    stone = await store.find_tombstone(tenant_id, stream_id=whole, run_key=text)
    if stone is not None and stone.kind == "RUN":
        raise stone.error


async def _is_run(store: Store, tenant_id: str, run_id: str) -> bool:
    try:
        events = await store.fetch(tenant_id, run_id, limit=1)
        return events[0].run_id is not None if events else await store.get_run(tenant_id, run_id) is not None
    except StoreCorrupt:
        return True


def _filled(prefix: str) -> str:
    """The last id that begins with this; no id if none does: a key such as `2030-01-15` looks like one."""
    return prefix + _TEMPLATE[len(prefix) :]


async def _by_prefix(store: Store, tenant_id: str, prefix: str) -> str:
    if len(prefix) < SHORTEST:
        raise NotFound(
            f"{prefix!r} is too short to find a run by: give {SHORTEST} characters of its id or more"
        )
    runs = await store.list_runs(tenant_id, after=_filled(prefix), limit=_SHOWN + 1)
    found = [run.id for run in runs if run.id.startswith(prefix)]
    if not found:
        raise NotFound(
            f"There is no run whose id begins with {prefix!r}, and none with that key: see `runstone runs`"
        )
    if len(found) > 1:
        more = " and more" if len(found) > _SHOWN else ""
        raise NotFound(
            f"Several runs begin with {prefix!r}: {', '.join(found[:_SHOWN])}{more}. Give more of the id"
        )
    return found[0]
