"""What people and programs ask the reference store."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec

from runstone.core.effect import Effect
from runstone.core.entity import Entity
from runstone.core.rows import Row
from runstone.core.run import Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.stream import Stream, StreamHead
from runstone.core.transitions import EffectStatus, RunStatus, ScheduleStatus
from runstone.ports.store import EffectGroup
from runstone.testing.memory_part import MemoryPart


class MemoryQueries(MemoryPart):
    """Every question of the port, answered by looking at everything."""

    async def get_run(self, tenant_id: str, run_id: str) -> Run | None:
        stream = await self._find(tenant_id, run_id)
        return next(iter(stream.of(Run)), None) if stream else None

    async def find_run(self, tenant_id: str, key: str) -> Run | None:
        runs = (run for stream in await self._all(tenant_id) for run in stream.of(Run))
        return next((run for run in runs if run.key == key), None)

    async def get_signal(self, tenant_id: str, signal_id: str) -> Signal | None:
        stream = await self._find(tenant_id, signal_id)
        return next(iter(stream.of(Signal)), None) if stream else None

    async def find_signal(self, tenant_id: str, source_channel: str, source_id: str) -> Signal | None:
        signals = (signal for stream in await self._all(tenant_id) for signal in stream.of(Signal))
        source = (source_channel, source_id)
        return next((found for found in signals if (found.source_channel, found.source_id) == source), None)

    async def list_runs(
        self,
        tenant_id: str,
        *,
        status: RunStatus | None = None,
        handler: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Run]:
        runs = [run for stream in await self._all(tenant_id) for run in stream.of(Run)]
        wanted = [run for run in runs if status in (None, run.status) and handler in (None, run.plan_id)]
        page = [run for run in wanted if after is None or run.id < after]
        return sorted(page, key=lambda run: run.id, reverse=True)[:limit]

    async def _effects(self, tenant_id: str) -> list[Effect]:
        return [effect for stream in await self._all(tenant_id) for effect in stream.of(Effect)]

    async def get_effect(self, tenant_id: str, effect_id: str) -> Effect | None:
        return next((found for found in await self._effects(tenant_id) if found.id == effect_id), None)

    async def find_effect(self, tenant_id: str, key: str) -> Effect | None:
        effects = await self._effects(tenant_id)
        return next((found for found in effects if found.idempotency_key == key), None)

    async def list_effects(
        self,
        tenant_id: str,
        *,
        status: EffectStatus | None = None,
        effect_type: str | None = None,
        error_code: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Effect]:
        wanted = [
            effect
            for effect in await self._effects(tenant_id)
            if status in (None, effect.status)
            and effect_type in (None, effect.effect_type)
            and error_code in (None, _error_code(effect))
            and (after is None or effect.id < after)
        ]
        return sorted(wanted, key=lambda effect: effect.id, reverse=True)[:limit]

    async def effect_groups(
        self, tenant_id: str, *, status: EffectStatus | None = None
    ) -> Sequence[EffectGroup]:
        effects = [found for found in await self._effects(tenant_id) if status in (None, found.status)]
        counts = Counter((found.status, found.effect_type, _error_code(found)) for found in effects)
        return [
            EffectGroup(status=state, effect_type=kind, error_code=code, count=count)
            for (state, kind, code), count in sorted(
                counts.items(), key=lambda group: (group[0][0], group[0][1], group[0][2] or "")
            )
        ]

    async def get_entity(self, tenant_id: str, stream_id: str) -> Entity | None:
        stream = await self._find(tenant_id, stream_id)
        return next(iter(stream.of(Entity)), None) if stream else None

    async def list_entities(
        self,
        tenant_id: str,
        *,
        entity_type: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Entity]:
        entities = [entity for stream in await self._all(tenant_id) for entity in stream.of(Entity)]
        wanted = [entity for entity in entities if entity_type in (None, entity.entity_type)]
        page = [entity for entity in wanted if after is None or _named(entity) > after]
        return sorted(page, key=_named)[:limit]

    async def get_schedule(self, tenant_id: str, stream_id: str) -> Schedule | None:
        stream = await self._find(tenant_id, stream_id)
        return next(iter(stream.of(Schedule)), None) if stream else None

    async def find_schedule(self, tenant_id: str, name: str) -> Schedule | None:
        schedules = [schedule for stream in await self._all(tenant_id) for schedule in stream.of(Schedule)]
        return next((schedule for schedule in schedules if schedule.name == name), None)

    async def list_schedules(
        self,
        tenant_id: str,
        *,
        status: ScheduleStatus | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Schedule]:
        schedules = [schedule for stream in await self._all(tenant_id) for schedule in stream.of(Schedule)]
        wanted = [one for one in schedules if status in (None, one.status) and task in (None, one.task)]
        page = [one for one in wanted if after is None or one.name > after]
        return sorted(page, key=lambda schedule: schedule.name)[:limit]

    async def rows(self, tenant_id: str, stream_id: str) -> Sequence[Row]:
        stream = await self._find(tenant_id, stream_id)
        return stream.all_rows() if stream else []

    async def examine(self, tenant_id: str, stream_id: str) -> tuple[Stream, Sequence[Row]] | None:
        stream = await self._find(tenant_id, stream_id)
        return (stream.whole(), stream.all_rows()) if stream else None

    async def correlation(self, tenant_id: str, correlation_id: str) -> Sequence[Stream]:
        streams = await self._all(tenant_id)
        return [stream.whole() for stream in streams if stream.events[0].correlation_id == correlation_id]

    async def heads(self, tenant_id: str, correlation_id: str) -> Sequence[StreamHead]:
        return [stream.head for stream in await self.correlation(tenant_id, correlation_id)]

    async def correlations(self, tenant_id: str | None = None) -> AsyncIterator[tuple[str, str]]:
        streams = await self._all(tenant_id)
        for found in dict.fromkeys((s.head.tenant_id, s.events[0].correlation_id) for s in streams):
            yield found

    async def count_events(self, tenant_id: str | None = None) -> int:
        return sum(len(stream.events) for stream in await self._all(tenant_id))

    async def count_runs(self, tenant_id: str | None = None) -> dict[str, int]:
        return Counter(run.status for stream in await self._all(tenant_id) for run in stream.of(Run))

    async def self_check(self) -> Sequence[str]:
        await self._turn()
        headless = [stream_id for stream_id, stream in self.data.streams.items() if not stream.events]
        return [f"stream {stream_id} has a head and no events" for stream_id in headless]


def _named(entity: Entity) -> tuple[str, str]:
    return entity.entity_type, entity.entity_id


def _error_code(effect: Effect) -> str | None:
    """The code of an effect's last error."""
    return None if effect.error_details is None else msgspec.json.decode(effect.error_details)["code"]
