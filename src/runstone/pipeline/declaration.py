"""`Pipeline`: what a user declares in an ordinary module.

    pipeline = rs.Pipeline("docs", graph=rs.DOCS_GRAPH)

    @pipeline.item("INGESTED", inputs=["sources/*"], outputs=["facts.json"])
    def extract(work: rs.Work) -> None:
        work.write_json("facts.json", facts_of(work.read(name) for name in work.names()))

The items of a state are done while the run is in it; when all are done, the run moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from runstone.errors import RegistrationError
from runstone.pipeline.graph import DOCS_GRAPH, Graph
from runstone.pipeline.items import Declaration, Each, Keys, Output
from runstone.pipeline.work import Reader

F = TypeVar("F", bound=Callable[..., object])


class Pipeline:
    """A graph of states, and the work to be done in each.

    `params` are what a run is started with, by name with their defaults; one without a default (None)
    has to be given.
    """

    def __init__(
        self,
        name: str,
        *,
        graph: Graph = DOCS_GRAPH,
        version: str = "",
        params: Mapping[str, str | None] | None = None,
    ) -> None:
        self.name = name
        self.graph = graph
        self.version = version
        self.params: Mapping[str, str | None] = dict(params or {})
        self.declarations: dict[str, Declaration] = {}

    def item(
        self,
        state: str,
        *,
        inputs: Iterable[str] = (),
        outputs: Iterable[str | Output] = (),
        each: Each | Keys | None = None,
        name: str | None = None,
        reuse: bool = True,
    ) -> Callable[[F], F]:
        """Registers a work item of a state: a plain or async function that takes its `Work`.

        `inputs` and `outputs` name artifacts; `*` and `?` stand for any characters, and `{key}` for the
        item's key. With `each` there is one item for every key, and the function gets the key as well;
        a mapping gives every key the further inputs it alone depends on. `reuse=False` is for an item
        that does something outside: another run's result never takes its place.
        """

        def register(function: F) -> F:
            self._add(
                Declaration(
                    name=name or function.__name__,
                    state=state,
                    function=function,  # type: ignore[arg-type]
                    inputs=_texts("inputs", inputs),
                    outputs=tuple(
                        o if isinstance(o, Output) else Output(o) for o in _listed("outputs", outputs)
                    ),
                    each=_each(each),
                    reuse=reuse,
                    in_loop=state in self.graph.states and self.graph[state].limit is not None,
                )
            )
            return function

        return register

    def _add(self, declared: Declaration) -> None:
        if declared.state not in self.graph.states:
            raise RegistrationError(
                f"Work item {declared.name!r} is for state {declared.state!r}, which the graph does not have"
            )
        if declared.state in self.graph.terminal:
            raise RegistrationError(f"Work item {declared.name!r}: nothing is done in {declared.state}")
        if declared.name in self.declarations:
            raise RegistrationError(f"Work item {declared.name!r} is registered twice")
        self.declarations[declared.name] = declared

    def of(self, state: str) -> Sequence[Declaration]:
        """The declarations of a state, in the order of their names (§PIP-30)."""
        return sorted((d for d in self.declarations.values() if d.state == state), key=lambda d: d.name)

    def given(self, params: Mapping[str, str]) -> dict[str, str]:
        """What a run starts with: what is given, and defaults for the rest."""
        if unknown := sorted(params.keys() - self.params.keys()):
            known = ", ".join(sorted(self.params)) or "none"
            raise RegistrationError(f"{self.name!r} has no parameter {unknown[0]!r}: it has {known}")
        found = {**self.params, **params}
        if missing := sorted(name for name, value in found.items() if value is None):
            raise RegistrationError(
                f"{self.name!r} needs the parameter {missing[0]!r}: --param {missing[0]}=…"
            )
        return {name: str(value) for name, value in sorted(found.items())}


def _each(each: Each | Keys | None) -> Each | None:
    if isinstance(each, str):
        raise RegistrationError(f"each={each!r} is a text: give a list of keys, [{each!r}]")
    if each is None or callable(each):
        return each
    fixed: Keys = dict(each) if isinstance(each, Mapping) else tuple(each)

    def keys(_: Reader) -> Keys:
        return fixed

    return keys


def _texts(what: str, given: Iterable[str]) -> tuple[str, ...]:
    return tuple(text for text in _listed(what, given) if isinstance(text, str))


def _listed(what: str, given: Iterable[str | Output]) -> tuple[str | Output, ...]:
    if isinstance(given, str):
        raise RegistrationError(f"{what}={given!r} is a text: give a list, [{given!r}]")
    return tuple(given)
