"""What cannot be read is a finding; what only cannot be reached just now is an error (§STO-42)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from runstone.audit.verify import verify_all, verify_run
from runstone.core.rows import Row
from runstone.core.stream import Stream
from runstone.core.verify import Finding
from runstone.errors import NotFound, StoreBusy, StoreClosed, StoreCorrupt
from runstone.stores.sqlite import SqliteStore
from tests.integration.audit import scene


async def found(store: SqliteStore) -> list[Finding]:
    return [finding async for verified in verify_all(store) for finding in verified.findings]


class Broken(SqliteStore):
    """A store in which one thing fails, with damage or without."""

    error: Exception | None = None
    error_of: str = ""

    def _fail(self, operation: str) -> None:
        if self.error is not None and operation == self.error_of:
            raise self.error

    async def examine(self, tenant_id: str, stream_id: str) -> tuple[Stream, Sequence[Row]] | None:
        self._fail("examine")
        return await super().examine(tenant_id, stream_id)

    async def correlations(self, tenant_id: str | None = None) -> AsyncIterator[tuple[str, str]]:
        async for place in super().correlations(tenant_id):
            yield place
            self._fail("correlations")

    async def self_check(self) -> Sequence[str]:
        self._fail("self_check")
        return await super().self_check()


@pytest.mark.parametrize(
    ("operation", "count"), [("examine", scene.STREAMS), ("correlations", 1), ("self_check", 1)]
)
async def test_damage_below_any_question_is_a_finding(operation: str, count: int, pristine: Path) -> None:
    async with await Broken.open(pristine, inline=True) as store:
        assert isinstance(store, Broken)
        store.error, store.error_of = StoreCorrupt("a damaged page"), operation
        findings = await found(store)
    assert [finding.found for finding in findings] == ["a damaged page"] * count


@pytest.mark.parametrize("operation", ["examine", "correlations", "self_check"])
async def test_a_store_that_is_only_busy_is_an_error_and_no_finding(operation: str, pristine: Path) -> None:
    async with await Broken.open(pristine, inline=True) as store:
        assert isinstance(store, Broken)
        store.error, store.error_of = StoreBusy(), operation
        with pytest.raises(StoreBusy):
            await found(store)


async def test_a_closed_store_and_an_unknown_run_are_errors(pristine: Path) -> None:
    async with await SqliteStore.open(pristine, inline=True) as store:
        with pytest.raises(NotFound):
            await verify_run(store, scene.TENANT, scene.OTHER_TENANT)
    with pytest.raises(StoreClosed):
        await found(store)


class Impossible(SqliteStore):
    """A store that hands out values no store could have written."""

    async def examine(self, tenant_id: str, stream_id: str) -> tuple[Stream, Sequence[Row]] | None:
        examined = await super().examine(tenant_id, stream_id)
        assert examined is not None
        stream, rows = examined
        events = [replace(event, actor=object()) for event in stream.events]
        return replace(stream, events=tuple(events)), rows


async def test_values_that_break_a_check_are_findings(pristine: Path) -> None:
    async with await Impossible.open(pristine, inline=True) as store:
        findings = await found(store)
    assert [finding.check for finding in findings] == ["unreadable"] * scene.STREAMS


async def test_progress_adds_up_to_all_events(pristine: Path) -> None:
    async with await SqliteStore.open(pristine, inline=True) as store:
        verified = [part async for part in verify_all(store)]
        assert sum(part.events for part in verified) == await store.count_events()
        assert [bool(part.correlation_id) for part in verified] == [True] * scene.CORRELATIONS + [False] * 3
        ours = [part async for part in verify_all(store, scene.OTHER_TENANT)]
        assert [part.tenant_id for part in ours] == [scene.OTHER_TENANT, ""]
