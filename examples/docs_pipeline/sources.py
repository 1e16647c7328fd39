"""The Python sources of a commit, read from the clone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from examples.docs_pipeline.git import GitError, git

_PLAIN_FILES: Final = ("100644", "100755")
_USUAL_FOLDER: Final = "src"


class Tree:
    """The files of a commit."""

    def __init__(self, clone: Path, commit: str) -> None:
        self._clone = clone
        self._blobs = dict(sorted(_blobs(clone, commit)))

    @property
    def paths(self) -> list[str]:
        """Every file's path, in order."""
        return list(self._blobs)

    def folder(self, wanted: str) -> str:
        """The folder that imports begin in: as wanted; otherwise `src` if there is one, or the top."""
        folder = wanted.strip("/") or (_USUAL_FOLDER if self._python(_USUAL_FOLDER) else "")
        if not self._python(folder):
            raise GitError(f"The commit has no Python file below {folder or 'its top'!r}: --param sources=…")
        return folder

    def check_pages(self, folder: str) -> None:
        """Refuses a folder for pages that has anything else: the commit makes pages its whole content."""
        parts = folder.split("/")
        others = [path for path in self._blobs if path.startswith(f"{folder}/") and not path.endswith(".md")]
        if others or any(part in ("", ".", "..", ".git") for part in parts):
            found = f": it has {others[0]}" if others else ""
            raise GitError(f"{folder!r} is no folder for pages alone{found}. --param folder=docs/api")

    def sources(self, folder: str) -> Iterator[tuple[str, bytes]]:
        """The Python files below a folder with their contents, in the order of their paths."""
        paths = self._python(folder)
        yield from zip(paths, _contents(self._clone, [self._blobs[path] for path in paths]), strict=True)

    def _python(self, folder: str) -> list[str]:
        top = f"{folder}/" if folder else ""
        return [path for path in self._blobs if path.startswith(top) and path.endswith(".py")]


def _blobs(clone: Path, commit: str) -> Iterator[tuple[str, str]]:
    """Paths and object ids. Links and submodules are no files; a name that is no text cannot be a page's."""
    listed = git("ls-tree", "-r", "-z", "--full-tree", commit, at=clone)
    for entry in listed.split(b"\0")[:-1]:
        about, _, path = entry.partition(b"\t")
        mode, _, sha = about.decode().split(" ")
        name = path.decode("utf-8", "replace")
        if mode in _PLAIN_FILES and _is_plain(name):
            yield name, sha


def _is_plain(path: str) -> bool:
    """Whether a path can name an artifact and a page."""
    strange = any(mark in path for mark in ("\\", "/.~", "#", "\N{REPLACEMENT CHARACTER}"))
    return not strange and not path.startswith(".~") and all(ord(character) >= 32 for character in path)


def _contents(clone: Path, shas: Sequence[str]) -> Iterator[bytes]:
    """Many objects by one process: each is a line that ends in its size, the content, a line end."""
    answer = git("cat-file", "--batch", at=clone, content="".join(f"{sha}\n" for sha in shas).encode())
    place = 0
    for _ in shas:
        end = answer.index(b"\n", place)
        size = int(answer[place:end].rsplit(b" ", 1)[1])
        yield answer[end + 1 : end + 1 + size]
        place = end + 1 + size + 1
