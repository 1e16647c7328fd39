"""`SOR_UPDATE`: a change of an entity in our own store, in the transaction of its outcome (§OUT-55)."""

from __future__ import annotations

from runstone.core.commit import StreamWriter
from runstone.core.decide.entities import update
from runstone.core.effect_specs import SorUpdate
from runstone.core.events import StreamKind
from runstone.core.fold import EntityFold
from runstone.core.keys import entity_stream
from runstone.core.payloads import ErrorInfo
from runstone.ports.executor import EffectCall, Failed, Outcome, Succeeded


class EntityUpdates:
    """Changes entities."""

    def place(self, call: EffectCall) -> tuple[StreamKind, str]:
        asked = _asked(call)
        return "ENTITY", entity_stream(call.tenant_id, asked.entity_type, asked.entity_id)

    def perform(self, call: EffectCall, stream: StreamWriter[EntityFold], cause: str) -> Outcome:
        done = update(
            stream,
            _asked(call),
            key=call.key,
            run_id=call.run_id,
            effect_id=call.effect_id,
            cause=cause,
        )
        if isinstance(done, ErrorInfo):
            return Failed(done)
        return Succeeded({"stream_id": done.stream_id, "version": stream.fold.version, "event_id": done.id})


def _asked(call: EffectCall) -> SorUpdate:
    assert isinstance(call.spec, SorUpdate), "it is registered for that"
    return call.spec
