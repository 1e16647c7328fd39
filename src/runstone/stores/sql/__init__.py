"""SQL that a person can read: numbered migrations and named statements, one folder per backend.

A statement stands in `statements.sql` behind a line `-- name: …`; comments explain it.
"""

from __future__ import annotations

import re
from hashlib import sha256
from importlib import resources
from typing import Final

import msgspec

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    """One numbered step of the schema."""

    version: int
    name: str
    script: str

    @property
    def checksum(self) -> str:
        return sha256(self.script.encode()).hexdigest()


def migrations(backend: str) -> list[Migration]:
    """A backend's migrations, in order."""
    folder = resources.files(__name__) / backend
    found = sorted(entry.name for entry in folder.iterdir() if re.match(r"\d{4}_.*\.sql$", entry.name))
    return [
        Migration(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8"))
        for name in found
    ]


def statements(backend: str) -> dict[str, str]:
    """A backend's statements by name."""
    text = (resources.files(__name__) / backend / "statements.sql").read_text("utf-8")
    parts = _NAME.split(text)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))
