"""The commit: the pages, on top of the commit they document, and the same to the bit for the same pages."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from examples.docs_pipeline.clone import Commit
from examples.docs_pipeline.git import git, line

_AUTHOR: Final = "Runstone docs pipeline <docs@runstone.invalid>"


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A commit of pages, and the branch it goes to."""

    commit: str
    tree: str
    branch: str
    base: str
    changed: bool
    """Whether it differs from the commit it is made on; a request for nothing is not opened."""

    @property
    def title(self) -> str:
        return f"Document {self.branch.rpartition('-')[2]}"


def commit(clone: Path, on: Commit, pages: Mapping[str, bytes], folder: str, base: str) -> Published:
    """Commits pages as the whole content of a folder. Author and dates follow from the source commit.

    It is made under a name of its own, which goes again: a git that outlived its killed parent and makes the
    same commit is then in nobody's way.
    """
    short = on.sha[:12]
    draft = f"refs/runstone/{secrets.token_hex(8)}"
    stream = b"".join(_stream(draft, on, f"Document {short}\n", pages, folder))
    git("fast-import", "--quiet", "--done", at=clone, content=stream)
    sha = line("rev-parse", draft, at=clone)
    git("update-ref", "-d", draft, at=clone)
    tree, before = (line("rev-parse", f"{each}^{{tree}}", at=clone) for each in (sha, on.sha))
    return Published(
        commit=sha, tree=tree, branch=f"docs/api-{short}", base=base or on.branch, changed=tree != before
    )


def _stream(ref: str, on: Commit, message: str, pages: Mapping[str, bytes], folder: str) -> Iterable[bytes]:
    """What git fast-import reads: one commit."""
    yield f"commit {ref}\nauthor {_AUTHOR} {on.date}\ncommitter {_AUTHOR} {on.date}\n".encode()
    yield _data(message.encode())
    yield f"from {on.sha}\nD {_quoted(folder)}\n".encode()
    for name, content in sorted(pages.items()):
        yield f"M 100644 inline {_quoted(f'{folder}/{name}')}\n".encode() + _data(content)
    yield b"done\n"


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
