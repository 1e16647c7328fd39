"""`-o`: a file is written whole or not at all, a link stays one, and nothing else is ever replaced."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import click
import pytest

from runstone.cli.files import check_target, write_target


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_target(str(file), b"one", force=False)
    with pytest.raises(click.UsageError, match="file exists"):
        write_target(str(file), b"two", force=False)
    assert file.read_bytes() == b"one"
    write_target(str(file), b"two", force=True)
    assert file.read_bytes() == b"two"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_what_replaces_a_file_has_its_mode(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"secret")
    file.chmod(mode)
    write_target(str(file), b"another", force=True)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"another", mode)


@pytest.mark.parametrize("force", [False, True])
def test_a_file_without_a_name_is_refused(
    tmp_path: Path, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError, match="is empty: name one"):
        check_target("", force=force)
    assert names(tmp_path) == []


@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_is_written_to_and_stays(tmp_path: Path, force: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_target(str(pipe), b"content", force=force)
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert names(tmp_path) == ["pipe"]


def test_what_cannot_be_written_to_stays_too(tmp_path: Path) -> None:
    place = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        with pytest.raises(OSError, match=f"'{place}'"):
            write_target(str(place), b"content", force=True)
    assert place.is_socket()


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    link, file = tmp_path / "link", tmp_path / "other" / "file"
    link.symlink_to("other/file")
    write_target(str(link), b"one", force=False)
    assert file.read_bytes() == b"one"
    with pytest.raises(click.UsageError, match="link exists"):
        write_target(str(link), b"two", force=False)
    write_target(str(link), b"two", force=True)
    assert file.read_bytes() == b"two"
    assert link.is_symlink()
    assert names(tmp_path) == ["link", "other"]
    assert names(tmp_path / "other") == ["file"]


def test_a_link_to_a_pipe_is_one_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_target(str(tmp_path / "link"), b"content", force=True)
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("nodir/x", "There is no folder nodir for nodir/x"),
        ("new/", "There is no folder new for new/"),
        ("file/x", "There is no folder file for file/x"),
        ("astray", "There is no folder .*/nowhere for astray"),
        ("folder", "folder is a folder: name a file in it"),
        ("folder/", "folder/ is a folder: name a file in it"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_what_is_wrong_is_said_of_the_name_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, said: str, force: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    Path("astray").symlink_to("nowhere/file")
    with pytest.raises(click.UsageError, match=said):
        write_target(output, b"content", force=force)
    assert names(tmp_path) == ["astray", "file", "folder"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/file'"):
        write_target(str(tmp_path / "file"), b"content", force=False)
    assert names(tmp_path) == []


@pytest.mark.parametrize("links", [True, False])
def test_what_came_in_between_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Not even on a file system that has no links to tell of it."""
    file, fsync, link = tmp_path / "file", os.fsync, os.link

    def late(number: int) -> None:
        fsync(number)
        file.write_bytes(b"precious")

    def no_link(source: Path, target: Path) -> None:
        if not links:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        link(source, target)

    monkeypatch.setattr(os, "fsync", late)
    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(click.UsageError, match="file exists"):
        write_target(str(file), b"content", force=False)
    assert file.read_bytes() == b"precious"
    assert names(tmp_path) == ["file"]
