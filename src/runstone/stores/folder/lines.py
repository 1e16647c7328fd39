"""The lines of a log: what is an event in its place, and what a crash left behind the last of them.

A line is the very bytes that its hash covers (§PIP-43), so a reader needs nothing but SHA-256 to follow the
chain. The lines of one call are written at once and synced before the next call's begin. So whatever a
crash can tear is at the end; anything wrong before that was whole once, and has been changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final, Literal, TypeAlias, cast, get_type_hints

import msgspec

from runstone.core import codec
from runstone.core.chain import GENESIS, event_bytes
from runstone.core.events import Event
from runstone.errors import InvalidPayload

Rest: TypeAlias = Literal["NOTHING", "WHOLE", "TORN", "BAD"]
"""What follows the last proven line.

`WHOLE`: an event that lacks only its line end. `TORN`: what nobody was told is durable. `BAD`: a
line that was whole once.
"""

_decode: Final = msgspec.json.Decoder(Event).decode


def _unchecked() -> type[Event]:
    """An event whose ids and hashes may be any text: six times as quick to read.

    That is enough for a line whose hash is proven, for its writer has read it strictly (`line_of`).
    """
    hints = get_type_hints(Event)
    fields = [
        (field.name, hints[field.name]) if field.required else (field.name, hints[field.name], field.default)
        for field in msgspec.structs.fields(Event)
    ]
    made = msgspec.defstruct(
        "StoredEvent", fields, bases=(Event,), frozen=True, kw_only=True, omit_defaults=True
    )
    return cast("type[Event]", made)


_decode_quickly: Final = msgspec.json.Decoder(_unchecked()).decode


class NotInPlace(Exception):
    """This line is no event, or not the next one; the message says why."""


class NotChained(NotInPlace):
    """The hash that this line has of the line before is another: one of the two was changed."""


class Chain:
    """Where a stream's log stands: what the next line has to fit."""

    __slots__ = ("count", "head", "stream_id", "tenant_id")

    def __init__(self, stream_id: str) -> None:
        self.stream_id = stream_id
        self.tenant_id = ""
        self.count = 0
        self.head = GENESIS

    @classmethod
    def at(cls, chain: Chain, count: int) -> Chain:
        """The same chain further up, where nobody remembers the hash: the next line may say what it was."""
        earlier = cls(chain.stream_id)
        earlier.tenant_id, earlier.count = chain.tenant_id, count
        earlier.head = GENESIS if count == 0 else ""
        return earlier

    def follow(self, lines: Iterable[bytes]) -> Iterator[tuple[Event, bytes]]:
        """The events of the next lines, up to the first that is not in its place.

        That a line is all it should be is proven by the hash in its successor. Of the last line
        somebody has to ask `is_strict`. This is what a replay spends its time on: hence no calls.
        """
        decode, stream_id, tenant_id = _decode_quickly, self.stream_id, self.tenant_id
        count, head = self.count, self.head
        for line in lines:
            try:
                event = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return
            if not tenant_id:
                self.tenant_id = tenant_id = event.tenant_id
            count += 1
            if event.prev_hash != head or event.run_seq != count:
                return
            if event.stream_id != stream_id or event.tenant_id != tenant_id:
                return
            self.count = count
            self.head = head = sha256(line).hexdigest()
            yield event, line

    def take(self, line: bytes) -> Event:
        """The event of the next line, read strictly, which the chain then includes."""
        event = self.check(line)
        self.add(event, line)
        return event

    def add(self, event: Event, line: bytes) -> None:
        """Includes an event that is known to be the next."""
        self.count += 1
        self.tenant_id = event.tenant_id
        self.head = sha256(line).hexdigest()

    def check(self, line: bytes) -> Event:
        """The event of a line, read strictly, if it is the next."""
        try:
            event = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotInPlace(f"this is no event: {error}") from None
        if event.run_seq != self.count + 1:
            raise NotInPlace(f"expected run_seq {self.count + 1}, found {event.run_seq}")
        if event.prev_hash != self.head and self.head:
            raise NotChained(f"the line before it has the hash {self.head}, and it says {event.prev_hash}")
        if event.stream_id != self.stream_id:
            raise NotInPlace(f"it belongs to stream {event.stream_id}, and this is {self.stream_id}")
        if event.tenant_id != self.tenant_id and self.count:
            raise NotInPlace(f"it belongs to tenant {event.tenant_id}, the line before to {self.tenant_id}")
        return event


def vouches(line: bytes, before: bytes) -> bool:
    """Whether a line is an event that carries the hash of the line before it."""
    try:
        return _decode(line).prev_hash == sha256(before).hexdigest()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def is_strict(line: bytes) -> bool:
    """Whether a line is an event in every detail, and in its canonical form."""
    try:
        return event_bytes(_decode(line)) == line
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def line_of(event: Event) -> bytes:
    """The event's line, without its end; refuses what could not be read back."""
    line = event_bytes(event)
    try:
        read = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidPayload("", f"{event.event_type} cannot be stored: {error}") from error
    if codec.encode(read) != line:
        raise InvalidPayload("", f"{event.event_type} would not be read back as it was written")
    return line


def classify(rest: bytes, chain: Chain) -> Rest:
    """What the bytes behind the last proven line are (§PIP-44).

    A line is torn if its end is missing, or if it holds NUL bytes, which no JSON text does: blocks of
    the file that were never written read as zeros. Behind it there may be more zeros, and lines of the
    same call, whose blocks were written.
    """
    if not rest:
        return "NOTHING"
    line, end, more = rest.partition(b"\n")
    if not end:
        return "WHOLE" if _is_next(line, chain) else "TORN"
    if more.strip(b"\0"):
        return "TORN" if b"\0" in line and _of_one_call(more) else "BAD"
    return "TORN" if b"\0" in rest else "BAD"


def _of_one_call(lines: bytes) -> bool:
    """Whether lines, holes aside, can have been written at once: the events of a call have one time."""
    *whole, _ = lines.split(b"\n")
    times = set()
    for line in whole:
        if b"\0" in line:
            continue
        try:
            times.add(_decode(line).occurred_at)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
    return len(times) <= 1


def _is_next(line: bytes, chain: Chain) -> bool:
    try:
        chain.check(line)
    except NotInPlace:
        return False
    return is_strict(line)


def describe(torn: bytes) -> str:
    """What a torn line looks like, for people."""
    if not torn.strip(b"\0"):
        return "zeros"
    if torn.startswith(b'{"'):
        return "the beginning of an event"
    return "no part of an event"
