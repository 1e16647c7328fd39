"""The catalogue: every type of event, and how its stored bytes become a typed payload (§EVT-11 to §EVT-20).

Old versions are lifted to the current one by upcasters, pure functions from one version's
JSON object to the next. They run at decoding; stored bytes never change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from runstone.core import codec, payloads
from runstone.core.events import EventDraft
from runstone.core.payloads import Payload
from runstone.errors import InvalidPayload, UnknownEventType, UnknownEventVersion

_P = TypeVar("_P", bound=Payload)

Upcaster: TypeAlias = Callable[[dict[str, Raw]], dict[str, Raw]]
"""Turns the fields of one version into those of the next; what it leaves alone keeps its very bytes."""


class Catalogue:
    """Types of events by name, with the upcasters that lead to their current version."""

    def __init__(
        self, types: Iterable[type[Payload]], upcasters: Mapping[tuple[str, int], Upcaster] | None = None
    ) -> None:
        self.types: dict[str, type[Payload]] = {kind.EVENT_TYPE: kind for kind in types}
        self._decoders = {name: msgspec.json.Decoder(kind).decode for name, kind in self.types.items()}
        self._upcasters = dict(upcasters or {})
        for name, kind in self.types.items():
            for version in range(1, kind.VERSION):
                if (name, version) not in self._upcasters:
                    raise ValueError(f"{name} has version {kind.VERSION} and no upcaster from {version}")

    def decode(self, event: EventDraft) -> Payload:
        """The event's payload in its current version."""
        decode = self._decoders.get(event.event_type)
        if decode is None:
            raise UnknownEventType(event.event_type)
        try:
            if event.event_version == self.types[event.event_type].VERSION:
                return decode(event.event_data)
            return self._lift(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidPayload("", f"{event.event_type} {event.id}: {error}") from error

    def read(self, event: EventDraft, kind: type[_P]) -> _P:
        """The same, of an event whose type is known."""
        payload = self.decode(event)
        assert isinstance(payload, kind), f"{event.event_type} is no {kind.EVENT_TYPE}"
        return payload

    def _lift(self, event: EventDraft) -> Payload:
        kind = self.types[event.event_type]
        if event.event_version > kind.VERSION:
            raise UnknownEventVersion(event.event_type, event.event_version, kind.VERSION)
        data = msgspec.json.decode(event.event_data, type=dict[str, Raw])
        for version in range(event.event_version, kind.VERSION):
            data = self._upcasters[event.event_type, version](data)
        return msgspec.json.decode(codec.encode(data), type=kind)


def _declared() -> list[type[Payload]]:
    return [
        kind
        for kind in vars(payloads).values()
        if isinstance(kind, type) and issubclass(kind, Payload) and kind is not Payload
    ]


def _as_it_is(data: dict[str, Raw]) -> dict[str, Raw]:
    """What is new has a default that says what was meant before."""
    return data


CATALOGUE: Final = Catalogue(_declared(), {("TASK_SCHEDULED", 1): _as_it_is})
