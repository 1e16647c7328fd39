"""Every move between two states, on a real log: made, or recorded, logged, refused (§PIP-13, §PIP-14)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import runstone as rs
from runstone.core import codec, payloads
from runstone.core.ids import DEFAULT_TENANT
from runstone.errors import StateTransitionError
from runstone.pipeline.journal import Journal
from runstone.pipeline.moves import Moves
from runstone.ports.clock import SystemClock, new_id
from runstone.stores.folder import FolderStore
from tests.integration.pipeline.press import Hasty
from tests.unit.pipeline.test_graph import TABLE


async def standing_in(store: FolderStore, name: str) -> Moves:
    """A run that some history has brought to a state."""
    journal = Journal(store, DEFAULT_TENANT, new_id(), actor="test", clock=SystemClock(), new_id=new_id)
    await store.create(DEFAULT_TENANT, journal.run_id, plan_id="walk", context=journal.context())
    await journal.record(payloads.RunStateChanged(to_state=name))
    return Moves(rs.DOCS_GRAPH, journal)


@pytest.mark.parametrize("from_state", TABLE)
async def test_every_cell_of_the_table(
    tmp_path: Path, from_state: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with await FolderStore.open(tmp_path, inline=True, disk=Hasty()) as store:
        for to_state in TABLE:
            caplog.clear()
            moves = await standing_in(store, from_state)
            before = moves.state
            if to_state in TABLE[from_state]:
                await moves.move(to_state)
                assert moves.here == to_state
                data: payloads.Payload = payloads.RunStateChanged(from_state=from_state, to_state=to_state)
            else:
                with pytest.raises(StateTransitionError) as refused:
                    await moves.move(to_state)
                assert (refused.value.from_state, refused.value.to_state) == (from_state, to_state)
                assert moves.state == before
                assert [(r.levelno, r.message) for r in caplog.records] == [
                    (logging.ERROR, f"Invalid transition: {from_state} → {to_state}")
                ]
                data = payloads.InvalidStateTransition(from_state=from_state, to_state=to_state)
            last = (await store.fetch(DEFAULT_TENANT, moves.journal.run_id, after_seq=3))[-1]
            assert last.event_type == data.EVENT_TYPE
            assert bytes(last.event_data) == codec.encode(data)


async def test_a_run_enters_its_graph_at_the_beginning(tmp_path: Path) -> None:
    async with await FolderStore.open(tmp_path, inline=True, disk=Hasty()) as store:
        journal = Journal(store, DEFAULT_TENANT, new_id(), actor="test", clock=SystemClock(), new_id=new_id)
        await store.create(DEFAULT_TENANT, journal.run_id, plan_id="walk", context=journal.context())
        moves = Moves(rs.DOCS_GRAPH, journal)
        with pytest.raises(StateTransitionError):
            await moves.move("DRAFTING")
        assert (await journal.load()).run_state is None
        await moves.move("CREATED")
        assert moves.here == "CREATED"
