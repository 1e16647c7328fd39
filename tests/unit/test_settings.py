"""Settings: which of several values wins, where it came from, and what is said of a bad one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from runstone.errors import SettingsInvalid
from runstone.settings import Setting, load_settings


def load(folder: Path, store: str | None = None, environment: Mapping[str, str] | None = None) -> Setting:
    return load_settings(store=store, environment=environment or {}, folder=folder).store


def write(folder: Path, text: str) -> Path:
    file = folder / "runstone.toml"
    file.write_text(text, "utf-8")
    return file


def test_each_source_gives_way_to_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, 'store = "file.db"')
    both = {"RUNSTONE_STORE": "ours.db", "DATABASE_URL": "sqlite:///url.db"}
    assert load(tmp_path, "flag.db", both) == Setting("flag.db", "--store")
    assert load(tmp_path, None, both) == Setting("ours.db", "RUNSTONE_STORE")
    assert load(tmp_path, None, {"DATABASE_URL": "u.db", "RUNSTONE_STORE": ""}) == Setting(
        "u.db", "DATABASE_URL"
    )
    assert load(tmp_path) == Setting("file.db", str(file))
    file.write_text("# nothing set\n", "utf-8")
    assert load(tmp_path) == Setting("runstone.db", "the default")
    file.unlink()
    assert load(tmp_path) == Setting("runstone.db", "the default")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("runstone.db", "runstone.db"),
        ("/var/lib/a b.db", "/var/lib/a b.db"),
        ("sqlite:///runstone.db", "runstone.db"),
        ("sqlite:////var/lib/runstone.db", "/var/lib/runstone.db"),
        ("größe.db", "größe.db"),
    ],
)
def test_a_store_is_a_path_or_a_url_of_one(value: str, path: str, tmp_path: Path) -> None:
    settings = load_settings(store=value, environment={}, folder=tmp_path)
    assert settings.store_path == Path(path)


def test_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert load_settings(store="~/a.db", environment={}, folder=tmp_path).store_path == Path("/home/ada/a.db")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "is no path: give one"),
        ("  ", "is no path: give one"),
        ("sqlite:///", "is no path: give one"),
        ("a\0b", "is no path: give one"),
        ("sqlite://a.db", "is no store: give a path, or sqlite:///path"),
        ("redis://host", "is no store: give a path, or sqlite:///path"),
        ("sqlite:///a.db?mode=ro", "has options after its path: leave them out"),
        ("~nobody-of-that-name/a.db", "begins with a home folder that nobody has"),
        ("postgres://ada:secret@host/db", "not available in this version"),
        ("postgresql://ada:secret@host/db", "not available in this version"),
        ("postgresql+asyncpg://ada:secret@host/db", "not available in this version"),
    ],
)
def test_a_bad_value_is_refused_and_its_origin_named(value: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        load(tmp_path, value)
    assert said in str(refused.value)
    assert "(from --store)" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("store = ", "is not valid TOML"),
        ("store = 7", 'write it as text, store = "runstone.db"'),
        ('stroe = "a.db"', "sets 'stroe', which is no setting: use store"),
        ('[store]\npath = "a.db"', "write it as text"),
    ],
)
def test_a_bad_file_is_refused_by_its_name(text: str, said: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingsInvalid) as refused:
        load(tmp_path)
    assert str(file) in str(refused.value)
    assert said in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runstone.toml").write_bytes(b"\xff")
    with pytest.raises(SettingsInvalid, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "runstone.toml").unlink()
    (tmp_path / "runstone.toml").mkdir()
    with pytest.raises(SettingsInvalid, match="cannot be read"):
        load(tmp_path)


def test_a_flag_spares_the_file(tmp_path: Path) -> None:
    write(tmp_path, "not toml at all")
    assert load(tmp_path, "flag.db").value == "flag.db"
