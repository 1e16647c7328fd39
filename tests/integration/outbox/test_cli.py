"""`runstone outbox` and `runstone effects` on either store: dead letters, unknown outcomes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from runstone.cli.outbox import operator
from runstone.core import commands
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.errors import CommandRefused, NotFound
from runstone.outbox import operations
from runstone.ports.clock import Clock
from runstone.ports.store import Store
from runstone.stores.postgres import PostgresStore
from runstone.testing.conformance.outbox import effects_of, requested
from runstone.testing.conformance.scene import Scene
from tests.integration.desk import Desk

CODES = ("GONE", "GONE", "BUSY")
KEY = "Invoice-7"


class Letters(Desk):
    """A store with three dead letters and one unknown outcome."""

    async def fill(self, scene: Scene) -> None:
        self.dead: list[Effect] = []
        for code in CODES:
            case = await requested(scene)
            (effect,) = effects_of(case)
            error = ErrorInfo(category="EXTERNAL", code=code, message="it says no")
            now = scene.clock.now()
            await scene.carry(
                case,
                commands.FailEffect(effect_id=effect.id, executor="d", error=error, next_retry_at=now),
            )
            self.dead.append(effect)
        case = await requested(scene, delivery="at_most_once", effect_key=KEY)
        (self.unknown,) = effects_of(case)
        await scene.carry(
            case,
            commands.BeginEffect(effect_id=self.unknown.id, executor="d"),
            commands.LoseEffect(effect_id=self.unknown.id, executor="d"),
        )

    def statuses(self) -> dict[str, str]:
        lines = (line.split("\t") for line in self.lines("outbox", "list"))
        return {line[0]: line[1] for line in lines}


class LettersOnAServer(Letters):
    async def open(self, clock: Clock) -> Store:
        return await PostgresStore.open(str(self.path), clock=clock)


@pytest.fixture(params=["sqlite", "postgres"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Letters:
    if request.param == "postgres":
        return LettersOnAServer(request.getfixturevalue("postgres_url"))
    return Letters(tmp_path / "desk.db")


def test_effects_are_listed(desk: Letters) -> None:
    assert sorted(desk.statuses().values()) == ["DEAD_LETTER"] * 3 + ["UNKNOWN"]
    (line,) = desk.lines("outbox", "list", "--error", "BUSY")
    assert line.split("\t")[:4] == [desk.dead[2].id, "DEAD_LETTER", "NOTIFY_USER", "1"]
    assert len(desk.lines("outbox", "list", "--status", "dead_letter", "--limit", "2")) == 2
    (row,) = desk.lines("outbox", "list", "--status", "UNKNOWN", "--json")
    assert msgspec.json.decode(row)["id"] == desk.unknown.id


def test_groups_are_counted(desk: Letters) -> None:
    assert desk.lines("outbox", "list", "--groups", "--status", "DEAD_LETTER") == [
        "DEAD_LETTER\tNOTIFY_USER\tBUSY\t1",
        "DEAD_LETTER\tNOTIFY_USER\tGONE\t2",
    ]
    assert len(desk.lines("outbox", "list", "--groups", "--json")) == 3
    assert desk.lines("outbox", "list", "--groups", "--type", "OTHER") == []
    assert desk.lines("outbox", "list", "--groups", "--error", "GONE") == [
        "DEAD_LETTER\tNOTIFY_USER\tGONE\t2"
    ]
    assert desk.lines("outbox", "list", "--groups", "--limit", "1") == ["DEAD_LETTER\tNOTIFY_USER\tBUSY\t1"]


def test_one_effect_is_shown_with_its_history(desk: Letters) -> None:
    assert re.fullmatch("[0-9a-f]{64}", desk.dead[0].idempotency_key)
    for name in (desk.dead[0].id, desk.dead[0].id.upper(), desk.dead[0].idempotency_key):
        row, *history = desk.lines("outbox", "show", name)
        assert msgspec.json.decode(row)["status"] == "DEAD_LETTER"
        types = [line.split("  ")[1] for line in history]
        assert types == ["EFFECT_REQUESTED", "EFFECT_EXECUTING", "EFFECT_FAILED", "EFFECT_DEAD_LETTERED"]
    row, *_ = desk.lines("outbox", "show", KEY)
    assert msgspec.json.decode(row)["id"] == desk.unknown.id
    for name in ("nothing", "f" * 64, desk.tenant_id):
        assert isinstance(desk.call("outbox", "show", name).exception, NotFound)


def test_dead_letters_are_requeued_by_id_and_discarded_by_group(desk: Letters) -> None:
    """§OUT-31: the history stays."""
    first = desk.dead[0].id
    assert desk.lines("outbox", "requeue", first, "--dry-run") == ["1 dead letter would be requeued"]
    assert desk.statuses()[first] == "DEAD_LETTER"
    assert desk.lines("outbox", "requeue", first, "--reason", "fixed") == ["1 dead letter requeued"]
    assert desk.statuses()[first] == "PENDING"
    assert desk.lines("outbox", "discard", "--error", "GONE", "--dry-run") == [
        "1 dead letter would be discarded"
    ]
    assert desk.lines("outbox", "discard", "--error", "GONE") == ["1 dead letter discarded"]
    assert desk.lines("outbox", "requeue", "--all") == ["1 dead letter requeued"]
    assert list(desk.statuses().values()).count("DEAD_LETTER") == 0
    history = desk.lines("outbox", "show", first)
    assert "EFFECT_REQUEUED  operator:" in history[-1]
    assert '{"reason":"fixed"}' in history[-1]
    assert isinstance(desk.call("outbox", "requeue", first).exception, CommandRefused)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize("verb", ["requeue", "discard"])
def test_all_that_are_named_have_to_be_dead_letters(desk: Letters, verb: str, more: tuple[str, ...]) -> None:
    """Or nothing is done, and a rehearsal says so too."""
    before = desk.statuses()
    done = desk.call("outbox", verb, desk.dead[0].id, KEY, desk.dead[1].id, *more)
    assert isinstance(done.exception, CommandRefused)
    assert f"{desk.unknown.id} (UNKNOWN)" in str(done.exception)
    assert desk.dead[0].id not in str(done.exception)
    assert desk.statuses() == before


def test_one_that_is_named_twice_is_one(desk: Letters) -> None:
    first = desk.dead[0]
    assert desk.lines("outbox", "discard", first.id, first.idempotency_key) == ["1 dead letter discarded"]


def test_one_that_somebody_deals_with_meanwhile_is_left_alone(
    desk: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are dealt with, and what was done is said."""
    find_dead = operations.find_dead

    async def find_and_lose_one(store: Store, tenant_id: str, names: Iterable[str]) -> list[Effect]:
        found = await find_dead(store, tenant_id, names)
        await operations.apply(store, found[1], operations.discard(""), operator())
        return found

    monkeypatch.setattr(operations, "find_dead", find_and_lose_one)
    ids = [effect.id for effect in desk.dead]
    done = desk.call("outbox", "requeue", *ids, standalone_mode=False)
    assert done.return_value == 1
    assert done.output == (f"2 dead letters requeued, 1 left alone, no dead letters any more: {ids[1]}\n")
    statuses = desk.statuses()
    assert [statuses[each] for each in ids] == ["PENDING", "CANCELLED", "PENDING"]


@pytest.mark.parametrize("arguments", [("requeue",), ("discard", "x", "--all")])
def test_what_is_meant_has_to_be_clear(desk: Letters, arguments: tuple[str, ...]) -> None:
    done = desk.call("outbox", *arguments)
    assert done.exit_code == 2
    assert "Name effects, or a group" in done.output


@pytest.mark.parametrize(("flag", "status"), [("--sent", "COMPLETED"), ("--not-sent", "PENDING")])
def test_an_unknown_outcome_is_resolved(desk: Letters, flag: str, status: str) -> None:
    """§OUT-27"""
    (said,) = desk.lines("effects", "reconcile", KEY, flag, "--evidence", "asked the bank")
    assert said.startswith(desk.unknown.id)
    assert desk.statuses()[desk.unknown.id] == status
    assert "asked the bank" in desk.lines("outbox", "show", desk.unknown.id)[-1]
    assert isinstance(desk.call("effects", "reconcile", desk.unknown.id, flag).exception, CommandRefused)


@pytest.mark.parametrize("flags", [(), ("--sent", "--not-sent"), ("--not-sent", "--sent")])
def test_one_has_to_say_which(desk: Letters, flags: tuple[str, ...]) -> None:
    """Were the last of both to win, what must not be sent twice would be."""
    done = desk.call("effects", "reconcile", KEY, *flags)
    assert done.exit_code == 2
    assert "either --sent or --not-sent" in done.output
    assert desk.statuses()[desk.unknown.id] == "UNKNOWN"


def test_nothing_of_an_effect_is_shown_that_a_terminal_would_obey(desk: Letters) -> None:
    """Reasons, errors and specs are anybody's text."""
    effect = desk.dead[0].id
    desk.lines("outbox", "discard", effect, "--reason", "\x9b2Jbecause\x7f")
    row, *history = desk.lines("outbox", "show", effect)
    assert msgspec.json.decode(row)["status"] == "CANCELLED"
    assert all(line.isprintable() for line in (row, *history))
    assert "because" in history[-1]
