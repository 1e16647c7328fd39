"""The registry: every module of `benchmarks.suite` declares one `BENCHMARK`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, TypeAlias

import msgspec

from benchmarks import suite
from benchmarks.report import Report

Progress: TypeAlias = Callable[[str], None]
"""Tells a waiting person what is being done."""


class Run(Protocol):
    """Takes the measurements.

    `quick` ends within 45 seconds on two cores. `scale` multiplies every size: far below 1, the
    benchmark still runs every line of its code, and its figures mean nothing.
    """

    def __call__(self, quick: bool, progress: Progress, scale: float = 1.0) -> Report: ...


class Benchmark(msgspec.Struct, frozen=True):
    """What a module of the suite declares."""

    name: str
    description: str
    run: Run


def benchmarks() -> dict[str, Benchmark]:
    """All of them by name, in alphabetical order."""
    modules = (import_module(f"{suite.__name__}.{found.name}") for found in iter_modules(suite.__path__))
    declared: list[Benchmark] = [module.BENCHMARK for module in modules]
    return {benchmark.name: benchmark for benchmark in sorted(declared, key=lambda each: each.name)}
