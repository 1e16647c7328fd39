"""The calendar: when a schedule is due, by cron's rules and a zone's clock.

What it says is recorded by whoever asks, and not asked again: zones change, and so may these rules.
Times of day that a zone leaves out in spring come as soon as they can; those that it has twice in
autumn come the first time, as Debian's cron has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from runstone.errors import InvalidPayload, SettingsInvalid

if TYPE_CHECKING:
    from cronsim import CronSim

INSTALL: Final = "pip install 'runstone[effects]'"
_STEPS: Final = 100
"""How far to look for a time that is not the same one again: an hour that a zone has twice is long over."""


def check_cron(cron: str, timezone: str) -> None:
    """Refuses a zone that nobody knows, an expression that is none, and one whose time never comes."""
    next_due(cron, timezone, datetime(2000, 1, 1, tzinfo=UTC))


def next_due(cron: str, timezone: str, after: datetime) -> datetime:
    """The first time after this moment, in UTC."""
    zone = _zone(timezone)
    for moment in islice(_times(cron, after.astimezone(zone)), _STEPS):
        if moment > after:
            return moment
    raise InvalidPayload("/cron", f"the time {cron!r} does not come within 50 years")


def latest_due(cron: str, timezone: str, since: datetime, now: datetime) -> datetime:
    """The last time up to now: of all that were missed since then, the one that counts."""
    start = now.astimezone(_zone(timezone)) + timedelta(seconds=1)
    back = (moment for moment in islice(_times(cron, start, back=True), _STEPS) if moment <= now)
    latest = max(since, next(back, since))
    for moment in islice(_times(cron, latest.astimezone(start.tzinfo)), _STEPS):
        if moment > now:
            break
        latest = max(latest, moment)  # backwards, an hour that a zone has twice is gone through once
    return latest


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise InvalidPayload(
            "/timezone", f"{name!r} is no time zone: write one such as Europe/Berlin, or UTC"
        ) from error


def _times(cron: str, start: datetime, *, back: bool = False) -> Iterator[datetime]:
    """The times that follow, or come before; the same clock may tell one of them twice."""
    simulated = _simulate(cron, start, back)
    try:
        for moment in simulated:
            yield moment.astimezone(UTC)
    except OverflowError:  # the calendar has an end
        return


def _simulate(cron: str, start: datetime, back: bool) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError as error:
        raise SettingsInvalid(
            f"A schedule by cron needs cronsim, which is not installed: {INSTALL}"
        ) from error
    try:
        return CronSim(cron, start, reverse=back)
    except CronSimError as error:
        raise InvalidPayload(
            "/cron",
            f"{cron!r} is no cron expression ({error}): write minute, hour, day, month and weekday, "
            "as in '30 6 * * MON-FRI'",
        ) from error
