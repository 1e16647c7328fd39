"""A desk for each test; dispatchers that died at it are buried afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.outbox.desk import Desk


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    calls = [call for dispatcher in desk.dead for call in dispatcher._calls]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
