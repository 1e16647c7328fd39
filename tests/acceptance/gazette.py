"""A pipeline that notes every call and kills its own process, once, at each place it passes.

GAZETTE_NOTES is the folder for its notes: `calls`, one line a call, and `deaths`, one a kill. It dies by
SIGKILL when it passes the place that GAZETTE_DEATHS names, or any if that is `all`, for the first time: as a
state is entered, as an item begins, as an item's function is about to return.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import runstone as rs
from runstone.core.payloads import Payload, RunStateChanged
from runstone.pipeline.journal import Journal

NOTES = Path(os.environ.get("GAZETTE_NOTES", "notes"))
DEADLY = os.environ.get("GAZETTE_DEATHS")
SOURCES = Path(os.environ.get("GAZETTE_SOURCES", "sources"))

pipeline = rs.Pipeline(
    "gazette", version="1", graph=rs.docs_graph(max_fix_attempts=20), params={"title": "News"}
)


def _note(file: str, line: str) -> None:
    NOTES.mkdir(parents=True, exist_ok=True)
    with open(NOTES / file, "a") as notes:
        notes.write(f"{line}\n")
        notes.flush()
        os.fsync(notes.fileno())


def _pass(place: str) -> None:
    if DEADLY not in (place, "all"):
        return
    deaths = (NOTES / "deaths").read_text().splitlines() if (NOTES / "deaths").exists() else []
    if place not in deaths:
        _note("deaths", place)
        os.kill(os.getpid(), signal.SIGKILL)


def noted(function: Callable[..., None]) -> Callable[..., None]:
    def call(work: rs.Work, *key: str) -> None:
        name = work.item.partition("#")[0]
        _pass(f"begin {name}")
        function(work, *key)
        _note("calls", name)
        _pass(f"end {name}")

    call.__name__ = function.__name__
    call.__signature__ = __import__("inspect").signature(function)  # type: ignore[attr-defined]
    return call


_record = Journal.record


async def _record_and_pass(self: Journal, *data: Payload, span_id: str = "") -> None:
    await _record(self, *data, span_id=span_id)
    for each in data:
        if isinstance(each, RunStateChanged):
            _pass(f"state {each.to_state}")


Journal.record = _record_and_pass  # type: ignore[method-assign]


def sections(read: rs.Reader) -> list[str]:
    return [name.removeprefix("facts/").removesuffix(".json") for name in read.names("facts/*")]


@pipeline.item("CREATED", outputs=["sources/*"])
@noted
def clone(work: rs.Work) -> None:
    for source in sorted(SOURCES.glob("*.txt")):
        work.write(f"sources/{source.name}", source.read_bytes())


@pipeline.item(
    "INGESTED",
    each=lambda read: [name[8:-4] for name in read.names("sources/*")],
    inputs=["sources/{key}.txt"],
    outputs=[rs.Output("facts/{key}.json", schema={"type": "object", "required": ["words"]})],
)
@noted
def facts(work: rs.Work, key: str) -> None:
    work.write_json(f"facts/{key}.json", {"words": len(work.text(f"sources/{key}.txt").split())})


@pipeline.item("DRAFTING", each=sections, inputs=["facts/{key}.json"], outputs=["drafts/{key}.md"])
@noted
def draft(work: rs.Work, key: str) -> None:
    work.write(
        f"drafts/{key}.md", f"# {work.params['title']}: {key}\n{work.json(f'facts/{key}.json')['words']}\n"
    )
    work.section(key, "DRAFTED")


@pipeline.item("LINKING", each=sections, inputs=["drafts/{key}.md"], outputs=["site/{key}.md"])
@noted
def link(work: rs.Work, key: str) -> None:
    work.write(f"site/{key}.md", work.text(f"drafts/{key}.md") + "[dead link](nowhere.md)\n")


@pipeline.item("VALIDATING", inputs=["site/*"], outputs=["report.json"])
@noted
def validate(work: rs.Work) -> None:
    bad = [name for name in work.names() if "dead link" in work.text(name)]
    for name in bad:
        work.open_issue(f"dead/{name}", "DeadLink", name)
    work.write_json("report.json", bad)


@pipeline.item("FIXING", inputs=["report.json", "site/*"], outputs=["site/*"])
@noted
def fix(work: rs.Work) -> None:
    for name in work.json("report.json"):
        work.write(name, work.text(name).replace("[dead link](nowhere.md)\n", ""))


@pipeline.item("READY_FOR_PR", inputs=["site/*"], outputs=["request.json"], reuse=False)
@noted
def request(work: rs.Work) -> None:
    work.record_commit("c" * 40, branch="news")
    work.write_json("request.json", work.names())


slow = rs.Pipeline("slow", graph=rs.Graph(rs.State("WORKING", to="DONE"), rs.State("DONE")))


@slow.item("WORKING", each=["a", "b"], outputs=["{key}"])
def crawl(work: rs.Work, key: str) -> None:
    _note("calls", key)
    while not (NOTES / "go").exists():
        time.sleep(0.01)
    work.write(key, key)
