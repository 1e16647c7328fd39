"""One seed, or many: played, checked, and told so that anybody can repeat it."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.driver import Simulation, Story
from tests.simulation.invariants import check


def simulate(seed: int) -> Story:
    """Plays a seed and checks what came of it."""
    simulation = Simulation(seed)
    story = simulation.run()
    story.findings = check(simulation)
    return story


def first_failure(seeds: Iterable[int]) -> Story | None:
    """The first story that went wrong."""
    return next((story for seed in seeds if (story := simulate(seed)).findings), None)


def told(story: Story) -> str:
    """What went wrong, and the command that repeats it."""
    findings = "\n".join(f"  {finding}" for finding in story.findings[:10])
    return f"seed {story.seed}:\n{findings}\nRepeat it with: make simulate SEED={story.seed}"
