"""Keeps a number of processes of one command alive, and lets them leave in good order.

    Supervisor ── a line (socket pair) ──► Leash, in each child
               ◄── "I am ready"
               ──► a byte each time it is told to stop: the first drains, the second ends at once
               ──► the line's end, if the supervisor is gone: drains

Each child is a fresh interpreter in a session of its own, so that a terminal's Ctrl-C reaches the supervisor
alone. Signals that reach a child all the same, as when a service manager signals everybody, only drain it: it
ends at once on the supervisor's word. Output is the children's own and passes through no pipe, which would
break under them when the supervisor dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Final, TextIO, cast

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
VARIABLE: Final = "RUNSTONE_SUPERVISED"
"""In a child's environment until it has read it: its place, and the number of its end of the line."""

SHORTEST: Final = 0.5
LONGEST: Final = 30.0
STEADY: Final = 60.0
"""Seconds of life after which a death is a new story."""

LISTENS: Final = 2
"""How often a process is told: to drain, to end at once. After that it is killed."""

CANNOT_START: Final = 2
_READY: Final = b"r"
_log = logging.getLogger("runstone.supervisor")


class Backoff:
    """How long to wait before the next start, in seconds."""

    def __init__(self, shortest: float = SHORTEST) -> None:
        self._shortest = self._next = shortest

    def after(self, lived: float) -> float:
        """Twice as long after each death, unless the dead one had lived for a while."""
        wait = self._shortest if lived >= STEADY else self._next
        self._next = min(wait * 2, LONGEST)
        return wait


class Supervisor:
    """Runs `count` processes of a command until it is told to stop."""

    def __init__(self, command: Sequence[str], count: int, *, shortest: float = SHORTEST) -> None:
        self._command = command
        self._count = count
        self._shortest = shortest
        self._children: dict[int, _Child] = {}
        self._told: list[int] = []
        self._code = 0
        self._proven = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def ready(self) -> int:
        """How many processes are at work."""
        return sum(child.ready for child in self._children.values())

    async def run(self) -> int:
        """The exit code: 0 when all have drained, else that of the first that did not.

        The first process starts alone: what is wrong with the command, all of them would say at once.
        """
        loop = asyncio.get_running_loop()
        for number in STOPPING:
            loop.add_signal_handler(number, self.tell, number)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(1))
            await self._proven.wait()
            for place in range(2, self._count + 1):
                group.create_task(self._keep(place))
        return self._code

    def tell(self, number: int) -> None:
        """Once: drain. Twice: end at once. Three times: it does not listen, so it is killed."""
        self._told.append(number)
        self._stopping.set()
        self._proven.set()
        for child in self._children.values():
            child.tell(len(self._told), number)

    async def _keep(self, place: int) -> None:
        """Starts a process, and another one when it dies."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._shortest)
        while not self._stopping.is_set():
            began = loop.time()
            code, ready = await self._live(place)
            if self._stopping.is_set():
                self._code = self._code or _drained(code)
            elif self._hopeless(code, ready):
                self._code = code
                self.tell(signal.SIGTERM)
            else:
                wait = backoff.after(loop.time() - began)
                _log.warning("process %d %s; the next one starts in %g s", place, _described(code), wait)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), wait)

    def _hopeless(self, code: int, ready: bool) -> bool:
        """It gave up before it was ready, and no other shows that it may do better next time.

        While others work, command and settings are good; what was in its way may pass, such as a deploy that
        is under way or a server that is away.
        """
        return code >= 0 and not ready and self.ready == 0

    async def _live(self, place: int) -> tuple[int, bool]:
        """One process from start to end: its code (negative: the signal), and whether it was ever ready."""
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    process = await self._start(place, theirs.fileno())
            except OSError as error:
                _log.error("process %d cannot be started: %s", place, error)
                return CANNOT_START, False
            child = self._children[place] = _Child(process, ours, self._proven.set)
            for times, number in enumerate(self._told, 1):  # said while it was being started
                child.tell(times, number)
            code = await child.ended()
            del self._children[place]
            return code, child.ready

    async def _start(self, place: int, line: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, VARIABLE: f"{place}:{line}"},
            pass_fds=[line],
            start_new_session=True,
        )


class _Child:
    """A process, and the supervisor's end of the line to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, line: socket.socket, proven: Callable[[], None]
    ) -> None:
        self.ready = False
        self._process = process
        self._line = line
        self._proven = proven
        line.setblocking(False)
        asyncio.get_running_loop().add_reader(line, self._hear)

    def tell(self, times: int, number: int) -> None:
        with suppress(OSError):  # it is just ending
            self._line.send(bytes([number]))
        if times > LISTENS:
            self._signal(signal.SIGKILL)
        elif not self.ready:
            self._signal(signal.SIGTERM)  # it may be importing, where it hears nothing else

    async def ended(self) -> int:
        code = await self._process.wait()
        self._hear()  # it may have become ready and died since we last listened
        asyncio.get_running_loop().remove_reader(self._line)
        return code

    def _hear(self) -> None:
        heard = _received(self._line)
        if heard:
            self.ready = True
            self._proven()
        elif heard is not None:
            asyncio.get_running_loop().remove_reader(self._line)

    def _signal(self, number: signal.Signals) -> None:
        """Not by `send_signal`, which may reap the process itself: its code would be lost."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


class Leash:
    """A child's end of the line."""

    def __init__(self, place: int, line: socket.socket) -> None:
        self.place = place
        self._line = line
        self._told = b""

    def ready(self) -> None:
        """Says that it has started well."""
        with suppress(OSError):  # nobody is there any more: `follow` will notice
            self._line.send(_READY)

    def follow(self, drain: Callable[[], object], end: Callable[[int], object]) -> None:
        """Calls `drain` when it is told to stop or left alone, `end` with the signal when told again."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            heard = _received(self._line)
            if heard is None:
                return
            if not heard:
                loop.remove_reader(self._line)
            self._told += heard
            drain()
            if len(self._told) > 1:
                end(self._told[1])

        loop.add_reader(self._line, hear)

    def mark_output(self) -> None:
        """Lets lines at a terminal begin with the child's place. Those for a program stay as they are."""
        if sys.stdout.isatty():
            sys.stdout = marked(sys.stdout, f"[{self.place}] ")
        if sys.stderr.isatty():
            sys.stderr = marked(sys.stderr, f"[{self.place}] ")


def leash(environment: MutableMapping[str, str]) -> Leash | None:
    """The line to the supervisor that started this process, if one did. Taken once: it is nobody else's."""
    given = environment.pop(VARIABLE, None)
    if given is None:
        return None
    place, _, number = given.partition(":")
    line = socket.socket(fileno=int(number))
    line.set_inheritable(False)
    line.setblocking(False)
    return Leash(int(place), line)


def marked(stream: TextIO, mark: str) -> TextIO:
    """The stream, with a mark at the beginning of each line."""
    return cast(TextIO, _Marked(stream, mark))


class _Marked:
    def __init__(self, stream: TextIO, mark: str) -> None:
        self._stream = stream
        self._mark = mark
        self._at_beginning = True

    def write(self, text: str) -> int:
        if text:
            body = text.removesuffix("\n")
            begun = self._mark if self._at_beginning else ""
            self._at_beginning = body != text
            self._stream.write(begun + body.replace("\n", f"\n{self._mark}") + text[len(body) :])
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _received(line: socket.socket) -> bytes | None:
    """What came: nothing yet (none), or the end (empty)."""
    try:
        return line.recv(16)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _drained(code: int) -> int:
    """SIGTERM itself ends only what has not begun to work, or has drained already."""
    if code == -signal.SIGTERM:
        return 0
    return 128 - code if code < 0 else code


def _described(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"has ended with code {code}"
