"""The demonstration that sends mail does what it says."""

from __future__ import annotations

import asyncio
import sys


async def test_it_sends_one_mail_in_two_attempts() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.sends_mail"), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    said = output.decode().splitlines()
    assert process.returncode == 0
    assert "    mail  Subject: Your order is on its way ✓" in said
    assert "     log  REQUESTED → EXECUTING → FAILED → RETRYING → EXECUTING → COMPLETED" in said
    assert said[-1] == "    done  2 attempts with one Message-ID, 1 mail"
