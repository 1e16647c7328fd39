"""A clone of the repository to document: bare, so that nothing of it is checked out, run or filtered."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Final

import msgspec

from examples.docs_pipeline.git import GitError, git, line

_NAME: Final = "clone.git"


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that is documented."""

    sha: str
    date: str
    """When it was committed, as git writes it down: seconds and time zone."""
    branch: str
    """What the repository had checked out; `main` if that was no branch, as in many CI jobs."""


def cloned(repository: str, scratch: Path) -> Path:
    """Where the clone is. Made beside its place and then renamed: a clone that is there is whole."""
    place = scratch / _NAME
    if not place.exists():
        draft = scratch / f"{_NAME}.{secrets.token_hex(4)}"
        git("clone", "--quiet", "--bare", "--template=", "--", _source(repository), str(draft))
        draft.rename(place)
        for left in scratch.glob(f"{_NAME}.*"):  # of those who were killed on the way
            shutil.rmtree(left, ignore_errors=True)
    return place


def resolved(clone: Path, revision: str) -> Commit:
    """The commit that a revision names."""
    try:
        sha = line("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}", at=clone)
    except GitError as error:
        raise GitError(
            f"The repository has no commit {revision!r}: name a branch, a tag or a hash"
        ) from error
    return Commit(
        sha=sha,
        date=line("rev-list", "--max-count=1", "--date=raw", "--format=%cd", sha, at=clone).split("\n")[-1],
        branch=_branch(clone),
    )


def _branch(clone: Path) -> str:
    try:
        return line("symbolic-ref", "--short", "HEAD", at=clone)
    except GitError:
        return "main"


def _source(repository: str) -> str:
    """A path whatever folder we are in, or an address as it is."""
    path = Path(repository).expanduser()
    return str(path.resolve()) if path.exists() else repository
