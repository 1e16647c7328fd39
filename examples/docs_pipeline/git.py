"""Runs git, and says in a sentence what went wrong."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_OURS: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE")
"""What a git hook that started us would lead our own commands astray with."""

_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+@")


class GitError(Exception):
    """git is missing, or did not do what it was asked to."""


def git(
    *arguments: str, at: Path | None = None, content: bytes = b"", env: Mapping[str, str] | None = None
) -> bytes:
    """What git answers; `at` is the repository, `content` what it reads."""
    place = [f"--git-dir={at}"] if at else []
    inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
    plain = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}  # nobody is there to answer a question
    try:
        done = subprocess.run(
            ["git", *place, *arguments],
            input=content,
            env={**inherited, **plain, **(env or {})},
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise GitError(
            "There is no git on this machine's PATH: install it (apt-get install git) and run this again"
        ) from error
    if done.returncode:
        said = without_login(done.stderr.decode("utf-8", "replace")).strip()
        raise GitError(f"git {arguments[0]} failed: {said or f'exit code {done.returncode}'}")
    return done.stdout


def line(*arguments: str, at: Path | None = None) -> str:
    """An answer of one line."""
    return git(*arguments, at=at).decode("utf-8", "replace").strip()


def without_login(text: str) -> str:
    """An address without the name and the password that may stand in it: logs are kept."""
    return _LOGIN.sub("", text)
