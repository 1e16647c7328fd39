"""Where pull requests are opened. `Forge` is the port; the default is a bare repository on disk."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from examples.docs_pipeline.clone import Commit
from examples.docs_pipeline.git import GitError, git, line
from examples.docs_pipeline.publish import Published

_NOTHING: Final = "0" * 40
_TRIES: Final = 5


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A pull request: what its branch is to be merged into, and what it says."""

    head: str
    base: str
    commit: str
    title: str
    body: str


class Forge(Protocol):
    """Takes branches and pull requests. Both calls may come again, after a crash, and then change nothing."""

    @property
    def address(self) -> str:
        """What the run's log calls it."""
        ...

    def push(self, clone: Path, published: Published, on: Commit) -> None:
        """Brings the branch to the commit; the branch is ours alone."""
        ...

    def open(self, request: Request) -> str:
        """Opens the request, or brings the open one for its branch up to date; where it can be seen."""
        ...


class DiskForge:
    """A bare repository. A request is the ref `refs/pull/<branch>`, a blob of JSON:

    git --git-dir docs.git show refs/pull/docs/api-3740cc36d860
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def address(self) -> str:
        return str(self._path)

    def push(self, clone: Path, published: Published, on: Commit) -> None:
        self._create()
        if not line("for-each-ref", f"refs/heads/{published.base}", at=self._path):
            push(clone, str(self._path), f"{on.sha}:refs/heads/{published.base}")
        push(clone, str(self._path), f"+{published.commit}:refs/heads/{published.branch}")

    def open(self, request: Request) -> str:
        content = msgspec.json.format(msgspec.json.encode(request), indent=2) + b"\n"
        blob = git("hash-object", "-w", "--stdin", at=self._path, content=content).decode().strip()
        ref = f"refs/pull/{request.head}"
        before = line("for-each-ref", "--format=%(objectname)", ref, at=self._path)
        if before != blob:
            git("update-ref", ref, blob, before or _NOTHING, at=self._path)
        return f"{self._path} {ref}"

    def _create(self) -> None:
        """Made beside its place and renamed: of two that make it at once, one wins and both are content."""
        if self._path.exists():
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
        git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", "--", str(draft))
        # A clone without all of its history, as CI has it, may be the first to push.
        git("config", "receive.shallowUpdate", "true", at=draft)
        try:
            draft.rename(self._path)
        except OSError:
            shutil.rmtree(draft)


def push(clone: Path, address: str, ref: str, env: Mapping[str, str] | None = None) -> None:
    """Pushes one ref: git loses track of several that come from a clone without all of its history.

    Tries again, for a push that outlived its killed parent may hold the branch's lock.
    """
    for left in reversed(range(_TRIES)):
        try:
            git("push", "--quiet", "--no-verify", "--", address, ref, at=clone, env=env)
            return
        except GitError as error:
            if not left or "lock" not in str(error):
                raise
            time.sleep(0.2)
