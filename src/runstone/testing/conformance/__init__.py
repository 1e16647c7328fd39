"""The conformance suites: an adapter exists when it passes those of its parts (§STO-2).

An adapter's own test file says how the store is opened, and nothing else:

    import pytest
    from runstone.testing.conformance import EventLogSuite, HostSuite, QueriesSuite

    class TestMyStore(EventLogSuite, HostSuite, QueriesSuite):
        @pytest.fixture
        def open_store(self, tmp_path):
            async def open_store(clock):
                return await MyStore.open(tmp_path / "store", clock=clock)
            return open_store

`open_store` is called several times in a test, never while a store it gave before is open, and
always has to open the same data; `tmp_path` is new for each test, so each test begins with
none. The store has to ask the given clock, and no other, what time it is: tests never sleep.

An adapter that has only the `EventLog` part subclasses `EventLogSuite` alone. `HostSuite` needs
`EventLog` and `Host`, and `QueriesSuite` needs every part, as do `RetentionSuite` and `HealthSuite`, which
prove how a store forgets what was archived and what it says of how it is doing.

`walk_faults` walks a fault through a scenario of your own.
"""

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in pkgutil.iter_modules(__path__)))

from runstone.testing.conformance.event_log import EventLogSuite  # noqa: E402
from runstone.testing.conformance.health import HealthSuite  # noqa: E402
from runstone.testing.conformance.host import HostSuite  # noqa: E402
from runstone.testing.conformance.queries import QueriesSuite  # noqa: E402
from runstone.testing.conformance.retention import RetentionSuite  # noqa: E402
from runstone.testing.conformance.scene import OpenStore, Scene  # noqa: E402
from runstone.testing.conformance.walks import walk_faults  # noqa: E402

__all__ = [
    "EventLogSuite",
    "HealthSuite",
    "HostSuite",
    "OpenStore",
    "QueriesSuite",
    "RetentionSuite",
    "Scene",
    "walk_faults",
]
