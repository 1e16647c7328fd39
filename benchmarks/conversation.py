"""What a companion says and hears: lines of JSON, with a pause before it begins and one when it has ended.

A round has three answers. The first says that all is prepared; then the companion waits, so that processes
that work together begin together. The second says when it began and ended; then it waits until the others
have ended, so that none is disturbed. The last says what it found. Peers use this in environments of their
own, which have nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any


class Conversation:
    """The companion's side of it."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever else is printed is no answer

    def questions(self) -> Iterator[dict[str, Any]]:
        """What it is asked, until nobody asks any more."""
        while line := sys.stdin.readline():
            yield json.loads(line)

    def answer(self, **said: Any) -> None:
        self._answers.write(json.dumps(said) + "\n")
        self._answers.flush()

    def pause(self, **said: Any) -> None:
        """Answers, and waits to be told to go on."""
        self.answer(**said)
        if not sys.stdin.readline():
            raise SystemExit("nobody wants to know any more")
