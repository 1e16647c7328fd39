"""What people do about effects: requeue or discard dead letters, resolve unknown outcomes (§OUT-27, §OUT-31).

Each is an event in the run's log, also after the run has ended. Many at once are done one by one: what
cannot be done any more, because somebody else was faster, is left out and counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from runstone.core.commands import Command, DiscardEffect, ReconcileEffect, RequeueEffect
from runstone.core.commit import Context
from runstone.core.effect import Effect
from runstone.core.transitions import EffectStatus
from runstone.errors import CommandRefused, NotFound, StateTransitionError
from runstone.ports.cases import carry_out
from runstone.ports.store import Host, Queries, Store

PAGE = 500


class Done(msgspec.Struct, frozen=True):
    """How many it was done to, and how many were not as they had to be any more."""

    done: int = 0
    passed_over: int = 0


async def find(queries: Queries, tenant_id: str, name: str) -> Effect:
    """The effect with this id or idempotency key."""
    found = await queries.get_effect(tenant_id, name.lower()) or await queries.find_effect(tenant_id, name)
    if found is None:
        raise NotFound(f"There is no effect with the id or key {name!r}: see `runstone outbox list`")
    return found


async def select(
    queries: Queries,
    tenant_id: str,
    *,
    status: EffectStatus | None = None,
    effect_type: str | None = None,
    error_code: str | None = None,
) -> AsyncIterator[Effect]:
    """All effects of a group, the newest first, page by page."""
    after: str | None = None
    while True:
        page = await queries.list_effects(
            tenant_id,
            status=status,
            effect_type=effect_type,
            error_code=error_code,
            after=after,
            limit=PAGE,
        )
        for effect in page:
            yield effect
        if len(page) < PAGE:
            return
        after = page[-1].id


def requeue(reason: str) -> Callable[[Effect], Command]:
    """Send a dead letter again."""
    return lambda effect: RequeueEffect(effect_id=effect.id, reason=reason)


def discard(reason: str) -> Callable[[Effect], Command]:
    """Give a dead letter up."""
    return lambda effect: DiscardEffect(effect_id=effect.id, reason=reason or "DISCARDED")


def reconcile(sent: bool, evidence: str) -> Callable[[Effect], Command]:
    """Say what became of an unknown outcome."""
    return lambda effect: ReconcileEffect(effect_id=effect.id, sent=sent, evidence=evidence)


async def apply(host: Host, effect: Effect, what: Callable[[Effect], Command], context: Context) -> None:
    """Does it to one effect, or says why not."""
    await carry_out(host, effect.tenant_id, effect.run_id, what(effect), context=context)


async def apply_to_all(
    store: Store,
    chosen: AsyncIterator[Effect],
    what: Callable[[Effect], Command],
    context: Callable[[], Context],
) -> Done:
    """Does it to many."""
    done = passed_over = 0
    async for effect in chosen:
        try:
            await apply(store, effect, what, context())
            done += 1
        except (CommandRefused, StateTransitionError):
            passed_over += 1
    return Done(done, passed_over)
