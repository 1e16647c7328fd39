"""A peer's own environment: built once from its hashed lock file, kept until that changes.

A peer may also have a server that comes from npm; then there is a folder of its name beside its lock file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Final

LOCKS: Final = Path(__file__).parent
ENVIRONMENTS: Final = Path(__file__).parents[2] / "build" / "peers"
BUILD_SECONDS: Final = 600

# Wheels only, as for the development environment: no build tool that no hash covers.
_INSTALL: Final = (
    *("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"),
    *("--require-hashes", "--only-binary", ":all:", "--requirement"),
)


# No scripts: what a package wants to do when it is installed is no business of ours.
_NPM: Final = ("npm", "ci", "--ignore-scripts", "--no-fund", "--no-audit", "--prefix")


class PeerMissing(Exception):
    """The peer cannot be installed here."""


def folder_of(peer: str) -> Path:
    """Where the peer's environment is, or would be."""
    lock = _lock(peer).read_bytes()
    return ENVIRONMENTS / f"{peer}-{sha256(lock + sys.version.encode()).hexdigest()[:12]}"


def python_of(peer: str) -> Path:
    """The interpreter that has the peer; `PeerMissing` where it cannot be installed."""
    folder = folder_of(peer)
    if not folder.exists():
        _build(folder, _lock(peer))
    return folder / "bin" / "python"


def server_of(peer: str, program: str) -> Path:
    """A program that npm installs for this machine; `PeerMissing` where it cannot be had."""
    lock = (LOCKS / peer / "package-lock.json").read_bytes()
    folder = ENVIRONMENTS / f"{peer}-server-{sha256(lock).hexdigest()[:12]}"
    if not folder.exists():
        _build_server(folder, LOCKS / peer)
    found = [path for path in folder.glob(f"node_modules/*/*/bin/{program}") if os.access(path, os.X_OK)]
    if not found:
        raise PeerMissing(f"there is no {program} for this machine")
    return found[0]


def _build_server(folder: Path, wanted: Path) -> None:
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(wanted / name, unfinished)
        _call([*_NPM, str(unfinished)])
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _lock(peer: str) -> Path:
    return LOCKS / f"{peer}.lock"


def _build(folder: Path, lock: Path) -> None:
    """Under another name first: half an environment must not be found."""
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    try:
        _call([sys.executable, "-m", "venv", "--clear", str(unfinished)])
        _call([str(unfinished / "bin" / "python"), *_INSTALL, str(lock)])
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(str(error)) from error
    if done.returncode:
        raise PeerMissing((done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1])
