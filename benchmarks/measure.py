"""How measurements are taken: repeatedly, on a real disk, undisturbed by what was prepared for them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

SCRATCH: Final = Path(__file__).parents[1] / "build"
"""Not the system's folder for temporary files: that may be memory, where a sync costs nothing."""


MEANINGFUL: Final = 0.05
"""The scale below which nothing is measured, whatever figures come out."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder on the disk that the project is on, gone afterwards."""
    SCRATCH.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="bench-", dir=SCRATCH) as folder:
        yield Path(folder)


@contextmanager
def undisturbed() -> Iterator[None]:
    """What was prepared before is no garbage to look through in here."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Spread(msgspec.Struct, frozen=True):
    """Repeated measurements of one thing."""

    middle: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


def rounds_of(count: int, scale: float, least: int = 1) -> range:
    """So many rounds; the least where sizes are so small that it only shows that it runs."""
    return range(count if scale >= MEANINGFUL else least)


def scaled(size: int, scale: float, least: int = 1) -> int:
    """A size, scaled."""
    return max(least, round(size * scale))
