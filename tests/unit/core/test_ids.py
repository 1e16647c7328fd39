"""Ids: version 7 UUIDs made from a time and chance that are passed in."""

from __future__ import annotations

import re
import uuid

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runstone.core.ids import DEFAULT_TENANT, UUID_PATTERN, Digest, Id, check_id, uuid7
from runstone.errors import InvalidPayload

MILLISECONDS = st.integers(0, 2**48 - 1)
ENTROPY = st.binary(min_size=10, max_size=10)


def test_the_example_of_the_standard() -> None:
    """RFC 9562, A.6: 12 bits of chance behind the version, 62 behind the variant."""
    entropy = (0xCC3 << 68 | 0x18C4DC0C0C07398F).to_bytes(10, "big")
    assert uuid7(0x017F22E279B0, entropy) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(MILLISECONDS, ENTROPY)
def test_it_is_a_canonical_uuid_of_version_7(unix_ms: int, entropy: bytes) -> None:
    made = uuid7(unix_ms, entropy)
    read = uuid.UUID(made)
    assert (read.version, read.variant) == (7, uuid.RFC_4122)
    assert read.int >> 80 == unix_ms
    assert str(read) == made
    assert re.match(UUID_PATTERN, made)


@given(MILLISECONDS, MILLISECONDS, ENTROPY, ENTROPY)
def test_a_later_one_sorts_behind(one: int, other: int, chance: bytes, other_chance: bytes) -> None:
    """As text, which is how an index sees it (§ENT-5)."""
    assume(one < other)
    assert uuid7(one, chance) < uuid7(other, other_chance)


@given(ENTROPY)
def test_a_time_beyond_48_bits_cannot_spoil_the_form(entropy: bytes) -> None:
    assert uuid7(2**48 + 5, entropy) == uuid7(5, entropy)


@pytest.mark.parametrize("size", [0, 9, 11])
def test_it_takes_ten_random_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="ten random bytes"):
        uuid7(0, b"\0" * size)


def test_the_default_tenant_is_fixed() -> None:
    """§TEN-10: written into every embedded store there is."""
    assert DEFAULT_TENANT == "00000000-0000-7000-8000-000000000001"
    assert uuid.UUID(DEFAULT_TENANT).version == 7


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-7000-8000-00000000000A",
        "00000000000070008000000000000001",
        "{00000000-0000-7000-8000-000000000001}",
        "00000000-0000-7000-8000-00000000000",
        "00000000-0000-7000-8000-000000000001\n",
        "",
    ],
)
def test_only_the_canonical_form_is_read(text: str) -> None:
    """§PAY-3: lower case, with hyphens."""
    assert msgspec.convert(DEFAULT_TENANT, Id) == DEFAULT_TENANT
    check_id(DEFAULT_TENANT)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, Id)
    with pytest.raises(InvalidPayload, match="no UUID"):
        check_id(text)


@pytest.mark.parametrize("text", ["a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_a_digest_is_64_lower_case_hex_digits(text: str) -> None:
    assert msgspec.convert("0f" * 32, Digest) == "0f" * 32
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, Digest)
