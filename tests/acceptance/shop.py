"""An app whose workers are killed: branches, retries, naps, decisions, and a note of each call outside."""

from __future__ import annotations

import asyncio
import os

import runstone as rs

app = rs.App("shop", version="1")


def note(line: str) -> None:
    """One line in a file that outlives the worker, written whole or not at all."""
    if path := os.environ.get("SHOP_NOTES"):
        with open(path, "ab", buffering=0) as notes:
            notes.write(f"{line}\n".encode())


@app.tool
async def price(order: int, item: str) -> int:
    note(f"price {order} {item}")
    await asyncio.sleep(0.002)
    return order * 100 + len(item)


@app.tool(retry=rs.Retry(max_attempts=5, initial=rs.seconds(0.01)))
def stock(order: int, attempt_file: str) -> int:
    """Fails the first time for every third order; a plain `def`, so it runs in a thread."""
    note(f"stock {order}")
    if order % 3 == 0 and not os.path.exists(attempt_file):
        with open(attempt_file, "x"):
            pass
        raise ConnectionError("the warehouse does not answer")
    return order % 7


@app.specialist
async def judge(order: int) -> str:
    note(f"judge {order}")
    return "ship" if order % 2 else "hold"


@app.on()
async def buy(run: rs.Run, order: int) -> str:
    first, second = await run.gather(run.call(price, order, "book"), run.call(price, order, "pen"))
    left = await run.call(stock, order, f"{os.environ.get('SHOP_NOTES', 'notes')}.{order}")
    run.set("left", left)
    await run.sleep(rs.seconds(0.05 * (order % 4)))
    verdict = await run.call(judge, order)
    if await run.decide("hold", verdict == "hold"):
        reply = await run.wait("release", str, timeout=rs.minutes(10))
        return f"{order}: {first + second} {left} {reply}"
    return f"{order}: {first + second} {left} shipped"


def expected(order: int) -> str:
    total = (order * 100 + 4) + (order * 100 + 3)
    return f"{order}: {total} {order % 7} {'shipped' if order % 2 else 'released'}"
