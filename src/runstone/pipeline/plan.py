"""What has to be done, in which order, and why: pure questions about a pipeline and a run's state."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from runstone.core.payloads import ArtifactInvalidated
from runstone.core.pipeline import PipelineState
from runstone.errors import ArtifactInvalid, RegistrationError
from runstone.pipeline.graph import Graph
from runstone.pipeline.items import KEY, Declaration, Item, is_pattern, plain


@dataclass(frozen=True)
class Verdict:
    """What is to be done about a work item, and why; nothing, if there is no reason."""

    reason: str = ""
    forced: bool = False
    stands: tuple[str, ...] = ()
    """Stale artifacts of it that were made from just what is there now: they need not be made again."""

    @property
    def must_run(self) -> bool:
        return bool(self.reason)


@dataclass(frozen=True)
class Wishes:
    """What a person asked for beyond what is due."""

    force: tuple[str, ...] = ()
    """Items to do again, by name or pattern."""
    from_state: str | None = None
    """The state from which on all items are done again."""

    def mean(self, item: Item, graph: Graph) -> bool:
        """Whether an item is among them."""
        if matches(item.name, self.force):
            return True
        start = self.from_state
        return start is not None and graph.place(item.declaration.state) >= graph.place(start)


def in_order(declarations: Sequence[Declaration]) -> list[Declaration]:
    """Who makes something goes before who reads it; otherwise names decide (§PIP-30)."""
    left = sorted(declarations, key=lambda declared: declared.name)
    ordered: list[Declaration] = []
    while left:
        ready = next((d for d in left if not any(_feeds(other, d) for other in left if other is not d)), None)
        if ready is None:
            names = ", ".join(declared.name for declared in left)
            raise RegistrationError(f"Work items of {left[0].state} need each other's artifacts: {names}")
        ordered.append(ready)
        left.remove(ready)
    return ordered


def _feeds(maker: Declaration, reader: Declaration) -> bool:
    made = [output.name.replace(KEY, "*") for output in maker.outputs]
    read = [pattern.replace(KEY, "*") for pattern in reader.inputs]
    return any(fnmatchcase(one, other) or fnmatchcase(other, one) for one in made for other in read)


def fresh(state: PipelineState) -> dict[str, str]:
    """The artifacts that may be used, with their hashes, in the order of names."""
    return {
        name: state.artifacts[name].sha256
        for name in sorted(state.artifacts)
        if not state.artifacts[name].stale
    }


def inputs_of(item: Item, available: Mapping[str, str]) -> dict[str, str]:
    """The artifacts that an item gets, as they are now; none of its own, unless it is part of a loop."""
    found: dict[str, str] = {}
    for pattern in item.inputs:
        if is_pattern(pattern):
            found |= {name: sha256 for name, sha256 in available.items() if fnmatchcase(name, pattern)}
        elif (name := plain(pattern)) in available:
            found[name] = available[name]
        else:
            raise ArtifactInvalid(f"Work item {item.name!r} needs {name!r}, and nothing has made it")
    if not item.declaration.in_loop:
        found = {name: sha256 for name, sha256 in found.items() if item.makes(name) is None}
    return dict(sorted(found.items()))


def there(state: PipelineState) -> dict[str, str]:
    """What an item of a loop may use: also what another item of the same attempt has made stale.

    The report that asks for two mends is out of date after the first, and still asks for the second.
    """
    known = sorted(state.artifacts.items())
    return {name: each.sha256 for name, each in known if each.stale_because != name}


def stale_input(item: Item, state: PipelineState) -> str | None:
    """An artifact that an item would get if it were not stale; one that nothing makes any more is none."""
    if item.declaration.in_loop:
        return None
    for name, known in sorted(state.artifacts.items()):
        if known.stale and known.stale_because != name and item.reads(name) and item.makes(name) is None:
            return name
    return None


def judge(item: Item, state: PipelineState, available: Mapping[str, str], forced: bool) -> Verdict:
    """Whether a work item has to be done, by what the log knows of it (§PIP-29)."""
    inputs = inputs_of(item, available)
    known = state.work_items.get(item.name)
    done = known.last_done if known else None
    if known is None or done is None:
        return Verdict("it was not done yet")
    if forced:
        return Verdict("it is forced", forced=True)
    if known.status != "DONE":
        return Verdict("its last try did not end well")
    stale = [name for name in done.outputs if state.artifacts[name].stale]
    if gone := [name for name in stale if state.artifacts[name].stale_because == name]:
        return Verdict(f"{gone[0]} is gone")
    if dict(done.inputs) != inputs:
        return Verdict(_difference(done.inputs, inputs))
    return Verdict(stands=tuple(stale))


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    name = min(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if name not in now:
        return f"{name} is no longer among its inputs"
    return f"{name} changed" if name in before else f"{name} is new among its inputs"


def downstream(
    state: PipelineState, changed: Mapping[str, str | None], keep: Collection[str] = ()
) -> list[ArtifactInvalidated]:
    """Everything that was made from what changes now, directly or not, and why (§PIP-26).

    `changed` says what each artifact will be, none if it is no more. `keep` is what is made anew with it.
    """
    if not changed:
        return []
    made_from: dict[str, list[str]] = defaultdict(list)
    for name in sorted(state.artifacts):
        if not state.artifacts[name].stale and name not in keep and name not in changed:
            for source in state.artifacts[name].inputs:
                made_from[source].append(name)
    found: dict[str, ArtifactInvalidated] = {}
    ahead = deque(sorted(changed))
    while ahead:
        source = ahead.popleft()
        for name in made_from[source]:
            if name in found or changed.get(source) == state.artifacts[name].inputs[source]:
                continue
            reason = _reason(state, source, changed, found)
            found[name] = ArtifactInvalidated(name=name, because=source, reason=reason)
            ahead.append(name)
    return list(found.values())


def _reason(
    state: PipelineState,
    source: str,
    changed: Mapping[str, str | None],
    found: Mapping[str, ArtifactInvalidated],
) -> str:
    if source in found:
        return f"{source} is stale"
    now, before = changed[source], state.artifacts.get(source)
    if now is None:
        return f"{source} is gone"
    return f"{source} changed from {before.sha256[:12]} to {now[:12]}" if before else f"{source} changed"


def makers(state: PipelineState) -> dict[str, str]:
    """Which work item made each artifact, the latest where there were several."""
    done = [(known.last_done, item) for item, known in state.work_items.items()]
    ended = sorted(
        (d.ended_at, item, d.outputs) for d, item in done if d is not None and d.ended_at is not None
    )
    return {name: item for _, item, outputs in ended for name in outputs}


def family(item: str) -> str:
    """An item's name without the attempt it belongs to."""
    return item.partition("#")[0]


def matches(item: str, patterns: Iterable[str]) -> bool:
    """Whether an item is meant: by its name, by that of its declaration, or by a pattern."""
    names = {item, family(item), family(item).partition("/")[0]}
    return any(name == pattern or fnmatchcase(name, pattern) for name in names for pattern in patterns)
