"""A support desk: mails are triaged and answered; refunds wait for a person, for days if need be.

python -m examples.support_desk
"""

from __future__ import annotations

import asyncio

import msgspec

import runstone as rs

app = rs.App("support-desk", version="3")


class Order(msgspec.Struct):
    """An order, as the shop knows it."""

    id: str
    total: float


class Verdict(msgspec.Struct):
    """What a mail is about."""

    kind: str
    order_id: str


class Approval(msgspec.Struct):
    """What a person says to a refund."""

    approved: bool


@app.tool(cache_ttl=rs.minutes(30))
async def lookup_order(order_id: str) -> Order:
    """Asks the shop."""
    return Order(order_id, 19.90)


@app.specialist(retry=rs.Retry(max_attempts=3), timeout=rs.minutes(2))
async def triage(email: rs.Email) -> Verdict:
    """Finds out what the sender wants; a model would be asked here."""
    return Verdict("refund" if "refund" in email.body else "question", order_id="o-42")


@app.on(rs.Email, key=lambda e: e.thread, concurrency=1)
async def answer(run: rs.Run, email: rs.Email) -> str:
    """Answers one mail; mails of one thread take turns."""
    verdict = await run.call(triage, email)
    order = await run.call(lookup_order, verdict.order_id)
    if await run.decide("refund", verdict.kind == "refund"):
        try:
            ok = await run.wait("approval", Approval, timeout=rs.days(2))
        except rs.WaitTimeout:
            return "nobody answered"
        if not ok.approved:
            return "declined"
    await run.effect(
        rs.SendEmail(
            to=[email.sender], subject="Your order", body_html=f"<p>{order.total:.2f} is on its way</p>"
        )
    )
    return "answered"


async def main() -> None:
    email = rs.Email(sender="ada@example.org", subject="My order", body="I want a refund")
    async with app.running(":memory:"):
        handle = await app.start(answer, email, key="order-42")
        await handle.answer("approval", Approval(approved=True))
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
