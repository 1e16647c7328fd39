"""For tests, ours and yours: an app in virtual time, legal histories, faults, the proof of a store.

Install it with `pip install runstone[testing]`.
"""

from runstone.testing.golden import HistoryDiffers, assert_replays
from runstone.testing.loop import Stuck, run_virtual, virtual_time
from runstone.testing.simulator import RequestedEffect, Simulator

__all__ = [
    "HistoryDiffers",
    "RequestedEffect",
    "Simulator",
    "Stuck",
    "assert_replays",
    "run_virtual",
    "virtual_time",
]
