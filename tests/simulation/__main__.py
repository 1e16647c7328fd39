"""`python -m tests.simulation`: many seeds on all processors, or one seed in detail."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.seeds import simulate, told
from tests.simulation.stage import Story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one, and tell what happened in it")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _one(arguments.seed)
    return _many(range(arguments.first, arguments.first + arguments.seeds))


def _one(seed: int) -> int:
    story = simulate(seed)
    print("\n".join(story.actions))
    print(told(story) if story.findings else f"seed {seed}: {story.events} events, trace {story.trace}")
    return bool(story.findings)


def _many(seeds: range) -> int:
    failed = events = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for story in pool.map(simulate, seeds, chunksize=5):
            events += story.events
            if story.findings:
                failed += 1
                _tell(story)
    print(f"{len(seeds)} seeds from {seeds.start}, {events} events, {failed} failed")
    return bool(failed)


def _tell(story: Story) -> None:
    print(told(story), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
