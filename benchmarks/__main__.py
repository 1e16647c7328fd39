"""`python -m benchmarks NAME [--quick] [--json FILE]`, `list` and `all`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

import click
import msgspec

from benchmarks import machine
from benchmarks.plots import svg
from benchmarks.registry import Benchmark, benchmarks
from benchmarks.report import Report, as_json, as_text

PLOTS: Final = Path(__file__).parent / "plots"


def program(known: Mapping[str, Benchmark]) -> click.Group:
    """Every benchmark is a command of its own; `list` and `all` are two more."""
    group = click.Group(
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Measures Runstone: ratios of figures taken side by side, in one run on one machine. "
        "A full run draws its plots into benchmarks/plots/; a quick one only says what it found. "
        "A missed target is reported, and no failure unless --strict says so.",
    )
    for benchmark in known.values():
        group.add_command(_command(benchmark.name, benchmark.description, [benchmark], together=False))
    group.add_command(_command("all", "every benchmark, one after another", [*known.values()], together=True))
    listing = partial(list_benchmarks, known)
    group.add_command(click.Command("list", callback=listing, help="Names, and what each measures."))
    return group


def list_benchmarks(known: Mapping[str, Benchmark]) -> None:
    for benchmark in known.values():
        click.echo(f"{benchmark.name:16} {benchmark.description}")


def measure(
    chosen: Sequence[Benchmark], together: bool, quick: bool, json: Path | None, strict: bool, scale: float
) -> None:
    """Runs the chosen ones, one after another."""
    facts = machine.facts()
    click.echo(", ".join(f"{name} {value}" for name, value in facts.items()))
    reports = [_measured(benchmark, quick, scale) for benchmark in chosen]
    if json is not None:
        found = [as_json(report, facts, quick=quick) for report in reports]
        written = msgspec.json.encode(found if together else found[0])
        json.write_bytes(msgspec.json.format(written) + b"\n")
    if not quick and scale >= 1:
        _draw(reports)
    if strict and any(report.missed for report in reports):
        sys.exit(1)


def _measured(benchmark: Benchmark, quick: bool, scale: float) -> Report:
    began = perf_counter()
    report = benchmark.run(quick, partial(_progress, benchmark.name), scale)
    click.echo(f"\n{as_text(report)}\n\n  took {perf_counter() - began:.0f} s")
    return report


def _progress(name: str, doing: str) -> None:
    click.echo(f"{name}: {doing}", err=True)


def _draw(reports: Sequence[Report]) -> None:
    PLOTS.mkdir(exist_ok=True)
    for plot in (plot for report in reports for plot in report.plots):
        (PLOTS / f"{plot.name}.svg").write_text(svg(plot), "utf-8")


def _command(name: str, description: str, chosen: Sequence[Benchmark], *, together: bool) -> click.Command:
    return click.Command(
        name,
        callback=partial(measure, chosen, together),
        short_help=description,
        help=description[0].upper() + description[1:] + ".",
        params=[
            click.Option(["--quick"], is_flag=True, help="Measure less: at most 45 s on two cores."),
            click.Option(
                ["--json"],
                type=click.Path(dir_okay=False, writable=True, path_type=Path),
                help="Write the findings to a file as well; those of `all` are a list.",
            ),
            click.Option(["--strict"], is_flag=True, help="Exit with 1 when a target is missed."),
            click.Option(
                ["--scale"],
                type=click.FloatRange(min=0, min_open=True),
                default=1.0,
                show_default=True,
                help="Multiply all sizes: small ones show that it runs, and nothing else.",
            ),
        ],
    )


if __name__ == "__main__":
    program(benchmarks())(prog_name="python -m benchmarks")
