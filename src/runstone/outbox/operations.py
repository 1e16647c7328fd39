"""What people do about effects: requeue or discard dead letters, resolve unknown outcomes (§OUT-27, §OUT-31).

Each is an event in the run's log, also after the run has ended. Many at once are done one by one: what
cannot be done any more, because somebody else was faster, is left out and named.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from runstone.core.commands import Command, DiscardEffect, ReconcileEffect, RequeueEffect
from runstone.core.commit import Context
from runstone.core.effect import Effect
from runstone.core.ids import is_id
from runstone.core.transitions import EffectStatus
from runstone.errors import CommandRefused, NotFound, StateTransitionError
from runstone.ports.cases import carry_out
from runstone.ports.store import Host, Queries, Store

PAGE = 500


class Done(msgspec.Struct, frozen=True):
    """How many it was done to, and the ids of those that were not as they had to be any more."""

    done: int = 0
    passed_over: tuple[str, ...] = ()


async def find(queries: Queries, tenant_id: str, name: str) -> Effect:
    """The effect with this id or idempotency key; not every store takes what is no id for one."""
    found = await queries.get_effect(tenant_id, name.lower()) if is_id(name.lower()) else None
    if found is None:
        found = await queries.find_effect(tenant_id, name)
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


async def find_dead(queries: Queries, tenant_id: str, names: Iterable[str]) -> list[Effect]:
    """The dead letters with these ids or keys, each once; one that is none is refused with all of them."""
    found = [await find(queries, tenant_id, name) for name in names]
    others = {effect.id: effect.status for effect in found if effect.status != "DEAD_LETTER"}
    if others:
        told = ", ".join(f"{effect_id} ({status})" for effect_id, status in others.items())
        raise CommandRefused(f"Nothing was done, for not all of these are dead letters: {told}")
    return list({effect.id: effect for effect in found}.values())


async def apply_to_all(
    store: Store,
    chosen: AsyncIterator[Effect],
    what: Callable[[Effect], Command],
    context: Callable[[], Context],
) -> Done:
    """Does it to many."""
    done = 0
    passed_over: list[str] = []
    async for effect in chosen:
        try:
            await apply(store, effect, what, context())
            done += 1
        except (CommandRefused, NotFound, StateTransitionError):
            passed_over.append(effect.id)
    return Done(done, tuple(passed_over))
