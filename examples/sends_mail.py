"""A run that sends mail, and a mail server that shows what came.

    python -m examples.sends_mail

The server is a real one, on this machine: aiosmtpd. It turns the first attempt away, as busy servers do. The
dispatcher tries again, with the same bytes and the same `Message-ID`, and the server takes it.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from pathlib import Path

from aiosmtpd.smtp import SMTP, Envelope, Session

import runstone as rs
from runstone.core.retry import RetryPolicy
from runstone.handle import Handle

app = rs.App("shop", version="1")


@app.on()
async def confirm(run: rs.Run, customer: str) -> str:
    mail = rs.SendEmail(
        to=[f"Ada <{customer}>"],
        subject="Your order is on its way ✓",
        body_text="Order 42 left our house today.\n",
        body_html="<p>Order <b>42</b> left our house today.</p>",
    )
    sent = await run.effect(mail, wait=True, retry=RetryPolicy(base=rs.seconds(0.2)))
    return str(sent["message_id"])


class Sink:
    """Takes mail at the second attempt."""

    def __init__(self) -> None:
        self.attempts: list[EmailMessage] = []
        self.taken: list[EmailMessage] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.attempts.append(message)
        if len(self.attempts) == 1:
            print("  server  451 come back later")
            return "451 come back later"
        self.taken.append(message)
        print("  server  250 taken")
        return "250 taken"


@asynccontextmanager
async def listening(sink: Sink) -> AsyncIterator[int]:
    """The sink behind a port of this machine."""
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(sink, enable_SMTPUTF8=True), "127.0.0.1", 0
    )
    async with server:
        yield server.sockets[0].getsockname()[1]


async def main() -> None:
    sink = Sink()
    async with listening(sink) as port:
        os.environ["RUNSTONE_SMTP_URL"] = f"smtp://127.0.0.1:{port}?sender=shop@example.org"
        with tempfile.TemporaryDirectory() as folder:
            async with app.running(str(Path(folder) / "shop.db")):
                print("   start  A run asks for a mail; the request is committed with its step.")
                handle = await app.start(confirm, "ada@example.org")
                message_id = await handle.result()
                await show(handle, sink, message_id)


async def show(handle: Handle[str], sink: Sink, message_id: str) -> None:
    """What came, and what the log says about it."""
    for message in sink.taken:
        for name in ("From", "To", "Subject", "Date", "Message-ID"):
            print(f"    mail  {name}: {message[name]}")
        plain = message.get_body(("plain",))
        print(f"    mail  {plain.get_content().strip() if plain else ''}")
    events = [event.event_type async for event in handle.events() if event.aggregate_type == "EFFECT"]
    print(f"     log  {' → '.join(event.removeprefix('EFFECT_') for event in events)}")
    ids = {str(message["Message-ID"]) for message in sink.attempts}
    print(f"    done  {len(sink.attempts)} attempts with one Message-ID, {len(sink.taken)} mail")
    if ids != {message_id} or len(sink.taken) != 1 or len({bytes(each) for each in sink.attempts}) != 1:
        raise SystemExit("this must never happen")


if __name__ == "__main__":
    asyncio.run(main())
