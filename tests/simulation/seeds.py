"""One seed, or many: played, checked, and told so that anybody can repeat it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tests.simulation.driver import Simulation
from tests.simulation.invariants import check
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stage import Story


def simulate(seed: int, handlers: Collection[str] = ()) -> Story:
    """Plays a seed and checks what came of it; only with these handlers, if some are named."""
    scenarios = [scenario for scenario in SCENARIOS if not handlers or scenario.handler in handlers]
    simulation = Simulation(seed, scenarios=scenarios)
    story = simulation.run()
    story.findings = check(simulation)
    return story


def first_failure(seeds: Iterable[int], handlers: Collection[str] = ()) -> Story | None:
    """The first story that goes wrong."""
    return next((story for seed in seeds if (story := simulate(seed, handlers)).findings), None)


def told(story: Story) -> str:
    """What went wrong, and the command that repeats it."""
    findings = "\n".join(f"  {finding}" for finding in story.findings[:10])
    return f"seed {story.seed}:\n{findings}\nRepeat it with: make simulate SEED={story.seed}"
