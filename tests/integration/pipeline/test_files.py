"""The files of a run: whole or not there, and never outside of its folder."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from runstone.errors import ArtifactInvalid, StoreFull
from runstone.pipeline.files import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "run").mkdir()
    return Files(tmp_path / "run")


def test_what_is_written_can_be_read(files: Files) -> None:
    files.write({"a/b/c.md": b"text"})
    assert files.read("a/b/c.md") == b"text"
    assert files.sha256("a/b/c.md") == sha256(b"text").hexdigest()
    assert (files.root / files.path("a/b/c.md")).read_bytes() == b"text"
    files.write({"a/b/c.md": b"other"})
    assert files.read("a/b/c.md") == b"other"
    assert sorted(os.listdir(files.root / "artifacts/a/b")) == ["c.md"]


def test_what_is_not_there(files: Files) -> None:
    assert files.read("a/b") is None
    assert files.sha256("a") is None
    files.remove("a/b")
    files.write({"a/b": b""})
    files.remove("a/b")
    assert files.read("a/b") is None


def test_a_link_does_not_lead_out(files: Files, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("secret")
    (files.root / "artifacts").mkdir()
    (files.root / "artifacts" / "folder").symlink_to(outside)
    (files.root / "artifacts" / "file").symlink_to(outside / "a")
    for name in ("folder/a", "file"):
        with pytest.raises(ArtifactInvalid, match="a link"):
            files.read(name)
    with pytest.raises(ArtifactInvalid, match="a link"):
        files.write({"folder/b": b"x"})
    files.write({"file": b"own"})  # replaces the link, not what it led to
    assert (outside / "a").read_text() == "secret"
    assert files.read("file") == b"own"
    assert os.listdir(outside) == ["a"]


def test_the_folder_of_artifacts_is_no_link_either(files: Files, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (files.root / "artifacts").symlink_to(tmp_path / "outside")
    with pytest.raises(ArtifactInvalid, match="a link"):
        files.write({"a": b"x"})
    assert os.listdir(tmp_path / "outside") == []


def test_other_things_in_the_way_are_named(files: Files) -> None:
    files.write({"a": b"file"})
    with pytest.raises(ArtifactInvalid, match="'a/b' cannot be reached"):
        files.write({"a/b": b"x"})
    files.write({"folder/b": b"x"})
    with pytest.raises(ArtifactInvalid, match="'folder' cannot be reached"):
        files.write({"folder": b"x"})
    with pytest.raises(ArtifactInvalid, match="'folder' cannot be reached"):
        files.read("folder")
    os.mkfifo(files.root / "artifacts" / "pipe")
    with pytest.raises(ArtifactInvalid, match="'pipe' cannot be reached"):
        files.read("pipe")


def test_a_write_that_fails_leaves_the_old_file(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write({"a": b"old"})

    def broken(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreFull, match="No space left"):
        files.write({"a": b"new"})
    monkeypatch.undo()
    assert files.read("a") == b"old"
    assert os.listdir(files.root / "artifacts") == ["a"]


def test_what_a_killed_writer_left_is_swept(files: Files) -> None:
    files.write({"a/b": b"x"})
    (files.root / "artifacts" / "a" / ".~1234").write_bytes(b"half")
    files.sweep()
    assert os.listdir(files.root / "artifacts" / "a") == ["b"]


def test_files_are_synced_before_they_get_their_name(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """§PIP-24: content, then name, then the folder's own list."""
    done: list[str] = []
    replace = os.replace

    def renamed(source: str, target: str, **more: int) -> None:
        done.append("rename")
        replace(source, target, **more)

    files.write({"a": b""})
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append("sync"))
    monkeypatch.setattr(os, "replace", renamed)
    files.write({"a": b"x"})
    assert done == ["sync", "rename", "sync"]
    done.clear()
    files.write({"a": b"y", "b": b"z"})
    assert done == ["sync", "rename", "sync", "rename", "sync"]
