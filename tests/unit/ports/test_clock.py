"""Ids from the system: fresh for every call, every thread and every process."""

from __future__ import annotations

import os
import re
import threading

from runstone.core.ids import UUID_PATTERN
from runstone.ports.clock import new_id


def test_ids_are_ids_and_never_the_same() -> None:
    ids = [new_id() for _ in range(5000)]
    assert len(set(ids)) == len(ids)
    assert all(re.match(UUID_PATTERN, each) for each in ids)


def test_threads_do_not_draw_the_same() -> None:
    drawn: list[str] = []
    threads = [threading.Thread(target=lambda: drawn.extend(new_id() for _ in range(1000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 4000


def test_a_forked_child_does_not_draw_what_its_parent_draws() -> None:
    """The random parts are compared: the times would differ anyway."""
    new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "".join(new_id()[14:] for _ in range(20)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 10_000).decode()
    os.close(reading)
    os.close(writing)
    assert not any(new_id()[14:] in theirs for _ in range(20))
