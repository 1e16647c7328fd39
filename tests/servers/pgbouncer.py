"""A real PgBouncer in front of a test's PostgreSQL: it lends a connection for one transaction at a time."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.servers.postgres import PATIENCE, free_port, unprivileged

CONFIGURATION = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
log_connections = 0
log_disconnections = 0
"""


def program() -> str | None:
    """Debian puts it where only administrators look."""
    return shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))


class PgBouncer:
    """A pool of `size` connections to the database of a URL, for one user."""

    def __init__(self, url: str, user: str, size: int) -> None:
        found = program()
        assert found is not None, "no pgbouncer here"
        server = urlsplit(url)
        self.port = free_port()
        self.url = f"postgresql://{user}@127.0.0.1:{self.port}{server.path}"
        self.folder = Path(tempfile.mkdtemp(prefix="runstone-pgbouncer-"))
        configuration = CONFIGURATION.format(
            host=server.hostname, port=server.port or 5432, listen=self.port, folder=self.folder, size=size
        )
        (self.folder / "pgbouncer.ini").write_text(configuration, "utf-8")
        (self.folder / "users").write_text(f'"{user}" ""\n', "utf-8")
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [found, str(self.folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                **self._as_somebody(),
            )

    def _as_somebody(self) -> dict[str, Any]:
        """It refuses to run as root."""
        somebody = unprivileged()
        if somebody is None:
            return {}
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, *somebody)
        return {"user": somebody[0], "group": somebody[1], "extra_groups": []}

    async def ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "log").read_text("utf-8", "replace")
                    raise RuntimeError(f"PgBouncer did not start: {log[-2000:]}") from error
                await asyncio.sleep(0.02)

    def remove(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
