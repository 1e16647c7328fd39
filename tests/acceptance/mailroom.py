"""An app whose runs ask for many effects; the test of kill -9 has others send them."""

from __future__ import annotations

from datetime import timedelta

import runstone as rs

EFFECTS = 10
"""How many each run asks for; the last two at most once."""

PATIENT = rs.RetryPolicy(12, timedelta(milliseconds=50), timedelta(milliseconds=400))

app = rs.App("mailroom", version="1")


@app.on()
async def post(run: rs.Run, order: dict[str, str]) -> str:
    for number in range(EFFECTS):
        once = number >= EFFECTS - 2
        await run.effect(
            rs.ApiCall(
                method="POST",
                url=f"{order['url']}/{'once' if once else 'often'}",
                body={"order": order["name"], "number": number, "text": "Grüße" * 20},
            ),
            at_most_once=once,
            retry=PATIENT,
        )
    return "posted"
