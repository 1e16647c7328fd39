"""The circuit of each host: one that only fails is left alone, so that it does not use up every worker.

Closed, calls go through. After some failures in a row it opens, and effects for that host are put
back without counting a retry. When its rest is over it is half open: one call goes through as a
probe, and its outcome closes the circuit or opens it for longer. This is each process's own view,
kept in memory: nothing is lost with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

FAILURES: Final = 5
"""Failures in a row that open a circuit."""
REST: Final = timedelta(seconds=10)
LONGEST_REST: Final = timedelta(minutes=5)
HOSTS_KEPT: Final = 10_000


@dataclass
class _Circuit:
    failures: int = 0
    opened: int = 0
    """How often in a row it was opened: its rests grow with that."""
    until: datetime | None = None
    """Open: until then. None: closed."""
    probing: bool = False


class Circuits:
    """The circuits of all hosts that this process calls."""

    def __init__(
        self,
        *,
        jitter: Callable[[], float],
        failures: int = FAILURES,
        rest: timedelta = REST,
        longest: timedelta = LONGEST_REST,
    ) -> None:
        self._jitter = jitter
        self._failures = failures
        self._rest = rest
        self._longest = longest
        self._circuits: dict[str, _Circuit] = {}

    def admit(self, host: str, now: datetime) -> datetime | None:
        """None: go ahead. A time: the circuit is open, try not before then."""
        circuit = self._circuits.get(host)
        if circuit is None or circuit.until is None:
            return None
        if now < circuit.until:
            return circuit.until
        if circuit.probing:
            return now + self._rest
        circuit.probing = True
        return None

    def succeeded(self, host: str) -> None:
        """The host answers, whatever it said."""
        self._circuits.pop(host, None)

    def failed(self, host: str, now: datetime) -> None:
        """The host itself failed."""
        circuit = self._circuits.setdefault(host, _Circuit())
        circuit.failures += 1
        if circuit.probing or (circuit.until is None and circuit.failures >= self._failures):
            circuit.opened += 1
            bound = min(self._longest, self._rest * (1 << min(circuit.opened - 1, 10)))
            circuit.until = now + bound * (0.5 + self._jitter() / 2)
            circuit.probing = False
        if len(self._circuits) > HOSTS_KEPT:
            self._circuits.pop(next(iter(self._circuits)))

    def gave_up(self, host: str) -> None:
        """The call was dropped and says nothing of the host: if it was the probe, another may go."""
        circuit = self._circuits.get(host)
        if circuit is not None:
            circuit.probing = False

    @property
    def open_hosts(self) -> list[str]:
        """The hosts that are left alone, for people to see."""
        return sorted(host for host, circuit in self._circuits.items() if circuit.until is not None)
