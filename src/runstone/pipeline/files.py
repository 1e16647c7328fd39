"""The files of one run: read and written by name, durable and whole, and never outside of its folder.

A name is a relative path. It is walked one folder at a time without following links, so that neither
`..` nor a link that somebody put there leads out, not even one that appears while we look.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from runstone.errors import ArtifactInvalid
from runstone.ports.folder import translate

_DRAFT: Final = ".~"
"""How the name of a file begins that is still being written."""

FOLDER: Final = "artifacts"
"""Where artifacts are in a run's folder; beside it are the log, the snapshot and the scratch folder."""

_IN_THE_WAY: Final = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENXIO)

_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name, if it is one for an artifact."""
    parts = tuple(name.split("/"))
    bad = [part for part in parts if part in ("", ".", "..") or part.startswith(_DRAFT) or "\0" in part]
    if bad or "\\" in name or any(ord(character) < 32 for character in name):
        raise ArtifactInvalid(
            f"{name!r} is no name for an artifact: use a relative path of plain names, as in drafts/a.md"
        )
    return parts


class Files:
    """The artifacts of the run whose folder this is."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> str:
        """Where an artifact's file is, relative to the run's folder."""
        return "/".join((FOLDER, *parts_of(name)))

    def read(self, name: str) -> bytes | None:
        """A file's content; none if there is no file of this name."""
        *folders, last = self.path(name).split("/")
        with self._explained(name):
            try:
                with self._open(folders) as folder:
                    descriptor = os.open(last, _FILE, dir_fd=folder)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise NotADirectoryError(errno.EINVAL, "not a plain file")
                return file.read()

    def sha256(self, name: str) -> str | None:
        """The hash of a file's content; none if there is no such file."""
        content = self.read(name)
        return None if content is None else digest(content)

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Puts files in place: each under another name first, then, durable, under its own (§PIP-24)."""
        folders: dict[tuple[str, ...], str] = {}
        for name, content in contents.items():
            *above, last = self.path(name).split("/")
            with self._explained(name), self._open(above, create=True) as folder:
                _replace(last, content, folder)
            folders[tuple(above)] = name
        for above_all, name in folders.items():
            with self._explained(name), self._open(above_all) as folder:
                os.fsync(folder)

    def remove(self, name: str) -> None:
        """Takes a file away, if it is there."""
        *folders, last = self.path(name).split("/")
        with suppress(FileNotFoundError), self._explained(name), self._open(folders) as folder:
            _remove(last, folder)
            os.fsync(folder)

    def sweep(self) -> None:
        """Removes what writers that were killed left half-written."""
        for folder, folders, names in os.walk(self.root / FOLDER):
            folders.sort()
            for name in sorted(names):
                if name.startswith(_DRAFT):
                    os.unlink(os.path.join(folder, name))

    @contextmanager
    def _open(self, folders: Sequence[str], *, create: bool = False) -> Iterator[int]:
        """The innermost folder, reached step by step; links on the way are refused."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in folders:
                if create:
                    _make_folder(name, descriptor)
                below = os.open(name, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Says what is in the way of an artifact; a disk that is full or cannot be written is the store's."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise translate(error, self.root / self.path(name)) from error
            raise ArtifactInvalid(
                f"Artifact {name!r} cannot be reached: a link, or what is no file or folder, is in the "
                f"way at {self.root / self.path(name)} ({error.strerror}). Remove it"
            ) from error


def digest(content: bytes) -> str:
    """The SHA-256 of some content."""
    return sha256(content).hexdigest()


def _replace(name: str, content: bytes, folder: int) -> None:
    """A file with this name and content, synced; its name is not yet."""
    draft = f"{_DRAFT}{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(draft, _NEW_FILE, 0o666, dir_fd=folder), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _remove(draft, folder)
        raise


def _make_folder(name: str, parent: int) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return
    os.fsync(parent)


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
