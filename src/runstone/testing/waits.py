"""What a run waits for, said to who wrote the test: by the names of what would end the wait."""

from __future__ import annotations

from collections.abc import Iterator

from runstone.core.effect import EFFECT_WAIT, Effect
from runstone.core.state import RunState
from runstone.core.step import Step


def awaited(state: RunState) -> str:
    """All that an unfinished run waits for, and what the test can do about it."""
    return "; ".join(_awaited(state))


def _awaited(state: RunState) -> Iterator[str]:
    status = state.run.status if state.run is not None else None
    steps = [state.steps[step_id] for step_id in state.open_steps.values()]
    effects = [state.effects[effect_id] for effect_id in state.open_effects]
    if status == "PENDING" and state.approval_required:
        yield "it waits for approval: handle.approve()"
    elif status in ("PENDING", "APPROVED"):
        yield "it waits for its turn" + ("" if state.lane is None else f" in lane {state.lane!r}")
    elif status == "PAUSED":
        yield "it is paused: handle.paused() says why, handle.resume() lets it go on"
    elif steps:
        yield from (_step(state, step) for step in steps)
    elif effects:
        yield from map(_effect, effects)
    else:
        yield "its handler waits for something that is no step"


def _step(state: RunState, step: Step) -> str:
    if step.step_type != "WAIT":
        return f"step {step.step_key!r} has not ended"
    if step.wait_name is None:
        return f"it sleeps until {step.wait_deadline}"
    effect = state.effects.get(step.wait_name.removeprefix(EFFECT_WAIT))
    if effect is not None:
        return _effect(effect)
    return f"it waits for an answer to {step.wait_name!r}: handle.answer({step.wait_name!r}, …)"


def _effect(effect: Effect) -> str:
    return f"it waits for {effect.effect_type} {effect.id}: sim.deliver or sim.fail it"
