"""Tools, specialists and handlers as they are registered."""

from __future__ import annotations

import pytest

from runstone.engine.functions import Callee, CallOptions, Handler, checked_name
from runstone.engine.policy import ONCE, Retry, minutes, seconds
from runstone.errors import RegistrationError


async def look_up(order_id: str) -> str:
    """Looks an order up."""
    return order_id


def plain(number: int) -> int:
    return number + 1


def callee() -> Callee[[str], str]:
    return Callee(look_up, "TOOL_SEQUENCE", "look_up", CallOptions(timeout=seconds(1)))


async def test_calling_it_directly_just_calls_it() -> None:
    assert await callee()("o-1") == "o-1"
    assert Callee(plain, "SPECIALIST_CALL", "plain", CallOptions())(1) == 2


def test_it_knows_what_it_is() -> None:
    tool = callee()
    assert (tool.is_async, tool.__name__, tool.__doc__) == (True, "look_up", "Looks an order up.")
    assert Callee(plain, "SPECIALIST_CALL", "plain", CallOptions()).is_async is False


def test_options_change_a_copy_and_only_what_is_named() -> None:
    tool = callee()
    changed = tool.options(name="other", retry=Retry(max_attempts=2), cache_ttl=minutes(1))
    assert changed.name == "other"
    assert changed.call_options == CallOptions(
        timeout=seconds(1), retry=Retry(max_attempts=2), cache_ttl=minutes(1)
    )
    assert tool.call_options == CallOptions(timeout=seconds(1))
    assert tool.call_options.retry is ONCE
    assert changed.signature is tool.signature
    assert tool.options(at_most_once=True, on_exhausted="park").call_options == CallOptions(
        timeout=seconds(1), at_most_once=True, on_exhausted="park"
    )
    assert tool.options().name == "look_up"


def test_what_may_be_missing_can_be_taken_away() -> None:
    tool = callee().options(cache_ttl=minutes(1))
    assert tool.options(timeout=None).call_options == CallOptions(cache_ttl=minutes(1))
    assert tool.options(cache_ttl=None).call_options == CallOptions(timeout=seconds(1))
    assert tool.options().call_options == CallOptions(timeout=seconds(1), cache_ttl=minutes(1))


@pytest.mark.parametrize("name", ["", "a#b", "a/b"])
def test_names_that_are_parts_of_keys_are_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="cannot be a name"):
        checked_name(name)
    with pytest.raises(RegistrationError):
        callee().options(name=name or "#")


def test_a_handler_is_asynchronous_and_takes_one_value() -> None:
    async def none(run: object) -> None: ...

    async def one(run: object, value: int) -> None: ...

    async def two(run: object, value: int, other: int) -> None: ...

    def not_async(run: object) -> None: ...

    assert Handler(none, "none").signature.names == ()
    assert Handler(one, "one").signature.names == ("value",)
    with pytest.raises(RegistrationError, match="at most one value"):
        Handler(two, "two")
    with pytest.raises(RegistrationError, match="`async def`"):
        Handler(not_async, "not_async")  # type: ignore[arg-type]
