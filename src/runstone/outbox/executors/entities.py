"""`SOR_UPDATE`: a change of an entity in our own store, in the transaction of its outcome (§OUT-55)."""

from __future__ import annotations

from runstone.core.catalogue import CATALOGUE
from runstone.core.commit import StreamWriter
from runstone.core.decide.entities import update
from runstone.core.effect_specs import SorUpdate
from runstone.core.events import Event, StreamKind
from runstone.core.fold import EntityFold
from runstone.core.keys import entity_stream
from runstone.core.payloads import EntityUpdated, ErrorInfo
from runstone.ports.executor import EffectCall, Failed, Outcome, Succeeded


class EntityUpdates:
    """Changes entities."""

    def place(self, call: EffectCall) -> tuple[StreamKind, str]:
        asked = _asked(call)
        return "ENTITY", entity_stream(call.tenant_id, asked.entity_type, asked.entity_id)

    def schedule(self, call: EffectCall) -> str | None:
        return None

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
        return _done(done, stream.fold.version)

    def written_at(self, call: EffectCall) -> int | None:
        expected = _asked(call).expected_version
        return None if expected is None else expected + 1  # every change is one event (§ENT-29)

    def recall(self, event: Event) -> Outcome:
        return _done(event, CATALOGUE.read(event, EntityUpdated).version)


def _done(event: Event, version: int) -> Outcome:
    return Succeeded({"stream_id": event.stream_id, "version": version, "event_id": event.id})


def _asked(call: EffectCall) -> SorUpdate:
    assert isinstance(call.spec, SorUpdate), "it is registered for that"
    return call.spec
