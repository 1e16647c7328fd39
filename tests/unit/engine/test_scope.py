"""Scopes: where a branch stands, and what is the same there on replay."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from runstone.engine.scope import CURRENT, Scope, cancelled_from_outside, current_scope
from runstone.errors import RegistrationError, UseRunGather

START = datetime(2024, 2, 29, tzinfo=UTC)


def root(run_id: str = "run") -> Scope:
    return Scope(run_id, "", START, None)


def test_a_step_is_known_by_name_and_occurrence_in_its_branch() -> None:
    scope = root()
    assert [scope.key("a"), scope.key("b"), scope.key("a")] == ["a#1", "b#1", "a#2"]
    first = scope.child(scope.key("gather"), 0)
    second = scope.child("gather#1", 1)
    assert [first.key("a"), second.key("a"), first.key("a")] == [
        "gather#1.0/a#1",
        "gather#1.1/a#1",
        "gather#1.0/a#2",
    ]
    assert first.child(first.key("first"), 3).key("a") == "gather#1.0/first#1.3/a#1"


@pytest.mark.parametrize("name", ["", "a/b", "#"])
def test_names_that_look_like_keys_are_refused(name: str) -> None:
    with pytest.raises(RegistrationError):
        root().key(name)


def test_chance_and_ids_depend_on_run_scope_and_ordinal_alone() -> None:
    def draws(scope: Scope) -> list[object]:
        return [scope.random(), scope.random(), scope.uuid(), scope.uuid()]

    mine = draws(root())
    assert mine == draws(root())
    assert len(set(mine)) == 4
    assert not set(mine) & set(draws(root("other run")))
    assert not set(mine) & set(draws(root().child("gather#1", 0)))


def test_chance_does_not_depend_on_the_steps_between() -> None:
    busy = root()
    first = busy.random()
    busy.key("step")
    assert [first, busy.random()] == [(calm := root()).random(), calm.random()]


def test_a_branch_begins_with_what_its_parent_has_seen_and_time_does_not_go_back() -> None:
    scope = root()
    scope.saw(START + timedelta(seconds=5), "event")
    child = scope.child("gather#1", 0)
    assert (child.now, child.cause) == (START + timedelta(seconds=5), "event")
    scope.saw(START, "earlier")
    assert (scope.now, scope.cause) == (START + timedelta(seconds=5), "earlier")


async def test_only_its_own_task_has_a_scope() -> None:
    with pytest.raises(UseRunGather):
        current_scope()
    scope = root()
    scope.task = asyncio.current_task()
    token = CURRENT.set(scope)
    try:
        assert current_scope() is scope

        async def elsewhere() -> None:
            current_scope()

        with pytest.raises(UseRunGather):
            await asyncio.create_task(elsewhere())
        with pytest.raises(UseRunGather):
            await asyncio.gather(elsewhere())
    finally:
        CURRENT.reset(token)


async def test_a_cancellation_from_outside_is_told_from_one_of_ones_own() -> None:
    seen: list[bool] = []

    async def own() -> None:
        try:
            raise asyncio.CancelledError
        except asyncio.CancelledError:
            seen.append(cancelled_from_outside())

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(cancelled_from_outside())

    await asyncio.create_task(own())
    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert seen == [False, True]
