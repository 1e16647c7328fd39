"""`runstone outbox` and `runstone effects` on a file: dead letters by id and by group, unknown outcomes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runstone.core import commands
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.errors import CommandRefused, NotFound
from runstone.testing.conformance.outbox import effects_of, requested
from runstone.testing.conformance.scene import Scene
from tests.integration.desk import Desk

CODES = ("GONE", "GONE", "BUSY")


class Letters(Desk):
    """A file with three dead letters and one unknown outcome."""

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
        case = await requested(scene, delivery="at_most_once")
        (self.unknown,) = effects_of(case)
        await scene.carry(
            case,
            commands.BeginEffect(effect_id=self.unknown.id, executor="d"),
            commands.LoseEffect(effect_id=self.unknown.id, executor="d"),
        )

    def statuses(self) -> dict[str, str]:
        lines = (line.split("\t") for line in self.lines("outbox", "list"))
        return {line[0]: line[1] for line in lines}


@pytest.fixture
def desk(tmp_path: Path) -> Letters:
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


def test_one_effect_is_shown_with_its_history(desk: Letters) -> None:
    for name in (desk.dead[0].id, desk.dead[0].idempotency_key):
        row, *history = desk.lines("outbox", "show", name)
        assert msgspec.json.decode(row)["status"] == "DEAD_LETTER"
        types = [line.split("  ")[1] for line in history]
        assert types == ["EFFECT_REQUESTED", "EFFECT_EXECUTING", "EFFECT_FAILED", "EFFECT_DEAD_LETTERED"]
    assert isinstance(desk.call("outbox", "show", "nothing").exception, NotFound)


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


@pytest.mark.parametrize("arguments", [("requeue",), ("discard", "x", "--all")])
def test_what_is_meant_has_to_be_clear(desk: Letters, arguments: tuple[str, ...]) -> None:
    done = desk.call("outbox", *arguments)
    assert done.exit_code == 2
    assert "Name effects, or a group" in done.output


@pytest.mark.parametrize(("flag", "status"), [("--sent", "COMPLETED"), ("--not-sent", "PENDING")])
def test_an_unknown_outcome_is_resolved(desk: Letters, flag: str, status: str) -> None:
    """§OUT-27"""
    (said,) = desk.lines("effects", "reconcile", desk.unknown.id, flag, "--evidence", "asked the bank")
    assert said.startswith(desk.unknown.id)
    assert desk.statuses()[desk.unknown.id] == status
    assert "asked the bank" in desk.lines("outbox", "show", desk.unknown.id)[-1]
    assert isinstance(desk.call("effects", "reconcile", desk.unknown.id, flag).exception, CommandRefused)


def test_one_has_to_say_which(desk: Letters) -> None:
    done = desk.call("effects", "reconcile", desk.unknown.id)
    assert done.exit_code == 2
    assert "--sent or --not-sent" in done.output


def test_nothing_of_an_effect_is_shown_that_a_terminal_would_obey(desk: Letters) -> None:
    """Reasons, errors and specs are anybody's text."""
    effect = desk.dead[0].id
    desk.lines("outbox", "discard", effect, "--reason", "\x9b2Jbecause\x7f")
    row, *history = desk.lines("outbox", "show", effect)
    assert msgspec.json.decode(row)["status"] == "CANCELLED"
    assert all(line.isprintable() for line in (row, *history))
    assert "because" in history[-1]
