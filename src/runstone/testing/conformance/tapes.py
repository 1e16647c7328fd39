"""How hypothesis makes histories: the tapes they are read from, and how many are tried."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

tapes = st.binary(min_size=200, max_size=600).map(lambda tape: tape.rstrip(b"\0"))
"""Numbers to choose by, without zeros at the end, which a tape that has run out gives anyway."""

lengths = st.integers(1, 40)

random_histories = settings(
    max_examples=25,
    deadline=None,
    # One store serves all examples, each in a tenant of its own; one suite serves all adapters.
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
