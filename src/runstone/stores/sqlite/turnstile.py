"""Fair turns between processes that write to one file.

SQLite's own lock goes to whoever asks at the right moment: under load one process can wait for
seconds. Here every writer first takes the turnstile and holds it while it waits for the lock;
whoever has just written finds the turnstile taken by the next in line and has to queue behind it.
Nobody sleeps, and a lone writer pays six system calls.

A process that was stopped, or hangs, while it holds a lock keeps all others out. They say so, give up
after a while and name it: each lock file holds the process id of whoever had it last.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from runstone.stores.sqlite.files import BUSY_SECONDS, NOTICE_SECONDS

_log = logging.getLogger("runstone.sqlite")


class Turnstile:
    """Two lock files beside the store's, made when they are first needed."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._turn = _Gate(store.with_name(store.name + "-turn"), self._tell)
        self._lock = _Gate(store.with_name(store.name + "-lock"), self._tell)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Waits for this writer's turn; the next one may come when it is over."""
        try:
            self._enter()
        except TimeoutError:
            raise TimeoutError(self._reason()) from None
        try:
            yield
        finally:
            self._lock.leave()

    def _enter(self) -> None:
        self._turn.enter()
        try:
            self._lock.enter()
        finally:
            self._turn.leave()

    def _reason(self) -> str:
        """Whoever is next in line may wait itself, and not be the one to blame."""
        said = f"no turn to write within {BUSY_SECONDS:g} s: {self._holders()}"
        if self._turn.holder == str(os.getpid()):
            return f"{said}, and hangs or was stopped"
        return f"{said}, and one of them hangs or was stopped"

    def _holders(self) -> str:
        said = f"process {self._lock.holder} had the lock last"
        if self._turn.holder != str(os.getpid()):
            said += f", process {self._turn.holder} is next in line"
        return said

    def _tell(self) -> None:
        with suppress(OSError):  # nobody has written to the file yet
            _log.warning("%s: waiting for a turn to write: %s", self._store, self._holders())

    def close(self) -> None:
        self._turn.close()
        self._lock.close()


class _Gate:
    """One lock file, which names its holder."""

    def __init__(self, path: Path, waiting: Callable[[], None]) -> None:
        self._path = path
        self._waiting = waiting
        self._file: int | None = None
        self._left_behind: Thread | None = None

    @property
    def holder(self) -> str:
        """The process that entered last; it may have left."""
        return self._path.read_text("utf-8").strip()

    def enter(self) -> None:
        """Takes the lock; `TimeoutError` when that is taking too long."""
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait(file)
        with suppress(OSError):  # a full disk must not keep anybody out
            os.pwrite(file, f"{os.getpid():<20}\n".encode(), 0)

    def leave(self) -> None:
        fcntl.flock(self._open(), fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._file

    def _wait(self, file: int) -> None:
        """Queues up, for as long as patience lasts.

        `flock` knows no deadline, and in a thread nothing can interrupt it. So another thread stands
        in line; when patience ends it stays behind with the file, and lets go once it is its turn.
        """
        if self._left_behind is not None:
            self._left_behind.join(BUSY_SECONDS)
            if self._left_behind.is_alive():
                raise TimeoutError
        turn: Future[None] = Future()
        thread = Thread(target=_queue_up, args=(file, turn), name="runstone-sqlite-turn", daemon=True)
        thread.start()
        notice = min(NOTICE_SECONDS, BUSY_SECONDS)
        try:
            turn.result(notice)
            return
        except TimeoutError:
            self._waiting()
        try:
            turn.result(BUSY_SECONDS - notice)
        except TimeoutError:
            if turn.cancel():
                self._left_behind, self._file = thread, None
                raise


def _queue_up(file: int, turn: Future[None]) -> None:
    fcntl.flock(file, fcntl.LOCK_EX)
    if turn.set_running_or_notify_cancel():
        turn.set_result(None)
    else:
        os.close(file)  # which lets go of the lock
