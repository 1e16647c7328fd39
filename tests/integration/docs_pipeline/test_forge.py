"""A bare repository as a forge, with a real git: done again, done at once, held up."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.docs_pipeline.clone import Commit, cloned, resolved
from examples.docs_pipeline.forge import DiskForge, Request
from examples.docs_pipeline.git import GitError, without_login
from examples.docs_pipeline.publish import Published, commit
from tests.repository import git, repository


class Scene:
    """A clone with a source commit, and a forge that is not there yet."""

    def __init__(self, folder: Path) -> None:
        (folder / "scratch").mkdir()
        self.source = str(repository(folder / "shop"))
        self.clone = cloned(self.source, folder / "scratch")
        self.on: Commit = resolved(self.clone, "HEAD")
        self.path = folder / "below" / "docs.git"
        self.forge = DiskForge(self.path)

    def pages(self, text: str) -> Published:
        return commit(self.clone, self.on, {"a.md": text.encode()}, "docs/api", "")

    def head(self, published: Published) -> str:
        return git(self.path, "rev-parse", published.branch)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def request_for(published: Published, body: str = "one") -> Request:
    return Request(head=published.branch, base="trunk", commit=published.commit, title="T", body=body)


def test_a_commit_is_the_same_each_time_it_is_made(scene: Scene) -> None:
    assert scene.pages("a") == scene.pages("a")
    assert scene.pages("a").tree != scene.pages("b").tree
    assert git(scene.clone, "for-each-ref", "refs/runstone") == ""


def test_strange_names_and_contents_are_committed_as_they_are(scene: Scene) -> None:
    pages = {'a "b" ü.md': b"\r\n\xff\0", "c/d e.md": b"", "c/f.md": b"done\n"}
    published = commit(scene.clone, scene.on, pages, "docs/api", "")
    listed = git(scene.clone, "ls-tree", "-r", "-z", "--name-only", published.commit, "docs/api")
    assert listed.split("\0")[:-1] == [f"docs/api/{name}" for name in sorted(pages)]
    long = git(scene.clone, "ls-tree", "-r", "-l", published.commit, "docs/api").splitlines()
    assert [line.split()[3] for line in long] == [str(len(pages[name])) for name in sorted(pages)]


def test_pushing_again_changes_nothing_and_other_pages_replace_the_first(scene: Scene) -> None:
    first, second = scene.pages("a"), scene.pages("b")
    for published in (first, first, second):
        scene.forge.push(scene.clone, published, scene.on)
        assert scene.head(published) == published.commit
    assert git(scene.path, "rev-parse", "trunk") == scene.on.sha


def test_a_request_is_there_once_and_says_the_latest(scene: Scene) -> None:
    published = scene.pages("a")
    scene.forge.push(scene.clone, published, scene.on)
    places = {scene.forge.open(request_for(published, body)) for body in ("one", "one", "two")}
    assert len(places) == 1
    (ref,) = git(scene.path, "for-each-ref", "--format=%(refname)", "refs/pull").splitlines()
    assert json.loads(git(scene.path, "show", ref))["body"] == "two"


def test_two_who_make_the_repository_at_once(scene: Scene) -> None:
    published = scene.pages("a")

    def push(_: int) -> None:
        DiskForge(scene.path).push(scene.clone, published, scene.on)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(push, range(4)))
    assert scene.head(published) == published.commit
    assert [path.name for path in scene.path.parent.iterdir()] == ["docs.git"]


def test_a_branch_that_somebody_holds_is_waited_for(scene: Scene) -> None:
    first, second = scene.pages("a"), scene.pages("b")
    scene.forge.push(scene.clone, first, scene.on)
    lock = scene.path / "refs/heads" / f"{first.branch}.lock"
    lock.touch()
    letting_go = threading.Timer(0.1, lock.unlink)
    letting_go.start()
    scene.forge.push(scene.clone, second, scene.on)
    letting_go.join()
    assert scene.head(second) == second.commit


def test_what_killed_clones_left_goes(tmp_path: Path) -> None:
    source = str(repository(tmp_path / "shop"))
    (tmp_path / "clone.git.dead").mkdir()
    first = cloned(source, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clone.git", "shop"]
    assert cloned("somewhere else", tmp_path) == first


def test_an_address_is_told_without_its_login(tmp_path: Path) -> None:
    assert without_login("at https://me:secret@example.org/x failed") == "at https://example.org/x failed"
    with pytest.raises(GitError) as error:
        cloned("file://me:secret@example.org/nowhere", tmp_path)
    assert "secret" not in str(error.value)
