"""Where the figures come from: without it, none of them means anything."""

from __future__ import annotations

import os
import platform
import sqlite3
from typing import Any


def facts() -> dict[str, Any]:
    """The machine, as far as it bears on the figures; its load shows whether they were taken in peace."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
    }
