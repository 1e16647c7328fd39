"""`runstone verify`: proves that nothing in the store was changed, lost or made up (§STO-41, §STO-42)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click

from runstone.audit.archive import Archive
from runstone.audit.verify import Verified, verify_all, verify_run
from runstone.cli.lookup import find_run
from runstone.cli.options import Options, with_options
from runstone.cli.output import counted, progress, say, say_json
from runstone.core.verify import Finding
from runstone.errors import RunArchived, RunstoneError, StoreCorrupt
from runstone.ports.store import Store

_BEFORE: Final = 40
_SHOWN: Final = 200
"""Of a long value, so much is shown around the place where it parts from the other."""


@click.command("verify")
@click.argument("run", required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Every run, and the store itself. Default without RUN."
)
@click.option(
    "--archive",
    metavar="DIR",
    help="Also prove that the bundles of what was archived are there, as they were.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all values in full.")
@with_options
@click.pass_obj
def verify_command(
    options: Options, run: str | None, everything: bool, archive: str | None, as_json: bool
) -> int:
    """Prove that the log is whole and that all rows follow from it.

    With RUN, that run and everything of its correlation. Exit code 1 if anything is not as it has to
    be; every difference is shown with the value expected and the value found.
    """
    if run is not None and everything:
        raise click.UsageError("Name a run or say --all, not both.")
    verified = asyncio.run(_verify(options, run, Archive(Path(archive).expanduser()) if archive else None))
    findings = [finding for part in verified for finding in part.findings]
    if as_json:
        say_json({**_totals(verified), "ok": not findings, "findings": findings})
    else:
        _report(verified, findings)
    return 1 if findings else 0


async def _verify(options: Options, run: str | None, archive: Archive | None) -> list[Verified]:
    try:
        async with options.open_store(folders=True) as store:
            if run is not None:
                run_id = await _find(store, options.tenant_id, run)
                return [await verify_run(store, options.tenant_id, run_id, archive)]
            return await _verify_all(store, options.tenant, archive)
    except StoreCorrupt as error:
        found = Finding(stream_id="", check="store", place="the file", expected="one", found=str(error))
        return [Verified(findings=(found,))]


async def _find(store: Store, tenant_id: str, run: str) -> str:
    """The run that is meant; for the proof a tombstone is as good as its stream."""
    try:
        return await find_run(store, tenant_id, run)
    except RunArchived as archived:
        return archived.stream_id


async def _verify_all(store: Store, tenant_id: str | None, archive: Archive | None) -> list[Verified]:
    try:
        total = await store.count_events(tenant_id)
    except RunstoneError:
        total = None
    verified: list[Verified] = []
    with progress("verifying", total) as advance:
        async for part in verify_all(store, tenant_id, archive):
            verified.append(part)
            advance(part.events)
    return verified


def _totals(verified: list[Verified]) -> dict[str, int]:
    return {
        "correlations": sum(bool(part.correlation_id) for part in verified),
        "streams": sum(part.streams for part in verified),
        "events": sum(part.events for part in verified),
        "archived": sum(part.archived for part in verified),
    }


def _report(verified: list[Verified], findings: list[Finding]) -> None:
    for finding in findings:
        of_stream = f" of stream {finding.stream_id}" if finding.stream_id else ""
        expected, found = around_difference(finding.expected, finding.found)
        say(f"{finding.check} at {finding.place}{of_stream}")
        say(f"  expected {expected}")
        say(f"  found    {found}")
    totals = _totals(verified)
    archived = totals.pop("archived")
    looked_at = ", ".join(counted(number, name[:-1]) for name, number in totals.items())
    if archived:
        looked_at += f", {counted(archived, 'tombstone')}"
    verdict = counted(len(findings), "finding") if findings else "all is as it has to be"
    say(f"Verified {looked_at}: {verdict}.")


def around_difference(expected: str, found: str) -> tuple[str, str]:
    """Two values, each cut down to the part where they differ."""
    same = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    if same is None:
        same = min(len(expected), len(found))
    start = max(0, same - _BEFORE) if max(len(expected), len(found)) > _SHOWN else 0
    return _cut(expected, start), _cut(found, start)


def _cut(text: str, start: int) -> str:
    before = "…" if start else ""
    after = f"… ({len(text)} characters)" if len(text) > start + _SHOWN else ""
    return f"{before}{text[start : start + _SHOWN]}{after}"
