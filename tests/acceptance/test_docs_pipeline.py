"""`examples/docs_pipeline` as a user runs it: on a small repository, killed everywhere, and on this one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.docs_pipeline.pipeline import HERE, PARAMS
from tests.repository import SHOP, commit, git, repository
from tests.servers import programs
from tests.servers.github import serving as github
from tests.servers.telemetry import serving as telemetry

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "runstone", "pipeline"]
PIPELINE = str(ROOT / "examples/docs_pipeline/pipeline.py")
DEADLY = str(ROOT / "tests/acceptance/docs_deaths.py")
ENOUGH = 120.0
TOKEN = "not-for-logs-1234"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    """A folder in memory where there is one: what is killed here is processes, not machines."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="runstone-docs-", dir=place) as folder:
        yield Path(folder)


@pytest.fixture
def folder(room: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=room))


@pytest.fixture(scope="module")
def shop(room: Path) -> Path:
    return repository(room / "shop")


def call(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    others = ("RUNSTONE", "GIT", "DOCS", "PYTHONPATH")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return programs.run_text(["pipeline", *arguments], cwd=folder, env=ours | env, timeout=ENOUGH)


def succeed(folder: Path, *arguments: str, **env: str) -> Path:
    """The folder of a run that ended well."""
    done = call(folder, *arguments, **env)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["DONE"]), done.stdout + done.stderr
    return run_of(folder, done.stdout)


def run_of(folder: Path, output: str) -> Path:
    found = re.search(r"^run ([0-9a-f-]{36})$", output, re.MULTILINE)
    assert found, output
    return folder / "runs" / found[1]


def document(folder: Path, repository: Path, *more: str, **env: str) -> Path:
    return succeed(folder, "run", PIPELINE, "--param", f"repository={repository}", *more, **env)


def deadly(folder: Path, state: str) -> dict[str, str]:
    """What `docs_deaths.py` needs."""
    return {"DOCS_DEATHS": state, "DOCS_NOTES": str(folder / "deaths"), "PYTHONPATH": str(ROOT)}


def artifact(run: Path, name: str) -> Any:
    return json.loads((run / "artifacts" / name).read_bytes())


def artifacts(run: Path) -> dict[str, bytes]:
    """Everything the run made; what names the place where its pull request is, apart."""
    root = run / "artifacts"
    every = {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
    return {name: content for name, content in every.items() if name != "request.json"}


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.ndjson").read_text().splitlines()]


def worked_on(run: Path) -> set[str]:
    """The items that were done, and not taken over from another run; by the log alone."""
    done = [e["event_data"] for e in events(run) if e["event_type"] == "WORK_ITEM_COMPLETED"]
    return {data["item"] for data in done if "reused_from" not in data}


# On a small repository


def test_from_a_repository_to_a_pull_request(folder: Path, shop: Path) -> None:
    run = document(folder, shop)
    site = folder / "docs.git"
    published = artifact(run, "published.json")
    head = git(shop, "rev-parse", "HEAD")
    assert git(site, "rev-parse", f"{published['branch']}^") == head == git(site, "rev-parse", "trunk")
    listed = git(site, "ls-tree", "-r", "--name-only", published["branch"], "docs/api").splitlines()
    pages = ["index", *(f"shop/{name}" for name in ("index", "later", "orders", "prices"))]
    assert listed == [f"docs/api/{page}.md" for page in [*pages, "shop/tools/index", "shop/tools/text"]]

    request = json.loads(git(site, "show", f"refs/pull/{published['branch']}"))
    assert (request["head"], request["base"]) == (published["branch"], "trunk")
    assert request["commit"] == git(site, "rev-parse", published["branch"])
    assert "7 pages" in request["body"]
    assert "- shop/prices: 1" in request["body"]
    about = git(site, "show", "--no-patch", "--date=raw", "--format=%cd|%ad", published["branch"])
    assert about == "1700000000 +0100|1700000000 +0100"

    orders = git(site, "show", f"{published['branch']}:docs/api/shop/orders.md")
    assert "What a customer wants, for a [`Price`](prices.md#Price)." in orders
    assert "see the manual." in orders  # its link led nowhere
    assert "def pay(self, amount: Price, *, tip: int = 0) -> bool" in orders
    assert "[`src/shop/orders.py`](../../../src/shop/orders.py)" in orders
    package = git(site, "show", f"{published['branch']}:docs/api/shop/index.md")
    assert "- [`Order`](orders.md#Order)" in package
    state = json.loads((run / "snapshot.json").read_bytes())
    assert state["visits"]["FIXING"] == 1
    assert [(issue["code"], issue.get("status", "OPEN")) for issue in state["issues"]] == [
        ("DeadLink", "RESOLVED"),
        ("Unreadable", "OPEN"),
        ("Undocumented", "OPEN"),
    ]


def test_the_same_commit_gives_the_same_bytes(folder: Path) -> None:
    """Wherever it is cloned from, and if only the last commit was cloned, as in CI."""
    shop, shallow = repository(folder / "shop"), folder / "shallow"
    commit(shop, {"NEWS.md": "Nothing.\n"})  # so that there is a history to be left out
    git(folder, "clone", "--quiet", "--depth=1", f"file://{shop}", str(shallow))
    git(shallow, "checkout", "--quiet", "--detach")
    git(shallow, "branch", "--quiet", "-D", "trunk")
    whole = artifacts(document(folder / mkdir(folder, "a"), shop))
    again = artifacts(document(folder / mkdir(folder, "b"), shallow, "--param", "base=trunk"))
    source = json.loads(again.pop("commit.json"))
    assert source == {**json.loads(whole.pop("commit.json")), "branch": "main"}  # nothing was checked out
    assert again == whole


def mkdir(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return name


@pytest.fixture(scope="module")
def unharmed(room: Path) -> dict[str, bytes]:
    """What comes of a run that nobody kills."""
    folder = room / "unharmed"
    folder.mkdir()
    return artifacts(document(folder, repository(room / "unharmed-shop")))


INSIDE = {
    "CREATED": ["clone"],
    "CLONED_INPUTS": ["ingest"],
    "INGESTED": ["facts"],
    "FACTS_READY": ["plan_pages"],
    "PLAN_READY": [],
    "DRAFTING": ["draft"],
    "DRAFT_READY": [],
    "LINKING": ["link"],
    "VALIDATING": ["validate_pages"],
    "FIXING": ["fix"],
    "READY_FOR_PR": ["commit", "request"],
    "PR_OPENED": [],
    "DONE": [],
}


@pytest.mark.parametrize("state", INSIDE)
def test_killed_in_every_state_and_resumed(folder: Path, unharmed: dict[str, bytes], state: str) -> None:
    """As it is entered, and inside of it when all is done and nothing of it is in the log."""
    place = repository(folder / "shop")
    env = deadly(folder, state)
    done = call(folder, "run", DEADLY, "--param", f"repository={place}", **env)
    run = run_of(folder, done.stdout)
    kills = 0
    while done.returncode == -signal.SIGKILL:
        if not kills:  # nobody is to rely on what is left of the clone
            shutil.rmtree(run / "scratch", ignore_errors=True)
        kills += 1
        assert kills < 10
        done = call(folder, "resume", run.name, **env)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "DONE"), done.stderr
    assert (folder / "deaths").read_text().splitlines() == ["entered", *INSIDE[state]]
    assert kills == 1 + len(INSIDE[state])

    assert artifacts(run) == unharmed
    published = artifact(run, "published.json")
    refs = git(folder / "docs.git", "for-each-ref", "--format=%(refname) %(objecttype)").splitlines()
    branch = published["branch"]
    assert refs == [f"refs/heads/{branch} commit", "refs/heads/trunk commit", f"refs/pull/{branch} blob"]
    assert git(folder / "docs.git", "rev-parse", branch) == published["commit"]


def test_touching_one_source_makes_only_the_pages_that_depend_on_it(folder: Path) -> None:
    place = repository(folder / "shop")
    document(folder, place)
    alone = {"clone", "ingest", "validate_pages", "commit", "request"}
    mended = {"link/shop/orders", "fix/shop/orders#1"}  # a mend is not taken over: it was for that report

    commit(place, {"README.md": "# The shop\n", "src/shop/prices.py": SHOP["src/shop/prices.py"] + "# …\n"})
    nothing = document(folder, place, "--reuse", "last")
    assert worked_on(nothing) == alone | mended | {"facts/src/shop/prices.py"}

    inside = SHOP["src/shop/prices.py"].replace("An amount of money", "An amount")
    commit(place, {"src/shop/prices.py": inside})
    one = document(folder, place, "--reuse", "last")
    page = {"facts/src/shop/prices.py", "plan_pages", "draft/shop/prices", "link/shop/prices"}
    assert worked_on(one) == alone | mended | page

    # Its first line is shown by its package; a name that moves changes where others lead to.
    commit(place, {"src/shop/prices.py": inside.replace("Prices.", "What things cost.")})
    two = document(folder, place, "--reuse", "last")
    assert worked_on(two) == alone | mended | page | {"draft/shop/index", "link/shop/index"}
    commit(place, {"src/shop/prices.py": '"""What things cost."""\n'})
    three = document(folder, place, "--reuse", "last")
    assert worked_on(three) == alone | mended | page
    assert "for a `Price`" in (three / "artifacts/site/shop/orders.md").read_text()

    # And all of it is what a run from nothing would have made.
    assert artifacts(three) == artifacts(document(folder, place))


def test_a_source_that_is_gone_takes_its_page_along(folder: Path) -> None:
    place = repository(folder / "shop")
    merge(folder, place, document(folder, place))
    (place / "src/shop/prices.py").unlink()
    commit(place, {})
    second = document(folder, place, "--reuse", "last")
    published = artifact(second, "published.json")
    pages = git(folder / "docs.git", "ls-tree", "-r", "--name-only", published["branch"], "docs/api")
    assert "docs/api/shop/orders.md" in pages
    assert "docs/api/shop/prices.md" not in pages


def merge(folder: Path, place: Path, run: Path) -> None:
    """Takes the pages into the repository, as somebody who accepts the pull request does."""
    git(place, "fetch", "--quiet", str(folder / "docs.git"), artifact(run, "published.json")["branch"])
    git(place, "merge", "--quiet", "--ff-only", "FETCH_HEAD")


def test_pages_that_are_as_they_were_are_not_asked_for_again(folder: Path) -> None:
    place = repository(folder / "shop")
    merge(folder, place, document(folder, place))
    second = document(folder, place, "--reuse", "last")
    assert artifact(second, "request.json") == {"opened": False, "because": "the pages are as they were"}
    assert len(git(folder / "docs.git", "for-each-ref", "refs/pull").splitlines()) == 1


def test_telemetry_finds_the_run_by_its_commit(folder: Path, shop: Path) -> None:
    with telemetry() as endpoint:
        run = document(folder, shop, "--telemetry", endpoint.url)
        sha = artifact(run, "published.json")["commit"]
        (line,) = call(folder, "told", sha, "--telemetry", endpoint.url).stdout.splitlines()
        assert json.loads(line)["run_id"] == run.name


def test_a_pull_request_on_github(folder: Path, shop: Path) -> None:
    """Its answer is lost once, and it fails once; the token is written down nowhere."""
    remote = folder / "acme" / "shop.git"
    git(folder, "init", "--quiet", "--bare", str(remote))
    with github(TOKEN) as server:
        env = {
            "GITHUB_TOKEN": TOKEN,
            "GITHUB_API_URL": server.url,
            "GITHUB_SERVER_URL": f"file://{folder}",
        }
        server.faults = ["fail", "", "lose"]
        run = document(folder, shop, "--param", "remote=github:acme/shop", **env)
        (pull,) = server.pulls
        assert server.asked == ["GET", "GET", "POST", "POST", "GET"]
    published = artifact(run, "published.json")
    assert (pull["head"], pull["base"]) == (published["branch"], "trunk")
    assert git(remote, "rev-parse", published["branch"]) == published["commit"]
    assert artifact(run, "request.json")["at"] == pull["html_url"]
    assert not [path for path in folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("param", "problem"),
    [
        (
            "repository=nowhere",
            "clone: GitError: git clone failed: fatal: repository 'nowhere' does not exist",
        ),
        ("revision=v9", "clone: GitError: The repository has no commit 'v9'"),
        ("revision=--all", "clone: GitError: The repository has no commit '--all'"),
        ("sources=lib", "ingest: GitError: The commit has no Python file below 'lib'"),
        ("folder=/", "ingest: GitError: '' is no folder for pages alone. --param folder="),
        (
            "folder=src/shop",
            "ingest: GitError: 'src/shop' is no folder for pages alone: it has src/shop/__init",
        ),
        ("folder=a/../..", "ingest: GitError: 'a/../..' is no folder for pages alone."),
        ("remote=github:acme", "commit: GitHubError: remote=github:acme has to be github:OWNER/NAME"),
    ],
)
def test_mistakes_are_told_in_a_line(folder: Path, shop: Path, param: str, problem: str) -> None:
    done = call(folder, "run", PIPELINE, "--param", f"repository={shop}", "--param", param)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(f"FAILED ({problem}")


def test_a_machine_without_git(folder: Path, shop: Path) -> None:
    (folder / "bin").mkdir()
    done = call(folder, "run", PIPELINE, "--param", f"repository={shop}", PATH=str(folder / "bin"))
    assert done.returncode == 1
    assert "There is no git on this machine's PATH: install it" in done.stdout


# On this repository


def test_it_documents_this_repository(folder: Path) -> None:
    """From a clean clone; then a source is touched, and the run that comes of it is killed half-way."""
    assert (PARAMS["repository"], HERE) == ("", ROOT), "the default; no run says where that is"
    place = folder / "runstone"
    if (ROOT / ".git").exists():
        git(folder, "clone", "--quiet", str(ROOT), str(place))
    else:  # a source archive
        files = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in (ROOT / "src").rglob("*.py")}
        repository(place, files)
    modules = sorted((place / "src").rglob("*.py"))
    first = document(folder, place)
    pages = {path: path.read_text("utf-8") for path in (first / "artifacts/site").rglob("*.md")}
    assert len(pages) >= len(modules) > 100
    check_links(first / "artifacts/site", pages)

    ids = place / "src/runstone/core/ids.py"
    commit(place, {"src/runstone/core/ids.py": ids.read_text("utf-8").replace("Refuses", "Turns down", 1)})
    touched = document(folder, place, "--reuse", "last")
    drawn = {"facts/src/runstone/core/ids.py", "draft/runstone/core/ids", "link/runstone/core/ids"}
    alone = {"clone", "ingest", "plan_pages", "validate_pages", "commit", "request"}
    mends = {item for item in worked_on(touched) if item.startswith("fix/")}
    mended = {f"link/{item.removeprefix('fix/').partition('#')[0]}" for item in mends}
    assert worked_on(touched) == alone | drawn | mends | mended

    env = deadly(folder, "LINKING")
    killed = call(folder, "run", DEADLY, "--param", f"repository={place}", **env)
    assert killed.returncode == -signal.SIGKILL
    assert call(folder, "resume", **env).returncode == -signal.SIGKILL
    resumed = succeed(folder, "resume", **env)
    assert artifacts(resumed) == artifacts(touched)
    assert "byte for byte" in call(folder, "replay", "--check").stdout


def check_links(site: Path, pages: dict[Path, str]) -> None:
    """With other means than the pipeline's own: what it validates is not what it says it is."""
    for page, text in pages.items():
        for target in re.findall(r"\[`[\w.]+`\]\(([\w./#]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
            path, _, name = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            if site.resolve() in place.parents:
                assert place in pages, f"{page}: {target}"
                assert not name or f'<a id="{name}"></a>' in pages[place], f"{page}: {target}"
