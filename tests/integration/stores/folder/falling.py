"""A disk that the world ends on: before any system call, in the middle of a write, with or without power.

A process that is killed leaves everything it wrote. A machine that loses its power keeps only what
was synced: the content of a file as of its last sync, a name as of the last sync of its folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from runstone.stores.folder.disk import Disk


class MemoryDisk(Disk):
    """For tests that nobody pulls the plug on: a sync takes no time."""

    def sync(self, descriptor: int) -> None:
        pass


class Fallen(BaseException):
    """The process is gone. No `except Exception` may stop that."""


class FallingDisk(Disk):
    """Ends the world at its n-th system call: before it, or with half of it done if it is a write."""

    def __init__(self, at: int | None = None, *, halfway: bool = False) -> None:
        self.calls: list[str] = []
        self._at = at
        self._halfway = halfway
        self._fallen = False
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self._pins: list[int] = []

    def next_process(self) -> FallingDisk:
        """The same disk for whoever comes next; what was not synced is still in memory only."""
        after = FallingDisk()
        after._content, after._names, after._pins = self._content, self._names, self._pins
        return after

    def _step(self, call: str) -> None:
        if self._fallen:
            raise Fallen
        self.calls.append(call)
        if len(self.calls) == self._at and not (self._halfway and call == "write"):
            self._fall()

    def _fall(self) -> None:
        self._fallen = True
        raise Fallen

    def open(self, path: Path, flags: int) -> int:
        self._step("open")
        descriptor = super().open(path, flags)
        self._pin(path)
        return descriptor

    def _pin(self, path: Path) -> None:
        """Keeps its inode from being used again once the file is gone."""
        self._pins.append(os.open(path, os.O_PATH | os.O_CLOEXEC))

    def write(self, descriptor: int, content: bytes) -> None:
        self._step("write")
        if len(self.calls) == self._at:
            super().write(descriptor, content[: len(content) // 2])
            self._fall()
        super().write(descriptor, content)

    def sync(self, descriptor: int) -> None:
        self._step("sync")
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = _entries(descriptor)
        else:
            self._content[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def truncate(self, descriptor: int, size: int) -> None:
        self._step("truncate")
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def make(self, folder: Path) -> None:
        self._step("make")
        super().make(folder)

    def all_is_durable(self, root: Path) -> None:
        """What is there already was synced long ago."""
        for folder, _, files in os.walk(root):
            self._names[os.stat(folder).st_ino] = _entries(folder)
            for name in files:
                path = Path(folder, name)
                self._pin(path)
                self._content[path.stat().st_ino] = path.read_bytes()

    # After the end

    def after_power_loss(self, root: Path, found: Path) -> None:
        """Puts into `found` what is on the disk when the power comes back."""
        self._restore(os.stat(root).st_ino, found)

    def _restore(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, (child, is_folder) in self._names.get(inode, {}).items():
            if is_folder:
                self._restore(child, target / name)
            else:
                (target / name).write_bytes(self._content.get(child, b""))

    def let_go(self) -> None:
        while self._pins:
            os.close(self._pins.pop())


def _entries(folder: str | int) -> dict[str, tuple[int, bool]]:
    with os.scandir(folder) as entries:
        return {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}
