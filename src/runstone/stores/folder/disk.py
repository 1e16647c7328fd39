"""The system calls of the folder store, each a method, so that a test can end the world between any two.

What is on the disk when they return is said here and relied on everywhere else: a name is durable
when its folder was synced, content when its file was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runstone.ports.folder import translate


class Disk:
    """A file system that can be synced."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write(self, descriptor: int, content: bytes) -> None:
        """All of it: the system may take less at a time."""
        written = os.write(descriptor, content)
        while written < len(content):
            written += os.write(descriptor, memoryview(content)[written:])

    def sync(self, descriptor: int) -> None:
        """The content, and the size of the file with it; not its times."""
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def make(self, folder: Path) -> None:
        os.mkdir(folder, 0o755)

    # Made of these

    def sync_folder(self, folder: Path) -> None:
        """The names in it."""
        descriptor = self.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(descriptor)
        finally:
            self.close(descriptor)

    def make_all(self, folder: Path) -> None:
        """The folder and those above it, so that a loss of power leaves none of them without its name."""
        if folder.is_dir():
            return
        self.make_all(folder.parent)
        try:
            self.make(folder)
        except FileExistsError:
            if not folder.is_dir():
                raise
        self.sync_folder(folder.parent)

    def replace(self, target: Path, content: bytes) -> None:
        """The file has the old content or the new at any time, and the new from here on (§PIP-6)."""
        draft = target.with_name(f".{target.name}.new")
        self.create(draft, content)
        self.rename(draft, target)
        self.sync_folder(target.parent)

    def create(self, path: Path, content: bytes, flags: int = os.O_TRUNC) -> None:
        """A file with this content; its name is not durable yet."""
        descriptor = self.open(path, os.O_WRONLY | os.O_CREAT | flags)
        try:
            self.write(descriptor, content)
            self.sync(descriptor)
        finally:
            self.close(descriptor)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turns the system's errors into the port's (§STO-3)."""
    try:
        yield
    except OSError as error:
        raise translate(error, path) from error
