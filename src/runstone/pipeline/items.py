"""What a user declares: work items, each with the artifacts it reads and the artifacts it makes."""

from __future__ import annotations

import glob
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from runstone.errors import RegistrationError
from runstone.pipeline.files import parts_of
from runstone.pipeline.schemas import check_schema
from runstone.pipeline.work import Reader

KEY: Final = "{key}"

Keys: TypeAlias = Iterable[str] | Mapping[str, Sequence[str]]
"""The keys to do an item for; as a mapping, each with artifacts that it needs on top."""

Each: TypeAlias = Callable[[Reader], Keys]
"""Tells from the artifacts made so far which keys there are."""

_MAGIC: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Output:
    """What an item makes: a name or a pattern, and the JSON Schema that its content has to fit."""

    name: str
    schema: Mapping[str, Any] | None = None
    schema_id: str | None = None

    @property
    def id(self) -> str | None:
        """What the log calls the schema: its given id, or the one it gives itself."""
        return self.schema_id or (self.schema or {}).get("$id")


@dataclass(frozen=True)
class Item:
    """One piece of work, ready to be done: a declaration, and for an item with `each` the key it is for."""

    name: str
    declaration: Declaration
    key: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()

    def makes(self, name: str) -> Output | None:
        """The declared output that an artifact's name falls under."""
        return next((output for output in self.outputs if fnmatchcase(name, output.name)), None)

    def reads(self, name: str) -> bool:
        """Whether an artifact's name falls under its inputs."""
        return any(fnmatchcase(name, pattern) for pattern in self.inputs)


@dataclass(frozen=True)
class Declaration:
    """A function and what was said about it."""

    name: str
    state: str
    function: Callable[..., Awaitable[None] | None]
    inputs: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()
    each: Each | None = None
    reuse: bool = True
    in_loop: bool = False
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))
        _check(self)

    def may_make(self, name: str) -> Output | None:
        """The output that an artifact of this name could be, of one of its items."""
        return next((o for o in self.outputs if fnmatchcase(name, o.name.replace(KEY, "*"))), None)

    def items(self, reader: Reader, attempt: int) -> list[Item]:
        """Its work items, in the order of their names; in a loop each attempt has items of its own."""
        suffix = f"#{attempt}" if self.in_loop else ""
        if self.each is None:
            return [Item(f"{self.name}{suffix}", self, "", self.inputs, self.outputs)]
        keys = self.each(reader)
        needs: Mapping[str, Sequence[str]] = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, ())
        return [self._item(key, needs[key], suffix) for key in sorted(needs)]

    def _item(self, key: str, needs: Sequence[str], suffix: str) -> Item:
        parts_of(key)
        own = glob.escape(key)
        return Item(
            f"{self.name}/{key}{suffix}",
            self,
            key,
            (*(pattern.replace(KEY, own) for pattern in self.inputs), *map(glob.escape, needs)),
            tuple(Output(output.name.replace(KEY, own), output.schema, output.id) for output in self.outputs),
        )


def is_pattern(text: str) -> bool:
    """Whether it stands for any number of artifacts, and not for one."""
    return _MAGIC.search(text.replace("[*]", "").replace("[?]", "").replace("[[]", "")) is not None


def plain(text: str) -> str:
    """The one name that something stands for that is no pattern."""
    return text.replace("[*]", "*").replace("[?]", "?").replace("[[]", "[")


def _check(declared: Declaration) -> None:
    name = declared.name
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise RegistrationError(f"{name!r} is no name for a work item: use letters, digits, '_', '-' and '.'")
    wanted = 1 if declared.each is None else 2
    try:
        inspect.signature(declared.function).bind(*[None] * wanted)
    except TypeError as error:
        takes = "the work alone" if wanted == 1 else "the work and a key"
        raise RegistrationError(f"Work item {name!r} has to take {takes}: {error}") from error
    for text in (*declared.inputs, *(output.name for output in declared.outputs)):
        if declared.each is None and KEY in text:
            raise RegistrationError(f"Work item {name!r} has {text!r} and no each= that gives it a key")
        parts_of(text)
    for output in declared.outputs:
        if output.schema is not None:
            check_schema(output.schema, f"{output.name!r} of work item {name!r}")
        if not declared.in_loop and output.name in declared.inputs:
            raise RegistrationError(
                f"Work item {name!r} reads and makes {output.name!r}: give what it makes another name"
            )
