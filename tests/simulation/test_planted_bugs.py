"""The simulation finds bugs: each of these, planted on purpose, within a thousand seeds."""

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.seeds import first_failure, told


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, handlers = BUGS[name]
    plant(monkeypatch)
    story = first_failure(range(1000), handlers)
    assert story is not None, f"{name} went unnoticed for 1,000 seeds"
    assert f"SEED={story.seed}" in told(story)
