"""Plan, draft, link, validate: from facts to pages that hold together."""

from __future__ import annotations

import pytest

from examples.docs_pipeline import markdown
from examples.docs_pipeline.draft import PlainDrafter
from examples.docs_pipeline.facts import Facts, Name, extract
from examples.docs_pipeline.link import linked
from examples.docs_pipeline.plan import INDEX, Plan, plan
from examples.docs_pipeline.validate import Report, validate
from tests.repository import SHOP

FACTS = {path: extract(path, text.encode(), "src") for path, text in SHOP.items() if path.endswith(".py")}


@pytest.fixture
def planned() -> Plan:
    return plan(FACTS.values(), "docs/api")


# Plan


def test_a_page_for_every_module_package_and_folder(planned: Plan) -> None:
    assert [(page.path, page.kind, page.up) for page in planned.pages] == [
        ("index", "index", ""),
        ("shop/index", "package", "../index.md"),
        ("shop/later", "module", "index.md"),
        ("shop/orders", "module", "index.md"),
        ("shop/prices", "module", "index.md"),
        ("shop/tools/index", "package", "../index.md"),
        ("shop/tools/text", "module", "index.md"),
    ]
    shop = next(page for page in planned.pages if page.path == "shop/index")
    assert [(child.title, child.link) for child in shop.children] == [
        ("shop.later", "later.md"),
        ("shop.orders", "orders.md"),
        ("shop.prices", "prices.md"),
        ("shop.tools", "tools/index.md"),
    ]


def test_names_lead_to_where_they_are(planned: Plan) -> None:
    assert planned.references["shop/index"] == {"Order": "orders.md#Order"}
    assert planned.references["shop/orders"] == {"Price": "prices.md#Price"}
    assert planned.references["shop/prices"] == {"Price": "#Price"}
    assert planned.references[INDEX] == {}


def test_a_name_that_is_given_on_leads_to_its_origin() -> None:
    found = plan(
        [
            Facts(path="a.py", module="a", names=(Name(name="X", kind="class", signature="class X"),)),
            Facts(path="b.py", module="b", exports={"Y": "a.X", "Round": "c.Round"}),
            Facts(path="c.py", module="c", exports={"Round": "b.Round"}, mentions={"b.Y": "b.Y"}),
        ],
        "",
    )
    assert found.references["c"] == {"b.Y": "a.md#X"}


def test_a_module_called_index_has_a_page_of_its_own() -> None:
    found = plan([Facts(path="index.py", module="index"), Facts(path="p/index.py", module="p.index")], "")
    assert [page.path for page in found.pages] == ["index", "index_", "p/index", "p/index_"]


def test_the_order_of_the_files_does_not_matter(planned: Plan) -> None:
    assert plan(reversed(FACTS.values()), "docs/api") == planned


# Draft and link


async def pages_of(planned: Plan) -> dict[str, str]:
    drafter = PlainDrafter()
    drafted = {page.path: await drafter.draft(page, FACTS.get(page.source)) for page in planned.pages}
    return {path: linked(text, planned.references[path]) for path, text in drafted.items()}


async def test_a_page_shows_every_name(planned: Plan) -> None:
    pages = await pages_of(planned)
    assert markdown.anchors(pages["shop/orders"]) == {"Order", "Order.price", "Order.pay"}
    assert "This file cannot be read: no python in line 1." in pages["shop/later"]


def test_links_are_made_in_prose_only() -> None:
    text = "# `A`\n\n`A` and `A()` but [`A`](x.md), ``A``\n\n    `A`\n\n```\n`A`\n```\n"
    assert linked(text, {"A": "a.md", "B": "b.md#B", "C": "#C"}) == (
        "# `A`\n\n[`A`](a.md) and [`A()`](a.md) but [`A`](x.md), ``A``\n\n    `A`\n\n```\n`A`\n```\n\n"
        "## See also\n\n- [`B`](b.md#B)\n"
    )


# Validate and mend


def report(pages: dict[str, str], planned: Plan) -> Report:
    sources = {page.path: FACTS.get(page.source) for page in planned.pages}
    return validate(pages, sources, list(SHOP), "docs/api")


def check(pages: dict[str, str], planned: Plan) -> list[tuple[str, str, str]]:
    return [(problem.page, problem.kind, problem.what) for problem in report(pages, planned).problems]


async def test_what_validation_finds(planned: Plan) -> None:
    """Each where it is to be mended: links to what is missing are fine as they are."""
    pages = await pages_of(planned)
    assert check(pages, planned) == [("shop/orders", "DeadLink", "manual.md")]
    pages["shop/orders"] = pages["shop/orders"].replace("manual.md", "prices.md")
    del pages["shop/later"]
    pages["shop/prices"] = pages["shop/prices"].replace('<a id="Price"></a>', "")
    assert check(pages, planned) == [
        ("shop/later", "MissingPage", "shop/later"),
        ("shop/prices", "MissingName", "Price"),
    ]


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        ("https://example.org/x", True),
        ("mailto:a@example.org", True),
        ("//example.org", True),
        ("orders.md", True),
        ("./orders.md#Order", True),
        ("../index.md", True),
        ("../../../README.md", True),
        ("../../../src/shop/prices.py", True),
        ("orders.md#Nobody", False),
        ("#Nobody", False),
        ("../../../../README.md", False),
        ("../shop", False),
        ("/README.md", False),
        ("order%73.md", True),
    ],
)
async def test_where_a_link_leads(planned: Plan, link: str, leads: bool) -> None:
    pages = await pages_of(planned)
    pages["shop/later"] = f"A [link]({link})"
    assert (("shop/later", "DeadLink", link) not in check(pages, planned)) is leads


async def test_mending_solves_all_it_is_told(planned: Plan) -> None:
    pages, drafter = await pages_of(planned), PlainDrafter()
    pages["shop/prices"] = "```\nnever closed, [x](y.md)"
    pages["shop/later"] = " \n"
    problems = report(pages, planned).problems
    assert len(problems) == 4
    for page in planned.pages:
        if ours := [problem for problem in problems if problem.page == page.path]:
            pages[page.path] = await drafter.mend(page, FACTS.get(page.source), pages[page.path], ours)
    assert check(pages, planned) == []
    assert "see the manual." in pages["shop/orders"]


def test_what_is_wanting_in_the_sources(planned: Plan) -> None:
    wanting = report({}, planned).wanting
    assert [(want.page, want.undocumented, want.error) for want in wanting] == [
        ("shop/later", (), "No Python in line 1"),
        ("shop/prices", ("total",), ""),
    ]


# Markdown


def test_prose_keeps_what_looks_like_tags() -> None:
    assert markdown.prose("a <b> `<c>`\n\n    <d>") == "a &lt;b> `<c>`\n\n    <d>"
    assert markdown.prose("```\nopen <x>") == "```\nopen <x>\n```"
    assert markdown.closed("~~~\n```\n~~~") == "~~~\n```\n~~~"


def test_links_in_code_are_none() -> None:
    assert markdown.links("[a](b.md) `[c](d.md)` [`e`](f.md) [g](https://h)\n```\n[i](j.md)\n```") == [
        "b.md",
        "f.md",
    ]
