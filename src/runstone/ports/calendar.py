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
_SECOND: Final = timedelta(seconds=1)
"""No two times are closer together."""


def check_cron(cron: str, timezone: str) -> None:
    """Refuses a zone that nobody knows, an expression that is none, and one whose time never comes."""
    next_due(cron, timezone, datetime(2000, 1, 1, tzinfo=UTC))


def next_due(cron: str, timezone: str, after: datetime) -> datetime:
    """The first time after this moment, in UTC."""
    moment = _first(cron, _zone(timezone), after)
    if moment is None:
        raise InvalidPayload("/cron", f"the time {cron!r} does not come within 50 years")
    return moment


def latest_due(cron: str, timezone: str, since: datetime, now: datetime) -> datetime:
    """The last time up to now: of all that were missed since that one, the one that counts.

    Only ever looked for forwards, so that it is one of the times that `next_due` tells; halving what is left
    makes few looks of many years, and none of a moment.
    """
    zone, latest, end = _zone(timezone), since, now
    while end - latest >= _SECOND:
        middle = latest + (end - latest) / 2
        moment = _first(cron, zone, middle)
        if moment is None or moment > now:
            end = middle
        else:
            latest = moment
    return latest


def _first(cron: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    for moment in islice(_times(cron, after.astimezone(zone)), _STEPS):
        if moment > after:
            return moment
    return None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise InvalidPayload(
            "/timezone", f"{name!r} is no time zone: write one such as Europe/Berlin, or UTC"
        ) from error


def _times(cron: str, start: datetime) -> Iterator[datetime]:
    """The times that follow; the same clock may tell one of them twice."""
    simulated = _simulate(cron, start)
    try:
        for moment in simulated:
            yield moment.astimezone(UTC)
    except OverflowError:  # the calendar has an end
        return


def _simulate(cron: str, start: datetime) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError as error:
        raise SettingsInvalid(
            f"A schedule by cron needs cronsim, which is not installed: {INSTALL}"
        ) from error
    try:
        return CronSim(cron, start)
    except CronSimError as error:
        raise InvalidPayload(
            "/cron",
            f"{cron!r} is no cron expression ({error}): write minute, hour, day, month and weekday, "
            "as in '30 6 * * MON-FRI'",
        ) from error
