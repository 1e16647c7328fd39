"""Idempotency keys: the same for the same thing, different for anything else."""

from __future__ import annotations

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from runstone.core import keys
from runstone.core.ids import is_id

FIELDS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6)


def packed(*fields: str) -> str:
    """§IDM-2, said a second time."""
    content = b"".join(len(field.encode()).to_bytes(4, "big") + field.encode() for field in fields)
    return hashlib.sha256(content).hexdigest()


def test_packing_puts_the_length_before_each_field() -> None:
    assert keys.digest("é", "") == hashlib.sha256(b"\0\0\0\x02\xc3\xa9\0\0\0\0").hexdigest()
    assert keys.digest() == hashlib.sha256(b"").hexdigest()


def test_a_long_field_is_packed_alike_and_not_kept() -> None:
    """It may be anybody's, and as long as they like."""
    for size in (64, 65, 100_000):
        assert keys.digest("é" * size, "x") == packed("é" * size, "x")
    before = keys._remembered.cache_info().currsize
    for number in range(10):
        keys.digest(f"{number}" + "x" * 64)
    assert keys._remembered.cache_info().currsize == before


@given(FIELDS, FIELDS)
def test_no_two_lists_of_fields_pack_alike(one: list[str], other: list[str]) -> None:
    assert (keys.digest(*one) == keys.digest(*other)) == (one == other)


@given(st.text("ab|", max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_moving_characters_from_one_field_to_the_next_is_seen(text: str, one: int, other: int) -> None:
    """`a|b` with `c` is not `a` with `b|c`."""
    here, there = min(one, len(text)), min(other, len(text))
    same = keys.digest(text[:here], text[here:]) == keys.digest(text[:there], text[there:])
    assert same == (here == there)


class TestEventKey:
    """§IDM-1"""

    def test_the_order_of_its_fields(self) -> None:
        key = keys.event_key(
            "run", "STEP_STARTED", step_key="a", logical_attempt=2, plan_version="1.0", occurrence="7"
        )
        assert key == packed("run", "a", "2", "STEP_STARTED", "1.0", "7")

    def test_an_absent_field_is_empty(self) -> None:
        assert keys.event_key("run", "RUN_PAUSED") == packed("run", "", "", "RUN_PAUSED", "", "")

    def test_every_field_counts(self) -> None:
        made = [
            keys.event_key("run", "STEP_STARTED"),
            keys.event_key("other", "STEP_STARTED"),
            keys.event_key("run", "STEP_FAILED"),
            keys.event_key("run", "STEP_STARTED", step_key="x"),
            keys.event_key("run", "STEP_STARTED", logical_attempt=1),
            keys.event_key("run", "STEP_STARTED", plan_version="1"),
            keys.event_key("run", "STEP_STARTED", occurrence="1"),
        ]
        assert len(set(made)) == len(made)
        assert all(re.fullmatch("[0-9a-f]{64}", key) for key in made)


def test_the_effect_key_covers_who_asked_where_for_what() -> None:
    """§IDM-26"""
    spec = b'{"to":"bob"}'
    inner = hashlib.sha256(spec).hexdigest()
    assert keys.effect_key("t", "r", "s", 3, "MAIL", spec) == packed("t", "r", "s", "3", "MAIL", inner)


def test_the_run_request_key_has_six_fields() -> None:
    """§IDM-19"""
    assert keys.run_request_key("t", "p", "e", "plan", "1", "req") == packed(
        "t", "p", "e", "plan", "1", "req"
    )


def test_a_tool_result_is_remembered_per_tenant_tool_and_arguments() -> None:
    """§IDM-29"""
    key = keys.tool_cache_key("t", "search", b"{}")
    assert key == f"tool:t:search:{hashlib.sha256(b'{}').hexdigest()}"
    others = [("u", "search", b"{}"), ("t", "find", b"{}"), ("t", "search", b"[]")]
    assert key not in [keys.tool_cache_key(*other) for other in others]


def test_a_content_hash_is_over_the_very_bytes() -> None:
    assert keys.content_hash(b"1e2") == hashlib.sha256(b"1e2").hexdigest()
    assert keys.content_hash(b"1e2") != keys.content_hash(b"100.0")


class TestControlSignalId:
    """§ENG-25"""

    RUN = "018e0000-0000-7000-8000-000000000001"

    def test_an_id_is_its_own(self) -> None:
        given = "018e0000-0000-7000-8000-00000000000a"
        assert keys.control_signal_id(self.RUN, given) == given

    def test_any_other_name_leads_to_one_within_its_run(self) -> None:
        made = keys.control_signal_id(self.RUN, "message 17")
        assert is_id(made)
        assert made == keys.control_signal_id(self.RUN, "message 17")
        assert made != keys.control_signal_id(self.RUN, "message 18")
        assert made != keys.control_signal_id(self.RUN[:-1] + "2", "message 17")


def test_what_a_step_does_outside_has_one_key_in_its_run() -> None:
    made = keys.step_call_key("t", "r", "charge#1")
    assert made == packed("t", "r", "charge#1")
    assert made != keys.step_call_key("t", "r", "g2:charge#1")
