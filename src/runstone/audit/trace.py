"""The causes of a correlation as a tree, and the tree as text (§ORD-22).

Every event hangs below the one that caused it. A history is mostly one long chain, so a chain is
drawn straight down: of several effects of one cause, those that lead less far stand aside, and the
one that leads furthest goes on in line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from runstone.core.events import Event, StreamKind
from runstone.core.stream import Stream


@dataclass
class Node:
    """An event, and the events it caused in the order in which they stand in the log."""

    event: Event
    kind: StreamKind
    children: list[Node] = field(default_factory=list)
    note: str = ""
    """Why it is a root though it names a cause."""
    size: int = 1
    """How many events are in its tree, itself among them."""


def trace(streams: Sequence[Stream]) -> list[Node]:
    """The roots of the tree; every event of the streams is in it exactly once."""
    nodes = {event.id: Node(event, stream.head.kind) for stream in streams for event in stream.events}
    roots = _link(nodes)
    reached = {node.event.id for root in roots for node in _walk(root)}
    for event_id, node in nodes.items():
        if event_id not in reached:
            _cut_loose(nodes, node)
            roots.append(node)
            reached.update(below.event.id for below in _walk(node))
    for root in roots:
        _measure(root)
    return roots


def draw(roots: Iterable[Node]) -> Iterator[str]:
    """The tree as lines of text: first the streams and what they are called below, then the events."""
    roots = list(roots)
    names = _names(node for root in roots for node in _walk(root))
    yield from (f"{name}  {stream_id}" for stream_id, name in names.items())
    stack: list[tuple[str, str, Node]] = [("", "", root) for root in reversed(roots)]
    while stack:
        lead, rail, node = stack.pop()
        yield f"{lead}● {_label(node, names[node.event.stream_id])}"
        if not node.children:
            continue
        heir = max(node.children, key=lambda child: child.size)
        stack.append((rail, rail, heir))
        for child in reversed(node.children):
            if child is not heir:
                stack.append((f"{rail}├─", f"{rail}│ ", child))


def _link(nodes: dict[str, Node]) -> list[Node]:
    """Hangs every node below its cause; those without one are roots."""
    roots: list[Node] = []
    for node in nodes.values():
        cause_id = node.event.causation_id
        cause = nodes.get(cause_id) if cause_id else None
        if cause is not None:
            cause.children.append(node)
            continue
        if cause_id is not None:
            node.note = f"(its cause {cause_id} is not here)"
        roots.append(node)
    return roots


def _cut_loose(nodes: dict[str, Node], node: Node) -> None:
    """Opens a circle of causes, which only a damaged log has, at this node."""
    cause_id = node.event.causation_id or ""
    nodes[cause_id].children.remove(node)
    node.note = f"(it is its own cause, through {cause_id})"


def _walk(root: Node) -> list[Node]:
    """A node and all below it, each before its children; histories are too deep for recursion."""
    found = [root]
    for node in found:
        found += node.children
    return found


def _measure(root: Node) -> None:
    for node in reversed(_walk(root)):
        node.size = 1 + sum(child.size for child in node.children)


def _names(nodes: Iterable[Node]) -> dict[str, str]:
    """What streams are called: by their kind, with a number from the second of a kind on."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for node in nodes:
        if node.event.stream_id not in names:
            counts[node.kind] += 1
            number = f" {counts[node.kind]}" if counts[node.kind] > 1 else ""
            names[node.event.stream_id] = f"{node.kind.lower()}{number}"
    return names


def _label(node: Node, name: str) -> str:
    event = node.event
    time = f"{event.occurred_at:%Y-%m-%dT%H:%M:%S.%fZ}"
    parts = (event.event_type, event.step_key, f"{name} #{event.run_seq}", time, node.note)
    return "  ".join(printable(part) for part in parts if part)


def printable(text: str) -> str:
    """The text on one line, without anything that a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
