"""Checkpoint: a run's ids, cursor and variables, a cache that nobody waits for (§ENT-24, §ENG-36).

A durable function runs again from its top and is answered from its steps, so a checkpoint
carries no results: only what lets a reader skip the beginning of the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import Raw

from runstone.core import codec
from runstone.core.state import RunState

_GZIP: Final = 31
"""zlib's word for the gzip format, which carries no time."""

TIME_TO_LIVE: Final = timedelta(days=7)


class CheckpointData(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds."""

    run_id: str
    checkpoint_index: int
    last_seq: int
    head: str
    completed_steps: tuple[str, ...]
    current_step_id: str | None
    current_step_state: Mapping[str, str]
    pending_effects: tuple[str, ...]
    specialist_state: Mapping[str, Raw]
    variables: Mapping[str, Raw]


_read: Final = codec.reader(CheckpointData)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `run_checkpoints`."""

    id: str
    tenant_id: str
    run_id: str
    checkpoint_index: int
    checkpoint_data: bytes
    created_at: datetime
    expires_at: datetime
    size_bytes: int
    compressed: bool
    correlation_id: str

    def read(self) -> CheckpointData | None:
        """What it holds; nothing if its bytes are damaged: then use an older one, or the whole log."""
        try:
            plain = zlib.decompress(self.checkpoint_data, _GZIP) if self.compressed else self.checkpoint_data
            return _read(plain)
        except (zlib.error, ValueError):
            return None


def checkpoint(state: RunState, checkpoint_id: str, now: datetime) -> Checkpoint:
    """A checkpoint of a run as it is."""
    assert state.run is not None, "a checkpoint is taken of a run"
    current = next(iter(state.open_steps.values()), None)
    data = CheckpointData(
        run_id=state.stream_id,
        checkpoint_index=state.checkpoints,
        last_seq=state.last_seq,
        head=state.head,
        completed_steps=tuple(step.id for step in state.steps.values() if step.status == "COMPLETED"),
        current_step_id=current,
        current_step_state=state.open_steps,
        pending_effects=tuple(state.open_effects),
        specialist_state={
            step.specialist_id: step.input_context
            for step in state.steps.values()
            if step.specialist_id and step.status == "RUNNING"
        },
        variables=state.variables,
    )
    packed = zlib.compress(codec.encode(data), wbits=_GZIP)
    return Checkpoint(
        id=checkpoint_id,
        tenant_id=state.tenant_id,
        run_id=state.stream_id,
        checkpoint_index=state.checkpoints,
        checkpoint_data=packed,
        created_at=now,
        expires_at=now + TIME_TO_LIVE,
        size_bytes=len(packed),
        compressed=True,
        correlation_id=state.run.correlation_id,
    )
