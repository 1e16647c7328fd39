"""The pipeline: what is done in which state of the graph, and what each piece of work reads and makes.

    CREATED        clone     commit.json: which commit is documented
    CLONED_INPUTS  ingest    sources/…: its Python files; tree.json: all its files; settings.json
    INGESTED       facts     facts/…: what each source says of itself
    FACTS_READY    plan      plan.json: all pages; outlines/…, references/…: what each page depends on
    DRAFTING       draft     drafts/…: pages
    LINKING        link      site/…: pages that lead to each other
    VALIDATING     validate  report.json
    FIXING         fix       site/…, mended
    READY_FOR_PR   commit    published.json: the commit of the pages
                   request   request.json: the pull request

`pipeline` writes plainly. For another writer, declare your own: `pipeline = docs_pipeline(drafter=…)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

import runstone as rs
from examples.docs_pipeline.clone import Commit, cloned, resolved
from examples.docs_pipeline.draft import Drafter, PlainDrafter
from examples.docs_pipeline.facts import Facts, extract
from examples.docs_pipeline.forge import DiskForge, Forge, Request
from examples.docs_pipeline.link import linked
from examples.docs_pipeline.plan import Page, plan
from examples.docs_pipeline.publish import Published, commit
from examples.docs_pipeline.sources import Tree
from examples.docs_pipeline.validate import Report, validate

HERE: Final = Path(__file__).resolve().parents[2]

PARAMS: Final = {
    "repository": "",  # a path or an address; this repository if nothing is said
    "revision": "HEAD",
    "sources": "",  # the folder that imports begin in: `src` if there is one, or the top
    "folder": "docs/api",  # where pages go in the repository
    "remote": "",  # a path, or github:owner/name; `docs.git` beside `runs/` if nothing is said
    "base": "",  # the branch to merge into: the one that the repository has checked out
}

_MOST_TOLD: Final = 100

T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was settled when the sources were read."""

    sources: str
    folder: str


def docs_pipeline(
    drafter: Drafter | None = None, *, version: str = "1", max_fix_attempts: int = 3
) -> rs.Pipeline:
    """A pipeline with a writer of your own, or the plain one.

    What one writer has written, another does not reuse; give a new `version` to one who has learnt something.
    """
    writer = drafter or PlainDrafter()
    graph = rs.docs_graph(max_fix_attempts=max_fix_attempts)
    made_by = f"{type(writer).__qualname__}/{version}"
    pipeline = rs.Pipeline("docs", version=made_by, graph=graph, params=PARAMS)
    _declare_reading(pipeline)
    _declare_writing(pipeline, writer)
    _declare_publishing(pipeline)
    return pipeline


def _declare_reading(pipeline: rs.Pipeline) -> None:
    @pipeline.item("CREATED", outputs=["commit.json"])
    def clone(work: rs.Work) -> None:
        place = _cloned(work)
        _write(work, "commit.json", resolved(place, work.params["revision"]))

    @pipeline.item(
        "CLONED_INPUTS", inputs=["commit.json"], outputs=["settings.json", "sources/*", "tree.json"]
    )
    def ingest(work: rs.Work) -> None:
        place = _cloned(work)
        tree = Tree(place, _read(work, "commit.json", Commit).sha)
        folder = tree.folder(work.params["sources"])
        settings = Settings(sources=folder, folder=work.params["folder"].strip("/"))
        tree.check_pages(settings.folder)
        for path, content in tree.sources(folder):
            work.write(f"sources/{path}", content)
        work.write_json("tree.json", tree.paths)
        _write(work, "settings.json", settings)

    @pipeline.item(
        "INGESTED",
        each=lambda read: [name.removeprefix("sources/") for name in read.names("sources/*")],
        inputs=["settings.json", "sources/{key}"],
        outputs=["facts/{key}.json"],
    )
    def facts(work: rs.Work, path: str) -> None:
        settings = _read(work, "settings.json", Settings)
        _write(work, f"facts/{path}.json", extract(path, work.read(f"sources/{path}"), settings.sources))

    @pipeline.item(
        "FACTS_READY",
        inputs=["settings.json", "facts/*"],
        outputs=["plan.json", "outlines/*", "references/*"],
    )
    def plan_pages(work: rs.Work) -> None:
        modules = [_read(work, name, Facts) for name in work.names("facts/*")]
        planned = plan(modules, _read(work, "settings.json", Settings).folder)
        work.write_json("plan.json", {page.path: page.source for page in planned.pages})
        for page in planned.pages:
            _write(work, f"outlines/{page.path}.json", page)
            work.write_json(f"references/{page.path}.json", planned.references[page.path])


def _declare_writing(pipeline: rs.Pipeline, drafter: Drafter) -> None:
    @pipeline.item("DRAFTING", each=_outlined, outputs=["drafts/{key}.md"])
    async def draft(work: rs.Work, path: str) -> None:
        work.write(f"drafts/{path}.md", await drafter.draft(*_subject(work, path)))
        work.section(path, "DRAFTED")

    @pipeline.item(
        "LINKING",
        each=lambda read: list(read.json("plan.json")),
        inputs=["drafts/{key}.md", "references/{key}.json"],
        outputs=["site/{key}.md"],
    )
    def link(work: rs.Work, path: str) -> None:
        text = work.text(f"drafts/{path}.md")
        work.write(f"site/{path}.md", linked(text, work.json(f"references/{path}.json")) if text else "")
        work.section(path, "LINKED")

    @pipeline.item(
        "VALIDATING",
        inputs=["settings.json", "tree.json", "plan.json", "facts/*", "site/*"],
        outputs=["report.json"],
    )
    def validate_pages(work: rs.Work) -> None:
        sources: dict[str, str] = work.json("plan.json")
        report = validate(
            {_page_of(name): work.text(name) for name in work.names("site/*")},
            {path: _facts(work, source) for path, source in sources.items()},
            work.json("tree.json"),
            _read(work, "settings.json", Settings).folder,
        )
        _write(work, "report.json", report)
        for problem in report.problems:
            issue = f"{problem.kind}/{problem.page}/{problem.what}"
            work.open_issue(issue, problem.kind, f"{problem.page}: {problem.what}")
        for want in report.wanting:
            code = "Unreadable" if want.error else "Undocumented"
            message = f"{want.page}: {want.error or ', '.join(want.undocumented)}"
            work.open_issue(f"{code}/{want.page}", code, message, severity="WARNING")

    @pipeline.item("FIXING", each=_broken, inputs=["report.json", "site/{key}.md"], outputs=["site/{key}.md"])
    async def fix(work: rs.Work, path: str) -> None:
        name = f"site/{path}.md"
        found = [p for p in _read(work, "report.json", Report).problems if p.page == path]
        text = await drafter.mend(*_subject(work, path), work.text(name), found)
        new = any(problem.kind == "MissingPage" for problem in found) and text.strip()
        work.write(name, linked(text, work.json(f"references/{path}.json")) if new else text)
        work.section(path, "MENDED")


def _declare_publishing(pipeline: rs.Pipeline) -> None:
    @pipeline.item(
        "READY_FOR_PR",
        name="commit",
        inputs=["commit.json", "settings.json", "site/*"],
        outputs=["published.json"],
        reuse=False,
    )
    def commit_pages(work: rs.Work) -> None:
        pages = {name.removeprefix("site/"): work.read(name) for name in work.names("site/*")}
        place = _cloned(work)
        on, settings = _read(work, "commit.json", Commit), _read(work, "settings.json", Settings)
        made = commit(place, on, pages, settings.folder, work.params["base"])
        forge = forge_of(work)
        if made.changed:
            forge.push(place, made, on)
        _write(work, "published.json", made)
        work.record_commit(made.commit, repository=forge.address, branch=made.branch, message=made.title)

    @pipeline.item(
        "READY_FOR_PR",
        inputs=["plan.json", "published.json", "report.json"],
        outputs=["request.json"],
        reuse=False,
    )
    def request(work: rs.Work) -> None:
        made = _read(work, "published.json", Published)
        if not made.changed:
            work.write_json("request.json", {"opened": False, "because": "the pages are as they were"})
            return
        body = _body(len(work.json("plan.json")), _read(work, "report.json", Report))
        wanted = Request(head=made.branch, base=made.base, commit=made.commit, title=made.title, body=body)
        place = forge_of(work).open(wanted)
        work.write_json("request.json", {"opened": True, "at": place, **msgspec.to_builtins(wanted)})
        work.log("the pull request is %s", place)


def _cloned(work: rs.Work) -> Path:
    """The clone of the repository that is documented, made if it is not there."""
    return cloned(work.params["repository"] or str(HERE), work.scratch)


def forge_of(work: rs.Work) -> Forge:
    """Where the pull request goes."""
    remote = work.params["remote"]
    if remote.startswith("github:"):
        from examples.docs_pipeline.github import GitHub

        return GitHub(remote.removeprefix("github:"))
    return DiskForge(
        Path(remote).expanduser().resolve() if remote else work.scratch.resolve().parents[2] / "docs.git"
    )


def _body(pages: int, report: Report) -> str:
    """What the request says; a list of every name could be longer than a forge takes."""
    names = sum(len(want.undocumented) for want in report.wanting)
    told = [f"- {want.page}: {want.error or len(want.undocumented)}" for want in report.wanting]
    more = [f"- and {len(told) - _MOST_TOLD} pages more"] if len(told) > _MOST_TOLD else []
    lines = [f"{pages} pages, made from the sources.", "", f"Names without a docstring: {names}."]
    return "\n".join([*lines, *told[:_MOST_TOLD], *more]) + "\n"


# What a page needs


def _needs(path: str, source: str) -> list[str]:
    return [f"outlines/{path}.json", *([f"facts/{source}.json"] if source else [])]


def _outlined(read: rs.Reader) -> dict[str, Sequence[str]]:
    return {path: _needs(path, source) for path, source in read.json("plan.json").items()}


def _broken(read: rs.Reader) -> dict[str, Sequence[str]]:
    outlined = _outlined(read)
    pages = sorted({problem.page for problem in _read(read, "report.json", Report).problems})
    return {path: [*outlined[path], f"references/{path}.json"] for path in pages}


def _subject(work: rs.Work, path: str) -> tuple[Page, Facts | None]:
    page = _read(work, f"outlines/{path}.json", Page)
    return page, _facts(work, page.source)


def _facts(work: rs.Work, source: str) -> Facts | None:
    return _read(work, f"facts/{source}.json", Facts) if source else None


def _page_of(name: str) -> str:
    return name.removeprefix("site/").removesuffix(".md")


def _read(work: rs.Reader, name: str, kind: type[T]) -> T:
    return msgspec.json.decode(work.read(name), type=kind)


def _write(work: rs.Work, name: str, value: msgspec.Struct) -> None:
    work.write_json(name, msgspec.to_builtins(value))


pipeline: Final = docs_pipeline()
