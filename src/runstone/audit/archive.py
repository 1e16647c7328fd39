"""The archive: a folder of bundles, one for each correlation, that outlives the store (§STO-36).

A bundle's name has its tenant, the day of its last event, its correlation and the beginning of its hash. So
the same history always gets the same name and the same bytes, to write it twice changes nothing, and no
bundle ever takes another's place.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from runstone.audit.bundles import Bundle, read_bundle
from runstone.core.bundle import pack
from runstone.core.stream import Stream
from runstone.core.tombstone import Tombstone, last_at
from runstone.errors import BundleInvalid


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that is durable, and was proven by reading it back."""

    archive: str
    name: str
    sha256: str


class Archive:
    """The bundles in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def keep(self, streams: Sequence[Stream]) -> Kept:
        """Writes a correlation's bundle and reads it back; on return it survives the loss of power."""
        content = pack(streams)
        digest = sha256(content).hexdigest()
        head = streams[0].head
        day = f"{last_at(streams):%Y-%m-%d}"
        name = f"{head.tenant_id}/{day}/{streams[0].events[0].correlation_id}-{digest[:12]}.ndjson"
        target = self.folder / name
        self._make(target.parent)
        _write(target, content)
        _compare(self.read(name, digest), streams)
        return Kept(archive=str(self.folder), name=name, sha256=digest)

    def read(self, name: str, digest: str) -> Bundle:
        """A bundle, if it is there as it was written."""
        path = self.folder / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BundleInvalid(f"{path} cannot be read: {error}") from error
        found = sha256(content).hexdigest()
        if found != digest:
            raise BundleInvalid(f"{path} was changed: its SHA-256 is {found}, and was {digest}")
        return read_bundle(content)

    def prove(self, stone: Tombstone) -> str | None:
        """What is wrong with the bundle that a tombstone names, if anything."""
        try:
            bundle = self.read(stone.bundle, stone.bundle_sha256)
        except BundleInvalid as error:
            return str(error)
        heads = {stream.head.stream_id: stream.head for stream in bundle.streams}
        head = heads.get(stone.stream_id)
        if head is None or (head.last_seq, head.head) != (stone.last_seq, stone.head):
            return f"{self.folder / stone.bundle} does not end where its tombstone says"
        return None

    def _make(self, folder: Path) -> None:
        """The folder, and the names of all that had to be made for it, durable."""
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            _sync(each.parent)


def _write(target: Path, content: bytes) -> None:
    """Under another name first, then, durable, under its own; what is there already is the same."""
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
    _sync(target.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _compare(bundle: Bundle, streams: Sequence[Stream]) -> None:
    wanted = [(stream.head.stream_id, stream.head.last_seq, stream.head.head) for stream in streams]
    found = [(stream.head.stream_id, stream.head.last_seq, stream.head.head) for stream in bundle.streams]
    if wanted != found:
        raise BundleInvalid(f"The bundle of correlation {bundle.correlation_id} is not what the store has")
