"""Facts are parsed from sources; nothing is imported."""

from __future__ import annotations

import textwrap

import pytest

from examples.docs_pipeline.facts import Facts, extract, module_name


def facts(source: str, path: str = "src/shop/orders.py") -> Facts:
    return extract(path, textwrap.dedent(source).encode(), "src")


def names(found: Facts) -> dict[str, str]:
    return {name.name: name.signature for name in found.names}


@pytest.mark.parametrize(
    ("path", "folder", "module"),
    [
        ("src/shop/orders.py", "src", "shop.orders"),
        ("src/shop/__init__.py", "src", "shop"),
        ("setup.py", "", "setup"),
        ("__init__.py", "", "__init__"),
        ("src/shop/a.py", "", "src.shop.a"),
    ],
)
def test_what_a_file_is_imported_as(path: str, folder: str, module: str) -> None:
    assert module_name(path, folder) == module


def test_names_signatures_and_docstrings() -> None:
    found = facts('''
        """Orders.

        More."""
        import abc
        LIMIT: int = 3
        """How many."""
        _HIDDEN: int = 1
        class Order(abc.ABC, metaclass=abc.ABCMeta):
            """One order."""
            price: int
            def __init__(self, price): ...
            @property
            def total(self) -> int:
                """All of it."""
            def _secret(self): ...
            class Line:
                def text(self): ...
        async def pay(a, /, b: int = 1, *rest: str, tip=lambda x, y: (x, y), **more: int) -> None: ...
        ''')
    assert (found.module, found.doc, found.summary) == ("shop.orders", "Orders.\n\nMore.", "Orders.")
    assert names(found) == {
        "LIMIT": "LIMIT: int = 3",
        "Order": "class Order(abc.ABC, metaclass=abc.ABCMeta)",
        "Order.price": "price: int",
        "Order.__init__": "def __init__(self, price)",
        "Order.total": "@property\ndef total(self) -> int",
        "Order.Line": "class Line",
        "Order.Line.text": "def text(self)",
        "pay": "async def pay(a, /, b: int = 1, *rest: str, tip=lambda x, y: (x, y), **more: int) -> None",
    }
    assert {name.name: name.doc for name in found.names if name.doc} == {
        "LIMIT": "How many.",
        "Order": "One order.",
        "Order.total": "All of it.",
    }
    assert found.undocumented == ["Order.Line", "Order.Line.text", "pay"]


def test_a_long_signature_is_broken_between_arguments() -> None:
    given = ", ".join(f"argument_{number}: dict[str, int] = {{'a': 1, 'b': 2}}" for number in range(3))
    (signature,) = names(facts(f"def long({given}, *, last=None): ...")).values()
    lines = [f"    argument_{number}: dict[str, int] = {{'a': 1, 'b': 2}}," for number in range(3)]
    assert signature.splitlines() == ["def long(", *lines, "    *,", "    last=None,", ")"]


def test_overloads_and_versions_are_one_name() -> None:
    found = facts('''
        if True:
            def read(a: int) -> int: ...
        else:
            def read(a: str) -> str:
                """Reads."""
        try:
            def other(): ...
        finally:
            pass
        ''')
    assert names(found) == {
        "read": "def read(a: int) -> int\ndef read(a: str) -> str",
        "other": "def other()",
    }
    assert found.undocumented == ["other"]


def test_what_all_names_is_public_and_nothing_else() -> None:
    found = extract(
        "src/shop/__init__.py",
        b"from .orders import Order\nfrom shop import prices as p\n"
        b"__all__ = ['Order', '_odd']\ndef _odd(): ...\ndef plain(): ...\n",
        "src",
    )
    assert list(names(found)) == ["_odd"]
    assert found.exports == {"Order": "shop.orders.Order"}


def test_what_it_mentions_is_known_by_its_full_name() -> None:
    found = facts('''
        """Uses `Price`, `Order.pay()`, `shop.tools` and `nothing`."""
        import shop.prices as prices
        from .base import Thing
        from . import tools
        from shop.prices import Price
        class Order(Thing):
            def pay(self, to: "str", by: prices.Way | list[tools.Card]) -> Price: ...
        ''')
    assert found.mentions == {
        "Order.pay": "shop.orders.Order.pay",
        "Price": "shop.prices.Price",
        "Thing": "shop.base.Thing",
        "prices.Way": "shop.prices.Way",
        "shop.tools": "shop.tools",
        "tools.Card": "shop.tools.Card",
    }


@pytest.mark.parametrize(
    ("source", "error"),
    [(b"a\ndef (:\n", "No Python in line 2"), (b"\xff\xfe", "No Python"), (b"a = '\0'", "No Python")],
)
def test_what_is_no_python_is_said(source: bytes, error: str) -> None:
    found = extract("a.py", source)
    assert found.error.startswith(error)
    assert not found.names


def test_nothing_is_executed() -> None:
    assert list(names(facts("raise SystemExit\ndef after(): ..."))) == ["after"]
