"""One writer to a run: a lock file that says who has it (§PIP-8).

The lock itself is the kernel's (`flock`), so it ends with its process, however that ended. What
stands in the file is for people: a dead owner's name in it holds nobody up.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from runstone.core import codec
from runstone.errors import StoreBusy
from runstone.stores.folder.disk import Disk


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes to a run."""

    pid: int
    host: str
    since: datetime

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since:%Y-%m-%d %H:%M:%S} UTC"


class Lock:
    """A lock file and whether it is ours."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def take(self, now: datetime) -> None:
        """Takes the lock, or says who has it."""
        descriptor = self._disk.open(self.path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner = Owner(pid=os.getpid(), host=socket.gethostname(), since=now)
            self._disk.truncate(descriptor, 0)
            self._disk.write(descriptor, msgspec.json.encode(owner))
        except BlockingIOError:
            holder = owner_of(self.path)
            os.close(descriptor)
            raise StoreBusy(
                f"{self.path.parent} is being written to by {holder or 'another process'}: "
                "wait until it has ended, or stop it. One process at a time writes to a run"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def leave(self) -> None:
        """Lets others in. The file stays: whoever unlinked it could let two in at once."""
        if self._descriptor is None:
            return
        with suppress(OSError):  # a name that stays there holds nobody up
            os.ftruncate(self._descriptor, 0)
        self.forsake()

    def forsake(self) -> None:
        """Closes the file as a forked child has to: the parent keeps the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_read_owner: Final = codec.reader(Owner)


def owner_of(path: Path) -> Owner | None:
    """Who wrote its name into a lock file; none if nobody has, or it cannot be read."""
    try:
        return _read_owner(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
